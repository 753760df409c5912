"""Which pipeline a folder is: made here, by a training, by transformers, by sentence-transformers; and what is refused."""

import shutil

import pytest
import torch

from albertkit.captioning.backbones import load_backbone
from albertkit.captioning.captioner import VideoCaptioner
from albertkit.captioning.layers import CaptionConfig
from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.config import AlbertConfig
from albertkit.conversion.initial import init_model
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.errors import CheckpointError, ConfigError
from albertkit.files import read_json, write_json
from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
)
from albertkit.pipelines.load import KINDS, load_pipeline, load_pipelines
from albertkit.pipelines.predict import ask
from albertkit.tables.columns import Columns
from albertkit.tasks.finetune import finetune
from albertkit.tasks.models import save_task_model
from albertkit.tasks.registry import find_task
from albertkit.tasks.settings import FinetuneSettings
from albertkit.tokenizer import AlbertTokenizer
from benchmarks.learn_shapes import SAMPLING, SHELL
from benchmarks.moving_shapes import make_clips

HEADS = [
    ("fill-mask", "AlbertForPreTraining", {}),
    ("fill-mask", "AlbertForMaskedLM", {}),
    ("classify", "AlbertForSequenceClassification", {"num_labels": 3}),
    (
        "classify",
        "AlbertForSequenceClassification",
        {"num_labels": 3, "problem_type": "multi_label_classification"},
    ),
    ("score", "AlbertForSequenceClassification", {"num_labels": 1}),
    ("tag", "AlbertForTokenClassification", {"num_labels": 3}),
    ("answer", "AlbertForQuestionAnswering", {}),
    ("choose", "AlbertForMultipleChoice", {}),
]


