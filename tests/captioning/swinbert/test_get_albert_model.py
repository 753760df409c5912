"""`get_albert_model`: the call of the migration guide of 2024, SwinBERT's arguments, and what becomes of pretrained weights."""

import json
import sys
from argparse import Namespace

import pytest
import torch

from albertkit.captioning.swinbert.loading import get_albert_model
from albertkit.captioning.swinbert.migration.migrate import migrate
from albertkit.captioning.swinbert.tokenizer import SwinBertTokenizer
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertKitError, CheckpointError, ConfigError
from albertkit.model.albert import AlbertForPreTraining, AlbertModel

pytestmark = pytest.mark.filterwarnings("ignore:head size")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, "a", "man", "dog", "runs", "##ning", ".", "the"]


def write_vocabulary(folder, words, **config):
    """What the guide of 2024 puts into a model's folder: a configuration and a WordPiece vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    values = dict(
        architectures=["BertForMaskedLM"], model_type="albert", embedding_size=16, hidden_size=64, num_hidden_layers=3,
        num_attention_heads=2, intermediate_size=96, max_position_embeddings=64, vocab_size=len(words),
        hidden_act="gelu_new", gradient_checkpointing=False,
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(values | config))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    return folder


@pytest.fixture
def pretrained(tmp_path):
    """A pretrained ALBERT with a masked-LM head and its vocabulary."""
    folder = write_vocabulary(tmp_path / "albert", WORDS)
    torch.manual_seed(1)
    model = AlbertForPreTraining(AlbertConfig.from_pretrained(write_plain(folder)))
    with torch.no_grad():
        model.predictions.bias.normal_()
    model.save_pretrained(folder)
    return folder


def write_plain(folder):
    """The same configuration without the keys that only BERT's files have."""
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in values.items() if k != "gradient_checkpointing"}))
    return folder


@pytest.fixture
def migrated(checkout, monkeypatch):
    """A migrated checkout that can be imported from, as its scripts are run: from its folder."""
    migrate(checkout, "apply", portable=True)
    monkeypatch.chdir(checkout)
    monkeypatch.syspath_prepend(str(checkout))
    yield checkout
    for name in [name for name in sys.modules if name == "src" or name.startswith("src.")]:
        del sys.modules[name]


def test_the_call_of_the_migration_guide(migrated, capsys):
    words = [*SPECIAL, *(f"word{number}" for number in range(30_522 - len(SPECIAL)))]
    write_vocabulary(
        migrated / "models/captioning/albert-base-v2", words, embedding_size=128, hidden_size=768, num_hidden_layers=12,
        num_attention_heads=12, intermediate_size=3072, max_position_embeddings=512,
    )  # fmt: skip
    script = """
from src.modeling.load_albert import get_albert_model
from argparse import Namespace

args = Namespace(
    model_name_or_path='models/captioning/albert-base-v2/',
    config_name='',
    tokenizer_name='',
    do_lower_case=True,
    drop_out=0.1,
    tie_weights=True,
    freeze_embedding=False,
    label_smoothing=0.0,
    drop_worst_ratio=0.0,
    drop_worst_after=0,
    img_feature_dim=512,
    num_hidden_layers=-1,
    hidden_size=-1,
    num_attention_heads=-1,
    intermediate_size=-1,
    load_partial_weights=False
)

model, config, tokenizer = get_albert_model(args)
print(f"Model loaded successfully! Total parameters: {sum(p.numel() for p in model.parameters())}")
"""
    names = {}
    exec(script, names)
    said = capsys.readouterr()
    assert said.out == f"Model loaded successfully! Total parameters: {names['model'].num_parameters()}\n"
    assert f"{names['model'].num_parameters():,} parameters" in said.err
    assert "warning: initialised_from: scratch" in said.err
    assert names["args"].initialised_from == "scratch"
    config = names["config"]
    assert (config.vocab_size, config.embedding_size, config.hidden_dropout_prob) == (30_522, 128, 0.1)
    config.num_visual_tokens = 784  # as the script does when it takes over another mask
    assert names["tokenizer"].vocab_size == 30_522
    from src.layers.albert import AlbertConfig, AlbertForImageCaptioning, AlbertTokenizer  # the guide's other import

    assert isinstance(names["model"], AlbertForImageCaptioning)
    assert (AlbertConfig, AlbertTokenizer) == (type(config), type(names["tokenizer"]))


