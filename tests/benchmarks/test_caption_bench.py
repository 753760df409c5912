"""The caption row on a small model: both schemes write the same words, and another model's are noticed."""

import torch

from albertkit.benchmarks.caption_training import caption_training_rows
from albertkit.benchmarks.captioning import _again, _cached, caption_rows
from albertkit.captioning.generation import GenerationSettings
from albertkit.captioning.model import AlbertForImageCaptioning, CaptionConfig
from albertkit.config import AlbertConfig

CONFIG = AlbertConfig(
    vocab_size=50, embedding_size=16, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=32, initializer_range=0.3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip


def test_rows():
    rows = list(caption_rows(visual_tokens=12, words=5, rounds=1, config=CONFIG))
    assert rows[0].row.endswith("ours in fp32")
    assert rows[0].equal is True
    assert len(rows[0].ratio) == 2  # SwinBERT's scheme and transformers' BertModel
    assert all(ratio > 0 for row in rows for ratio in row.ratio.values())


def test_words_of_another_video_differ():
    torch.manual_seed(0)
    model = AlbertForImageCaptioning(CaptionConfig(img_feature_dim=512).put_into(CONFIG)).eval()
    model.predictions.bias.data[3] = -1e4
    visual, other = torch.randn(2, 1, 12, 512)
    with torch.inference_mode():
        words = _cached(model, visual, GenerationSettings(max_length=7, num_beams=1), None)[0, 1:6]
        assert torch.equal(words, _again(model, visual, 5))
        assert not torch.equal(words, _again(model, other, 5))


def test_updates_with_albert_and_with_bert():
    """BERT's parameters and memory by hand: a set of weights for each layer, embeddings as wide as the network."""
    albert = CONFIG.replace(vocab_size=40, max_position_embeddings=64)
    (row,) = caption_training_rows(visual_tokens=12, batch_size=2, rounds=1, config=albert)
    ours, bert = row.details["albertkit"], row.details["BERT in the same code"]
    width, inner, layers, words = 64, 64, 2, 30_522
    layer = 4 * (width + 1) * width + 2 * width * inner + inner + width + 4 * width
    head = (width + 1) * width + 2 * width + words
    rest = (
        (words + 64 + 2 + 2) * width + (512 + 1) * width + 2 * (width + 1) * width
    )  # tables, norm; visual; pooler, mapping
    assert bert["parameters"] == layers * layer + head + rest
    assert ours["parameters"] < bert["parameters"]
    assert bert["state_mb"] == bert["parameters"] * 16 / 1e6
    assert ours["activations_mb"] > 0
    assert list(row.ratio) == ["BERT in the same code"]
    (more,) = caption_training_rows(visual_tokens=24, batch_size=2, rounds=1, config=albert)
    assert more.details["albertkit"]["activations_mb"] > ours["activations_mb"]