@pytest.mark.parametrize(("kind", "name", "settings"), HEADS)
def test_folders_of_transformers_are_what_their_class_is(tmp_path, tokenizer, kind, name, settings):
    import transformers

    config = transformers.AlbertConfig(
        vocab_size=tokenizer.vocab_size,
        embedding_size=16,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        **settings,
    )
    getattr(transformers, name)(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    pipeline = load_pipeline(tmp_path)
    assert pipeline.kind == kind
    assert pipeline(pipeline.example)
    assert next(iter(load_pipelines(tmp_path))) == kind
    labels = pipeline(pipeline.example).get("probabilities")
    if kind == "classify":
        assert list(labels) == ["LABEL_0", "LABEL_1", "LABEL_2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory, tokenizer, make_model):
    """What a short fine-tuning left."""
    folder = tmp_path_factory.mktemp("run")
    make_model(AlbertForPreTraining, initializer_range=0.05).save_pretrained(
        folder / "start", tokenizer
    )
    rows = [
        f"the {'fox' if n % 2 else 'dog'} {'brew ' * (n % 5)}\t{'F' if n % 2 else 'D'}"
        for n in range(40)
    ]
    (folder / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    shutil.copy(folder / "train.tsv", folder / "dev.tsv")
    settings = FinetuneSettings(lr=1e-3, epochs=1, batch_size=16, length=32, precision="fp32")
    finetune(
        "classify",
        folder / "start",
        folder,
        folder / "run",
        settings,
        columns=Columns(text="sentence", label="label"),
    )
    return folder / "run"


def test_a_run_of_a_fine_tuning_is_its_best_model(run):
    pipeline = load_pipeline(run, precision="fp32")
    assert pipeline.kind == "classify"
    assert pipeline.task.length == 32
    assert list(pipeline("the fox")["probabilities"]) == ["D", "F"]
    assert pipeline("the fox") == load_pipeline(run / "best", precision="fp32")("the fox")


@pytest.mark.parametrize("subfolder", [".", "best"])
def test_a_sentence_encoder_is_one_and_so_is_its_run(tmp_path, tokenizer, make_model, subfolder):
    encoder = SentenceEncoder(make_model(AlbertModel), tokenizer, pooling="cls", max_length=16)
    encoder.save_pretrained(tmp_path / subfolder)
    pipeline = load_pipeline(tmp_path)
    assert pipeline.kind == "embed"
    assert pipeline.encoder.pooling == "cls"
    assert list(load_pipelines(tmp_path)) == ["embed"]


@pytest.fixture(scope="module")
def captioner(tmp_path_factory):
    """Untrained, and a clip."""
    folder = tmp_path_factory.mktemp("captioner")
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer/vocab.txt").write_text(
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nred\ncircle\n"
    )
    init_model(folder / "shell", folder / "tokenizer", size="tiny", **SHELL)
    torch.manual_seed(0)
    backbone = load_backbone("conv3d", {"width": 64})
    grid = backbone.grid(SAMPLING.num_frames, SAMPLING.size)
    config = CaptionConfig(img_feature_dim=64, grid=grid).stored_in(
        AlbertConfig.from_pretrained(folder / "shell")
    )
    words = AlbertTokenizer.from_pretrained(folder / "shell")
    VideoCaptioner(
        AlbertForImageCaptioning(config), words, backbone, SAMPLING, grid
    ).save_pretrained(folder / "model")
    make_clips(folder / "clips", 20)
    return folder / "model", next((folder / "clips").rglob("*.mp4"))


def test_a_captioner_captions(captioner):
    model, clip = captioner
    pipeline = load_pipeline(model)
    assert pipeline.kind == "caption"
    result = pipeline(clip, num_captions=2, num_beams=2)
    (expected,) = VideoCaptioner.from_pretrained(model).caption(clip, num_captions=2, num_beams=2)
    assert [caption["text"] for caption in result["captions"]] == [
        caption.text for caption in expected
    ]
    assert result["captions"][0]["log_probability"] <= 0
    assert pipeline([clip, clip])[1]["captions"][0]["text"] == pipeline(clip)["captions"][0]["text"]
    with pytest.raises(ConfigError, match="no option `captions`"):
        pipeline(clip, captions=2)


def test_a_captioner_asked_about_text_names_the_command_for_videos(captioner, error_of):
    error = error_of(ask, captioner[0], ["a red circle"])
    assert error.slug == "wrong-model"
    assert "albertkit caption predict" in error.hint


REFUSED = [
    (AlbertForPreTraining, {}, "classify", "wrong-model"),
    (AlbertForPreTraining, {}, "caption", "wrong-model"),
    (AlbertForPreTraining, {}, "fill-masks", "unknown-name"),
    (AlbertForMaskedLM, {}, "sentence-order", "wrong-model"),
    (AlbertModel, {}, None, "wrong-model"),
    (AlbertModel, {}, "fill-mask", "wrong-model"),
    (AlbertForSequenceClassification, {}, "fill-mask", "wrong-model"),
    (AlbertForTokenClassification, {}, "classify", "wrong-model"),
    (
        AlbertForSequenceClassification,
        {"num_labels": 2, "problem_type": "regression"},
        None,
        "wrong-model",
    ),
]


@pytest.mark.parametrize(("model_class", "changes", "kind", "slug"), REFUSED)
def test_a_kind_without_a_head_is_refused(folder, model_class, changes, kind, slug, error_of):
    error = error_of(load_pipeline, folder(model_class, **changes), kind)
    assert error.slug == slug
    assert error.hint


def test_every_kind_is_one_of_the_folders_above():
    kinds = {kind for kind, _, _ in HEADS} | {"embed", "caption", "sentence-order"}
    assert kinds == set(KINDS)


@pytest.mark.parametrize(
    "model_class", [AlbertForMultipleChoice, AlbertForQuestionAnswering, AlbertForPreTraining]
)
def test_any_model_can_be_asked_for_vectors(folder, model_class):
    assert load_pipeline(folder(model_class), "embed")("the fox")["embedding"].shape == (64,)


def test_googles_beam_head_may_say_that_there_is_no_answer(folder):
    answer = load_pipeline(folder(AlbertForBeamQuestionAnswering))
    assert "null_odds" in answer(answer.example)


def test_folders_that_are_none_are_named(folder, tmp_path, slug_of):
    path = folder(AlbertForPreTraining)
    assert slug_of(load_pipeline, tmp_path / "nowhere") == "not-found"
    (tmp_path / "empty").mkdir()
    assert slug_of(load_pipeline, tmp_path / "empty") == "not-found"
    assert slug_of(load_pipeline, path, precision="fp8") == "unknown-name"
    assert slug_of(load_pipeline, path, device="tpu") == "no-device"
    for name in ("spiece.model", "tokenizer.json"):
        (path / name).unlink()
    for kind in (None, "sentence-order", "embed"):
        assert slug_of(load_pipeline, path, kind=kind) == "no-tokenizer"


def test_parts_that_do_not_fit_are_refused(folder, tmp_path, tokenizer, make_model, slug_of):
    path = folder(AlbertForPreTraining, vocab_size=tokenizer.vocab_size - 6)
    for kind in (None, "embed"):
        assert slug_of(load_pipeline, path, kind=kind) == "wrong-tokenizer"
    task = find_task("classify", Columns(text="text", label="label")).with_changes(
        labels=("a", "b"), length=32
    )
    save_task_model(
        tmp_path, make_model(AlbertForSequenceClassification, **task.head()), tokenizer, task
    )
    assert load_pipeline(tmp_path).kind == "classify"
    for change in ({"labels": ["a", "b", "c"]}, {"length": 512}):
        write_json(tmp_path / "task.json", {**task.to_dict(), **change})
        assert slug_of(load_pipeline, tmp_path) == "bad-file"
        assert read_json(tmp_path / "task.json", "task")


def test_a_model_asked_for_everything_has_one_engine(folder):
    pipelines = load_pipelines(folder(AlbertForPreTraining))
    assert list(pipelines) == ["fill-mask", "sentence-order", "embed"]
    assert len({id(pipeline.engine) for pipeline in pipelines.values()}) == 1
    for pipeline in pipelines.values():
        assert pipeline(pipeline.example)


def test_error_says_what_the_folder_can_do(folder):
    with pytest.raises(
        CheckpointError, match=r"`.*` .AlbertForSequenceClassification. has no trained head for tag"
    ) as caught:
        load_pipeline(folder(AlbertForSequenceClassification), "tag")
    assert "it can classify" in caught.value.hint