def test_pretrained_weights_are_kept_whatever_the_visual_width(pretrained, capsys):
    original = AlbertForPreTraining.from_pretrained(pretrained).state_dict()
    for width in (512, 7):
        args = Namespace(model_name_or_path=str(pretrained), img_feature_dim=width, drop_out=0.2)
        model, config, _ = get_albert_model(args)
        kept = model.state_dict()
        shared = kept.keys() & original.keys()
        assert len(shared) == len(original) - 2  # all but the sentence-order head
        assert all(torch.equal(kept[name], original[name]) for name in shared)
        assert torch.equal(kept["predictions.decoder.weight"], original["albert.embeddings.word_embeddings.weight"])
        assert model.caption.img_feature_dim == kept["albert.img_embedding.projection.weight"].shape[1] == width
        assert (args.initialised_from, config.hidden_dropout_prob) == (str(pretrained), 0.2)
    said = capsys.readouterr().err
    assert "sop_classifier.classifier.weight" in said
    assert "initialised afresh: albert.img_embedding" in said
    assert f"{model.num_parameters():,} parameters" in said
    scratch, _, _ = get_albert_model({"model_name_or_path": str(pretrained), "init": "scratch"})
    assert not torch.equal(scratch.state_dict()["predictions.dense.weight"], original["predictions.dense.weight"])


def test_an_encoder_alone_and_a_captioner(pretrained, tmp_path, capsys):
    AlbertModel.from_pretrained(pretrained).save_pretrained(tmp_path / "encoder")
    encoder = write_vocabulary(tmp_path / "vocabulary", WORDS)
    args = dict(model_name_or_path=str(tmp_path / "encoder"), tokenizer_name=str(encoder), tie_weights=True)
    model, _, _ = get_albert_model(args)
    assert "predictions.dense.weight" in capsys.readouterr().err
    assert args["initialised_from"] == str(tmp_path / "encoder")
    model.save_pretrained(tmp_path / "captioner")
    again, _, _ = get_albert_model({**args, "model_name_or_path": str(tmp_path / "captioner")})
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert "initialised afresh: nothing" in capsys.readouterr().err
    other, _, _ = get_albert_model({**args, "model_name_or_path": str(tmp_path / "captioner"), "img_feature_dim": 9})
    assert other.albert.img_embedding.projection.in_features == 9


def test_the_number_of_passes_is_free_and_widths_are_not(pretrained):
    args = {"model_name_or_path": str(pretrained), "num_hidden_layers": 7}
    _, config, _ = get_albert_model(args)
    assert config.num_hidden_layers == 7
    for name, value in (("hidden_size", 32), ("num_attention_heads", 4), ("intermediate_size", 64)):
        with pytest.raises(ConfigError, match="structure-changed") as raised:
            get_albert_model({**args, name: value})
        assert f"{name} {value}" in raised.value.message
        _, config, _ = get_albert_model({**args, name: value, "init": "scratch"})
        assert getattr(config, name) == value


def test_arguments_of_the_loss_reach_the_model(pretrained):
    args = Namespace(
        model_name_or_path=str(pretrained), tie_weights=True, freeze_embedding=True, label_smoothing=0.1,
        drop_worst_ratio=0.2, drop_worst_after=5, num_hidden_layers=-1, learn_mask_enabled=True,
    )  # fmt: skip
    model, _, _ = get_albert_model(args)
    caption = model.caption
    assert (caption.tie_weights, caption.freeze_embedding, caption.label_smoothing) == (True, True, 0.1)
    assert (caption.drop_worst_ratio, caption.drop_worst_after, caption.video_attention) == (0.2, 5, "full")
    assert not model.albert.embeddings.word_embeddings.weight.requires_grad
    assert "predictions.decoder.weight" not in model.state_dict()


def test_what_cannot_be_loaded(pretrained, tmp_path):
    for values, slug in (
        ({}, "bad-argument"),
        ({"model_name_or_path": str(pretrained), "num_hidden_layers": "two"}, "bad-argument"),
        ({"model_name_or_path": str(pretrained), "init": "maybe"}, "bad-argument"),
        ({"model_name_or_path": str(tmp_path / "nowhere")}, "not-found"),
        ({"model_name_or_path": str(write_vocabulary(tmp_path / "bert", WORDS, model_type="bert"))}, "wrong-model"),
        ({"model_name_or_path": str(write_vocabulary(tmp_path / "empty", WORDS)), "init": "pretrained"}, "no-weights"),
    ):
        with pytest.raises(AlbertKitError) as raised:
            get_albert_model(values)
        assert raised.value.slug == slug
    more = write_vocabulary(tmp_path / "more", [*WORDS, "beyond"])
    with pytest.raises(CheckpointError, match="vocab-mismatch"):
        get_albert_model({"model_name_or_path": str(pretrained), "tokenizer_name": str(more)})


