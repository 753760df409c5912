"""SwinBERT's state dicts as ours: every tensor, its arguments, its broken files (numbers: model/test_swinbert_numbers.py)."""

import json

import pytest
import torch
from safetensors.torch import load_file
from swinbert_writer import published_state

from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.video import FrameSampling
from albertkit.captioning.video_swin import VideoSwinBackbone
from albertkit.errors import CheckpointError, DataError
from albertkit.files import read_json
from albertkit.swinbert.checkpoints import convert_swinbert, load_swinbert

SWIN = dict(
    embed_dim=13,
    depths=[2],
    num_heads=[1],
    window_size=[2, 1, 2],
    patch_size=[2, 8, 8],
    patch_norm=False,
)


def test_every_tensor_is_accounted_for(golden):
    _, plain = load_swinbert(golden / "captioning/untied_seq2seq")[:2]
    assert plain.left_out == {"cls_img_feat.*": 6}
    assert plain.tied is False
    assert plain.fc is False
    assert load_swinbert(golden / "captioning/tied_text_b_smoothing_dropworst")[1].tied
    model, learned = load_swinbert(golden / "captioning/learned_mask_hard")[:2]
    stored = load_file(golden / "captioning/learned_mask_hard/model.safetensors")
    tokens = round(stored["learn_vid_att.weight"].numel() ** 0.5)
    assert learned.fc
    assert learned.gate_tokens == tokens
    assert model.caption.video_attention == "legacy"
    assert model.caption.hard_gate is True
    assert torch.equal(model.albert.video_gate, stored["learn_vid_att.weight"])


@pytest.fixture
def training(golden, tmp_path):
    """What a training of SwinBERT leaves: a checkpoint in half precision, its arguments, its vocabulary."""
    state = load_file(golden / "captioning/learned_mask_hard/model.safetensors")
    backbone = VideoSwinBackbone(**SWIN)
    state = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in {**state, **published_state(backbone)}.items()
    }
    folder = tmp_path / "output/checkpoint-1-20"
    folder.mkdir(parents=True)
    torch.save(state, folder / "model.bin")
    heads = read_json(golden / "captioning/learned_mask_hard/config.json")["num_attention_heads"]
    arguments = dict(
        max_num_frames=12,
        img_res=8,
        num_attention_heads=heads,
        drop_out=0.2,
        sparse_mask_soft2hard=True,
    )
    (tmp_path / "output/log").mkdir()
    (tmp_path / "output/log/args.json").write_text(json.dumps(arguments | {"num_beams": 3}))
    (tmp_path / "output/tokenizer").mkdir()
    vocabulary = (golden / "captioning/vocab.txt").read_bytes()
    (tmp_path / "output/tokenizer/vocab.txt").write_bytes(vocabulary)
    return folder


def test_a_training_without_configuration(golden, training, tmp_path):
    original = read_json(golden / "captioning/learned_mask_hard/config.json")
    layers = original["num_hidden_layers"]
    width = original["hidden_size"]
    report = convert_swinbert(training, tmp_path / "captioner")
    assert report.left_out == {}
    assert report.backbone_tensors == len(published_state(VideoSwinBackbone(**SWIN)))
    assert report.training["max_num_frames"] == 12
    assert report.training["img_res"] == 8
    captioner = VideoCaptioner.from_pretrained(tmp_path / "captioner")
    model, config = captioner.model, captioner.model.config
    assert config.num_hidden_layers == layers
    assert config.num_hidden_groups == layers
    assert config.embedding_size == width
    for name in ("num_attention_heads", "intermediate_size", "vocab_size"):
        assert getattr(config, name) == original[name]
    assert config.hidden_dropout_prob == 0.2
    assert model.caption.hard_gate is True
    assert model.caption.backbone_dim == 13
    assert model.caption.img_feature_dim == 10
    assert captioner.tokenizer.vocab_size == config.vocab_size
    assert captioner.sampling == FrameSampling(num_frames=12, size=8, rounding="floor")
    assert captioner.generation.num_beams == 3
    assert captioner.generation.swinbert is True
    assert read_json(tmp_path / "captioner/provenance.json")["swinbert"]["img_res"] == 8
    (captions,) = captioner.describe(
        captioner.context(torch.zeros(1, 12, 8, 8, 3, dtype=torch.uint8))
    )
    assert len(captions) == 1
    with pytest.raises(CheckpointError, match=r"\[exists\]"):
        convert_swinbert(training, tmp_path / "captioner")
    with pytest.raises(CheckpointError, match="is a captioner already"):
        convert_swinbert(tmp_path / "captioner", tmp_path / "again")


def test_what_no_file_says_is_noted(training):
    (training.parent / "log/args.json").unlink()
    model, report = load_swinbert(training / "model.bin")[:2]
    assert model.config.num_attention_heads == 1  # one for 64 of 32
    assert "1 attention heads" in report.notes[0]


def test_a_file_of_something_else_is_refused(training, tmp_path):
    with pytest.raises(DataError, match="not-found"):
        load_swinbert(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="missing-file"):
        load_swinbert(tmp_path)
    model_file = training / "model.bin"
    state = torch.load(model_file, weights_only=True)
    for change, slug, fact in (
        (
            {"trans_encoder.bert.adapter.weight": torch.ones(3)},
            "weights-mismatch",
            "not in the model",
        ),
        ({"signal_head.weight": torch.ones(3)}, "weights-mismatch", "signal_head.weight"),
        ({"fc.weight": torch.ones(3, 3)}, "weights-mismatch", "fc and img_embedding"),
    ):
        torch.save({**state, **change}, model_file)
        with pytest.raises(CheckpointError, match=slug) as raised:
            load_swinbert(training)
        assert fact in str(raised.value)
    for name, slug in (
        ("bert.embeddings.word_embeddings.weight", "lacks"),
        ("fc.bias", "only a part"),
    ):
        torch.save(
            {key: value for key, value in state.items() if not key.endswith(name)}, model_file
        )
        with pytest.raises(CheckpointError, match=slug):
            load_swinbert(training)
    torch.save({"linear.weight": torch.ones(2, 2)}, model_file)
    with pytest.raises(CheckpointError, match="not of SwinBERT"):
        load_swinbert(training)
    torch.save(torch.nn.Linear(2, 2), model_file)  # a pickled object is never executed
    with pytest.raises(CheckpointError, match=r"\[corrupt\]"):
        load_swinbert(training)
    model_file.write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(CheckpointError, match=r"\[corrupt\]"):
        load_swinbert(training)


def test_a_vocabulary_of_another_size_is_refused(training, tmp_path):
    vocabulary = training.parent / "tokenizer/vocab.txt"
    vocabulary.write_text(vocabulary.read_text() + "beyond\n")
    with pytest.raises(CheckpointError, match="wrong-tokenizer"):
        convert_swinbert(training, tmp_path / "captioner")
    assert not (tmp_path / "captioner").exists()


def test_a_checkpoint_is_converted(golden, tmp_path, run_command):
    def run(name, *flags):
        source = golden / "captioning/untied_seq2seq"
        return run_command("migrate", "swinbert-checkpoint", source, tmp_path / name, *flags)

    assert "no-tokenizer" in run("out").err
    printed = run("out", "--tokenizer", golden / "captioning").out
    assert "6 cls_img_feat.*" in printed
    assert "- no swin.* in the file" in printed
    report = run("again", "--tokenizer", golden / "captioning", "--json").json
    assert report["tied"] is False
    assert report["text_model"] == "bert"
