"""ONNX folders as models: `load_onnx` as the class it came from; pipelines, predict, evaluate, serve, comparison, vectors."""

import pytest
import torch
from numpy.testing import assert_allclose
from record_files import read_records

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.folder import Projection
from albertkit.engines.onnx import is_onnx_folder, load_onnx
from albertkit.errors import AlbertKitError, ConfigError
from albertkit.export.onnx import export_onnx
from albertkit.model import AlbertForPreTraining, AlbertForSequenceClassification, AlbertModel
from albertkit.pipelines.compare_precision import compare_precision
from albertkit.pipelines.load import load_pipeline, load_pipelines
from albertkit.pipelines.predict import predict
from albertkit.tables.columns import Columns
from albertkit.tasks.evaluate import evaluate_task
from albertkit.tasks.models import save_task_model
from albertkit.tasks.registry import find_task

# Padding at both sides, and a hole
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 1, 1, 0, 1, 1]])
IDS = torch.arange(18).view(3, 6) % 40 + 5


def test_what_only_the_class_can_do_is_refused_in_our_words(folder, tmp_path, slug_of):
    export_onnx(folder(AlbertForSequenceClassification), tmp_path / "out")
    model = load_onnx(tmp_path / "out")
    for arguments in (
        {"labels": torch.tensor([0])},
        {"output_hidden_states": True},
        {"inputs_embeds": torch.zeros(1, 2, 32)},
    ):
        with pytest.raises(ConfigError, match=r"\[bad-value\].*ONNX Runtime takes no"):
            model(IDS, **arguments)
    model(IDS, labels=None, output_attentions=False)
    long = torch.full((1, model.config.max_position_embeddings + 1), 7)
    for wrong, slug in (
        (long, "too-large"),
        (torch.tensor([[7, 96]]), "wrong-tokenizer"),
        (torch.tensor([[7, -1]]), "wrong-tokenizer"),
        (torch.tensor([7]), "bad-value"),
    ):
        with pytest.raises(AlbertKitError, match=rf"\[{slug}\]"):
            model(wrong)
    with pytest.raises(ConfigError, match="no input_ids"):
        model()
    assert slug_of(model, IDS, MASK * 0) == "empty"


@pytest.mark.parametrize("change", ["output", "input", "type"])
def test_graphs_of_other_programs_are_refused_by_their_names(folder, tmp_path, change, slug_of):
    import onnx

    path = tmp_path / "out/model.onnx"
    export_onnx(folder(AlbertForSequenceClassification), path.parent)
    model = onnx.load(path)
    if change == "output":
        model.graph.node.append(onnx.helper.make_node("Identity", ["logits"], ["output_0"]))
        model.graph.output[0].name = "output_0"
    elif change == "input":
        model.graph.input.append(
            onnx.helper.make_tensor_value_info("mask", onnx.TensorProto.INT64, [1])
        )
    else:
        model.graph.node.insert(
            0, onnx.helper.make_node("Cast", ["ids32"], ["input_ids"], to=onnx.TensorProto.INT64)
        )
        value = next(value for value in model.graph.input if value.name == "input_ids")
        value.name = "ids32"
        value.type.tensor_type.elem_type = onnx.TensorProto.INT32
    onnx.save(model, path)
    assert slug_of(load_onnx, path.parent) == "unsupported"


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_fine_tuned_model_predicts_and_is_evaluated_as_its_own_folder(
    tmp_path, make_model, tokenizer, precision
):
    task = find_task("classify", Columns(text="text", label="label")).with_changes(
        labels=("a", "b"), length=32
    )
    model = make_model(AlbertForSequenceClassification, **task.head())
    save_task_model(tmp_path / "own", model, tokenizer, task)
    (tmp_path / "dev.tsv").write_text(
        "text\tlabel\nthe quick fox\ta\nlazy wizards brew\tb\nover calm rivers\ta\n"
    )
    export_onnx(tmp_path / "own", tmp_path / "onnx", precision=precision, force=True)
    predictions = {}
    for name in ("own", "onnx"):
        report = predict(
            tmp_path / name, tmp_path / "dev.tsv", tmp_path / f"{name}.jsonl", precision="fp32"
        )
        predictions[name] = read_records(tmp_path / f"{name}.jsonl")
    assert (precision == "int8") == any("exported in int8" in note for note in report.notes)
    for ours, theirs in zip(predictions["own"], predictions["onnx"], strict=True):
        near = pytest.approx(theirs["probabilities"]["a"], abs=1e-4 if precision == "fp32" else 0.1)
        assert ours["probabilities"]["a"] == near
    if precision == "fp32":
        scores = [
            evaluate_task(tmp_path / name, tmp_path / "dev.tsv").scores for name in ("own", "onnx")
        ]
        assert scores[0]["accuracy"] == scores[1]["accuracy"]
    pipeline = load_pipeline(tmp_path / "onnx")
    assert pipeline.kind == "classify"
    assert pipeline.precision == precision
    exported_answer = load_pipelines(tmp_path / "onnx")["classify"]("the fox")
    assert pipeline("the fox")["probabilities"]["a"] == pytest.approx(
        exported_answer["probabilities"]["a"]
    )
    from albertkit.serve.service import Models

    served = Models({"exported": str(tmp_path / "onnx")})
    assert (
        served.find_model_and_pipeline("classify", None)[0]
        == served.tokenizer(None)[0]
        == "exported"
    )
    with pytest.raises(Exception, match="passes"):
        served.find_model_and_pipeline("passes", None)