def test_the_text_model_in_the_migrated_video_transformer(migrated, pretrained):
    """Training, gradients and generation through the checkout's own class, on a machine without its four packages."""
    from src.modeling.load_albert import get_albert_model
    from src.modeling.video_captioning_e2e_vid_swin_bert import VideoTransformer

    class Swin(torch.nn.Module):
        width = 6

        def forward(self, images):
            return images

    tokens, length = 4, 8
    args = Namespace(
        model_name_or_path=str(pretrained), use_checkpoint=False, max_img_seq_length=tokens, img_feature_dim=5
    )
    model, config, tokenizer = get_albert_model(args)
    video = VideoTransformer(args, config, Swin(), model).train()
    words = [tokenizer.cls_token, *tokenizer.tokenize("a man runs"), tokenizer.sep_token]
    ids = torch.tensor([tokenizer.convert_tokens_to_ids(words + [tokenizer.pad_token] * (length - len(words)))] * 2)
    mask = torch.zeros(2, length + tokens, length + tokens, dtype=torch.long)
    mask[:, : len(words), : len(words)] = torch.tril(torch.ones(len(words), len(words)))
    mask[:, : len(words), length:] = mask[:, length:, length:] = 1
    places = torch.zeros(2, length, dtype=torch.int)
    places[:, [1, 3]] = 1
    labels = torch.full((2, 5), -1)
    labels[:, :2] = ids[:, [1, 3]]
    inputs = dict(token_type_ids=torch.zeros_like(ids), img_feats=torch.randn(2, tokens, 6))
    loss, logits = video(input_ids=ids, attention_mask=mask, masked_pos=places, masked_ids=labels, **inputs)
    assert logits.shape == (4, len(WORDS))
    loss.backward()
    assert video.fc.weight.grad.abs().sum() > 0

    special = (tokenizer.cls_token, tokenizer.sep_token, tokenizer.pad_token, tokenizer.mask_token, ".")
    cls_id, sep_id, pad_id, mask_id, _ = tokenizer.convert_tokens_to_ids(list(special))
    mask[:, :length] = 0
    mask[:, :length, :length] = torch.tril(torch.ones(length, length))
    mask[:, :length, length:] = 1
    with torch.no_grad():
        captions, scores = video.eval()(
            is_decode=True, input_ids=torch.full_like(ids, mask_id), attention_mask=mask, masked_pos=torch.ones_like(places),
            do_sample=False, bos_token_id=cls_id, pad_token_id=pad_id, eos_token_ids=[sep_id], mask_token_id=mask_id,
            add_od_labels=False, od_labels_start_posid=length, max_length=length, num_beams=2, temperature=1, top_k=0,
            top_p=1, repetition_penalty=1, length_penalty=1, num_return_sequences=1, num_keep_best=1, **inputs,
        )  # fmt: skip
    assert captions.shape == (2, 1, length)
    assert scores.shape == (2, 1)
    assert captions[0, 0, 0] == cls_id
    assert "[" not in tokenizer.decode(captions[0, 0].tolist(), skip_special_tokens=True)
    args.use_checkpoint = True
    with pytest.raises(AlbertKitError, match="missing-extra"):
        VideoTransformer(args, config, Swin(), model)


def test_the_tokenizer_gives_the_pieces_of_the_original(golden, tmp_path):
    tokenizer = SwinBertTokenizer.from_pretrained(golden / "captioning")
    for row in json.loads((golden / "captioning" / "text_cleaning.json").read_text()):
        assert tokenizer.tokenize(row["cleaned"]) == row["tokens"]
    stored = json.loads((golden / "captioning" / "captions.json").read_text())
    assert tokenizer.tokenize(stored["captions"][0]) == stored["tokens"][0] != tokenizer.tokenize("a man")
    outputs = json.loads((golden / "captioning" / "untied_seq2seq" / "generate_outputs.json").read_text())
    texts = outputs["greedy"]["captions"]
    assert [
        [tokenizer.decode(ids, skip_special_tokens=True) for ids in row] for row in outputs["greedy"]["ids"]
    ] == texts
    assert {tokenizer.get_random_token() for _ in range(2000)} <= set(tokenizer._pieces)
    assert tokenizer.convert_tokens_to_ids("never seen") == tokenizer.tokenizer.unk_id
    tokenizer.save_pretrained(tmp_path)
    assert len(SwinBertTokenizer.from_pretrained(tmp_path)) == 58


def test_lower_case_is_asked_for_only_where_no_file_says(golden, tmp_path):
    folder = write_vocabulary(tmp_path / "cased", [*WORDS, "Man"])
    assert SwinBertTokenizer.from_pretrained(folder, do_lower_case=False).tokenize("Man man") == ["Man", "man"]
    assert SwinBertTokenizer.from_pretrained(folder, do_lower_case=True).tokenize("Man man") == ["man", "man"]
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert SwinBertTokenizer.from_pretrained(folder, do_lower_case=False).tokenize("Man man") == ["man", "man"]