def test_a_pretrained_model_fills_masks_and_orders_sentences(folder, tmp_path, slug_of):
    source = folder(AlbertForPreTraining)
    export_onnx(source, tmp_path / "onnx")
    assert is_onnx_folder(tmp_path / "onnx")
    assert not is_onnx_folder(source)
    ours = load_pipelines(tmp_path / "onnx")
    theirs = load_pipelines(source, precision="fp32")
    assert list(ours) == ["fill-mask", "sentence-order"]
    text = "the [MASK] fox jumps over a [MASK] dog"
    for our_guesses, their_guesses in zip(
        ours["fill-mask"](text)["masks"], theirs["fill-mask"](text)["masks"], strict=True
    ):
        assert [guess["id"] for guess in our_guesses] == [guess["id"] for guess in their_guesses]
        assert_allclose(
            [g["probability"] for g in our_guesses],
            [g["probability"] for g in their_guesses],
            atol=1e-5,
        )
    pair = ("the fox", "a dog")
    in_order = theirs["sentence-order"](pair)["in_order"]
    assert ours["sentence-order"](pair)["in_order"] == pytest.approx(in_order, abs=1e-5)
    assert list(load_pipelines(tmp_path / "onnx", device="meta")) == ["fill-mask", "sentence-order"]
    assert slug_of(load_pipeline, tmp_path / "onnx", "embed") == "wrong-model"


@pytest.mark.parametrize("normalize", [True, False])
def test_a_sentence_encoder_gives_the_same_vectors(tmp_path, make_model, tokenizer, normalize):
    torch.manual_seed(0)
    encoder = SentenceEncoder(
        make_model(AlbertModel), tokenizer, "mean", 20, Projection(64, 24), normalize
    ).eval()
    encoder.save_pretrained(tmp_path / "own")
    export_onnx(tmp_path / "own", tmp_path / "onnx")
    texts = [
        "the quick brown fox",
        "wizards",
        "seven old wizards brew strong potions near calm rivers " * 3,
        "",
    ]
    exported = SentenceEncoder.from_pretrained(tmp_path / "onnx")
    assert exported.dimension == 24
    assert exported.max_length == 20
    with pytest.warns(UserWarning, match="longer than 20"):
        ours, theirs = exported.encode(texts), encoder.encode(texts)
    assert_allclose(ours, theirs, atol=3e-5)
    pipelines = load_pipelines(tmp_path / "onnx")
    assert list(pipelines) == ["embed"]
    assert_allclose(pipelines["embed"](texts[0])["embedding"], ours[0], atol=1e-6)


def test_an_encoder_alone_is_pooled_as_its_own_folder(folder, tmp_path):
    source = folder(AlbertModel)
    export_onnx(source, tmp_path / "onnx")
    texts = ["the quick brown fox", "wizards"]
    ours, theirs = (
        SentenceEncoder.from_pretrained(path, "cls").encode(texts)
        for path in (tmp_path / "onnx", source)
    )
    assert_allclose(ours, theirs, atol=3e-5)


def test_comparison_is_with_the_folder_it_came_from(folder, tmp_path):
    source = folder(AlbertForSequenceClassification)
    report = export_onnx(source, tmp_path / "onnx")
    comparison = compare_precision(tmp_path / "onnx")
    assert comparison.precision == "fp32"
    assert comparison.cosine_min == pytest.approx(report.agreement.cosine_min, abs=1e-6)
    assert str(source) in comparison.notes[0]
    source.rename(tmp_path / "moved")
    with pytest.raises(
        AlbertKitError, match=r"\[missing-file\].*the folder that it was exported from is not there"
    ):
        compare_precision(tmp_path / "onnx")


def test_a_command_that_needs_weights_says_what_reads_an_exported_model(folder, tmp_path):
    export_onnx(folder(AlbertForSequenceClassification), tmp_path / "onnx")
    with pytest.raises(AlbertKitError) as caught:
        AlbertForSequenceClassification.from_pretrained(tmp_path / "onnx")
    assert caught.value.slug == "missing-file"
    assert "albertkit.load_onnx" in caught.value.hint
