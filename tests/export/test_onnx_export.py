"""`export_onnx` and `load_onnx`: folders against transformers and against the class they came from; what is refused."""

import json
import re
import shutil
import sys
from functools import cache

import numpy as np
import onnxruntime as ort
import pytest
import torch
from numpy.testing import assert_allclose
from record_files import write_json, write_lines
from torch.testing import assert_close

from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.embeddings.folder import Projection
from albertkit.engines.onnx import OnnxModel, load_onnx
from albertkit.errors import AlbertKitError, CheckpointError, ConfigError
from albertkit.export import graph, onnx
from albertkit.export import graph as quantized
from albertkit.export.onnx import export_onnx
from albertkit.files import read_json
from albertkit.folder_facts import FolderFacts
from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
    PackedBatch,
)
from albertkit.pipelines.compare_precision import compare_states, largest_difference_and_magnitude
from albertkit.pipelines.load import infer_task
from albertkit.pipelines.text_pipelines import BY_TASK
from albertkit.tables.bad_rows import BadRows
from albertkit.tasks.data import read_split
from albertkit.tasks.evaluate import evaluate_task
from albertkit.tasks.models import load_task_model, run_model, save_task_model
from albertkit.tasks.registry import Columns, find_task
from albertkit.tasks.texts import TextClassification

GOLDEN = (
    "masked_lm", "multiple_choice", "pretraining_g1", "pretraining_g2_inner2", "question_answering", "seqcls_3class",
    "seqcls_multilabel", "seqcls_regression", "token_cls",
)  # fmt: skip


@pytest.fixture(scope="module")
def exported(make_model, tokenizer, tmp_path_factory):
    """`exported(class)`: a folder with `model` and its export `onnx`; made once, not to be written to."""

    @cache
    def export(model_class):
        root = tmp_path_factory.mktemp(model_class.__name__)
        make_model(model_class).save_pretrained(root / "model", tokenizer)
        export_onnx(root / "model", root / "onnx")
        return root

    return export


# --- others' numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN)
def test_what_transformers_printed(golden, tmp_path, name):
    report = export_onnx(golden / "hf" / name, tmp_path / "out")
    assert report.agreement.source == "random tokens"  # there is no tokenizer beside these
    session = ort.InferenceSession(tmp_path / "out/model.onnx", providers=["CPUExecutionProvider"])
    golden_inputs, printed = (
        np.load(golden / "hf" / name / f"{part}.npz") for part in ("inputs", "outputs")
    )
    inputs = {key: golden_inputs[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    names = [output.name for output in session.get_outputs()]
    assert names
    for output, actual in zip(names, session.run(names, inputs), strict=True):
        tokens = inputs["attention_mask"].astype(bool) if actual.ndim == 3 else ...
        assert_allclose(actual[tokens], printed[output][tokens], atol=2e-5)
    shifted = {**inputs, "token_type_ids": 1 - inputs["token_type_ids"]}
    assert np.abs(session.run(names, shifted)[0] - printed[names[0]]).max() > 1e-4


def test_transformers_tokenizer_and_model_on_text(exported):
    import transformers

    root = exported(AlbertForMaskedLM)
    tokenizer = transformers.AutoTokenizer.from_pretrained(root / "onnx")
    texts = ["the quick brown fox", "a lazy dog jumps over calm rivers near seven old wizards"]
    inputs = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=True)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(root / "model")
    with torch.no_grad():
        expected = theirs(**inputs).logits.numpy()
    session = ort.InferenceSession(root / "onnx/model.onnx", providers=["CPUExecutionProvider"])
    actual = session.run(["logits"], {name: values.numpy() for name, values in inputs.items()})[0]
    real = inputs["attention_mask"].numpy().astype(bool)
    assert_allclose(actual[real], expected[real], atol=2e-5)


# --- every class ----------------------------------------------------------------------------------


def batch_of(tokenizer, *texts):
    rows = [[tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id] for text in texts]
    return PackedBatch.from_sequences(rows, masked_positions=[[1], [], [2, 3]])


# Padding at both sides, and a hole
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 1, 1, 0, 1, 1]])
IDS = torch.arange(18).view(3, 6) % 40 + 5
TEXTS = ("the quick brown fox", "wizards", "seven old wizards brew strong potions near calm rivers")


def outputs(model, batch):
    with torch.inference_mode():
        if isinstance(model, AlbertModel):
            return list(model.encode(batch))
        if isinstance(model, AlbertForBeamQuestionAnswering):
            return list(model.packed_beams(batch).values())
        logits = model.packed_logits(batch)
    return list(logits) if isinstance(logits, tuple) else [logits]


def check_padded(ours, theirs):
    """Compare the outputs of two models for padded rows."""
    inputs = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": IDS % 2}
    if isinstance(theirs, AlbertForMultipleChoice):
        inputs = {name: values[None] for name, values in inputs.items()}
    if isinstance(theirs, AlbertForBeamQuestionAnswering):
        inputs = {name: values[:2] for name, values in inputs.items()}
        inputs["p_mask"] = (IDS[:2] % 5 == 0).long()
    with torch.no_grad():
        actual = ours(**inputs)
        expected = theirs(**inputs)
    assert type(actual) is type(expected)
    assert list(actual) == list(expected)
    of_spans = isinstance(theirs, AlbertForQuestionAnswering)
    for name, values in expected.items():
        real = MASK.bool() if of_spans else torch.ones(values.shape, dtype=torch.bool)
        assert actual[name].shape == values.shape
        assert_allclose(actual[name][real], values[real], atol=3e-5, err_msg=name)
        assert not of_spans or (actual[name][~real] == torch.finfo(torch.float32).min).all()
    assert isinstance(ours(inputs["input_ids"], return_dict=False), tuple)


def test_every_class_runs_as_what_it_was(exported, tokenizer, model_class):
    root = exported(model_class)
    report = read_json(root / "onnx/export.json")
    assert report["model_class"] == model_class.__name__
    assert report["max_abs_difference"] < 1e-4
    assert report["agreement"]["cosine_min"] > 0.9999
    assert report["agreement"]["problems"] == []
    onnx_model = load_onnx(root / "onnx", num_threads=1)
    model = model_class.from_pretrained(root / "model")
    assert isinstance(onnx_model, model_class)
    assert isinstance(onnx_model, OnnxModel)
    assert onnx_model.config.hidden_size == 64
    assert onnx_model.tokenizer.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
    batch = batch_of(tokenizer, *TEXTS)
    for actual, expected in zip(outputs(onnx_model, batch), outputs(model, batch), strict=True):
        assert_close(actual, expected, atol=2e-5, rtol=1e-5)
    check_padded(onnx_model, model)


@pytest.mark.parametrize(
    "fine_tuned",
    [
        AlbertForSequenceClassification,
        AlbertForTokenClassification,
        AlbertForQuestionAnswering,
        AlbertForBeamQuestionAnswering,
        AlbertForMultipleChoice,
    ],
)
def test_tasks_take_it_for_their_model(exported, tokenizer, fine_tuned):
    root = exported(fine_tuned)
    model = fine_tuned.from_pretrained(root / "model")
    task = infer_task(model, FolderFacts.from_folder(root / "onnx"), tokenizer)
    assert task is not None
    pipeline = BY_TASK[task.kind](task, model, tokenizer, "fp32")
    inputs = [pipeline.parse(pipeline.example)]
    features = pipeline.features(inputs)
    actual, expected = (
        task.predictions(inputs, features, run_model(form, task, features, 512))
        for form in (load_onnx(root / "onnx"), model)
    )
    assert alike(actual, expected)
    assert not alike(actual, [{**expected[0], "id": "another"}])


def alike(actual, expected):
    """The same, numbers to 1e-4."""
    if isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(
            alike(actual[name], expected[name]) for name in expected
        )
    if isinstance(expected, list | tuple):
        return len(actual) == len(expected) and all(map(alike, actual, expected))
    return actual == (
        pytest.approx(expected, abs=1e-4) if isinstance(expected, float) else expected
    )


def test_tokens_at_other_places_than_the_first(exported):
    root = exported(AlbertForPreTraining)
    model = AlbertForPreTraining.from_pretrained(root / "model")
    ids = torch.randint(5, 56, (2, 9), generator=torch.Generator().manual_seed(0))
    batch = PackedBatch.from_padded(ids, torch.tensor([[0, 0, 1, 1, 1, 0, 1, 1, 1], [1] * 9]))
    for actual, expected in zip(
        outputs(load_onnx(root / "onnx"), batch), outputs(model, batch), strict=True
    ):
        assert_close(actual, expected, atol=2e-5, rtol=1e-5)


def test_masked_lm_head_of_a_pretrained_model(exported, folder, tmp_path):
    root = exported(AlbertForPreTraining)
    export_onnx(root / "model", tmp_path / "alone", masked_lm=True)
    ids = np.arange(5, 23).reshape(2, 9)
    batch = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }
    with_sentence_order, masked_lm_alone = (
        ort.InferenceSession(path / "model.onnx") for path in (root / "onnx", tmp_path / "alone")
    )
    assert [output.name for output in masked_lm_alone.get_outputs()] == ["logits"]
    expected = with_sentence_order.run(["prediction_logits"], batch)[0]
    np.testing.assert_array_equal(masked_lm_alone.run(["logits"], batch)[0], expected)
    assert type(load_onnx(tmp_path / "alone")).__name__ == "OnnxAlbertForMaskedLM"
    with pytest.raises(ConfigError, match="has no masked-LM head"):
        export_onnx(folder(AlbertForSequenceClassification), tmp_path / "out", masked_lm=True)


def test_what_lies_in_the_folder(folder, tmp_path):
    source = folder(AlbertForSequenceClassification, num_labels=3)
    config = read_json(source / "config.json")
    write_json(
        source / "config.json", {**config, "architectures": ["AlbertForSequenceClassification"]}
    )
    report = export_onnx(source, tmp_path / "out", precision="int8", force=True)
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"model.onnx", "config.json", "spiece.model", "tokenizer.json", "export.json"} <= names
    assert not any("safetensors" in name for name in names)
    exported = read_json(tmp_path / "out/config.json")
    # As transformers makes them up
    assert exported["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    assert exported["label2id"] == {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}
    assert read_json(tmp_path / "out/export.json") == json.loads(json.dumps(report.to_dict()))
    assert report.products["MatMulInteger"] == 3 * 6 + 2
    with pytest.raises(CheckpointError, match=r"error\[missing-file\]"):
        export_onnx(tmp_path / "out", tmp_path / "again")


def test_a_run_is_its_best_model(folder, tmp_path):
    shutil.copytree(folder(AlbertForPreTraining), tmp_path / "run/best")
    assert export_onnx(tmp_path / "run", tmp_path / "out").model_class == "AlbertForPreTraining"


def test_numbers_of_a_large_model_lie_beside_it(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx, "_MAX_FILE_BYTES", 1000)
    report = export_onnx(folder(AlbertForMaskedLM), tmp_path / "out")
    data_file = tmp_path / "out/model.onnx.data"
    assert report.megabytes * 1e6 >= data_file.stat().st_size > 50_000
    assert load_onnx(tmp_path / "out").config.vocab_size == 96


# --- sentence encoders ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pooling", "wide"),
    [
        ("mean", False),
        ("cls", True),
    ],
)
def test_vectors_of_a_sentence_encoder(folder, tmp_path, tokenizer, pooling, wide):
    albert = AlbertModel.from_pretrained(folder(AlbertModel))
    torch.manual_seed(1)
    projection = Projection(64, 96) if wide else None
    encoder = SentenceEncoder(albert, tokenizer, pooling, 32, projection, normalize=wide).eval()
    encoder.save_pretrained(tmp_path / "encoder")
    report = export_onnx(tmp_path / "encoder", tmp_path / "out")
    assert report.model_class == "SentenceEncoder"
    batch = batch_of(tokenizer, *TEXTS)
    outputs = load_onnx(tmp_path / "out").run(batch)
    assert outputs.keys() == {"last_hidden_state", "sentence_embedding"}
    expected = encoder.encode(list(TEXTS), precision="fp32")
    assert_allclose(outputs["sentence_embedding"].numpy(), expected, atol=1e-5)
    small = export_onnx(tmp_path / "encoder", tmp_path / "small", precision="int8")
    assert small.agreement.cosine_min > 0.99


def test_vectors_that_are_not_exported(folder, tmp_path, tokenizer):
    encoder = SentenceEncoder(
        AlbertModel.from_pretrained(folder(AlbertModel)), tokenizer, "max"
    ).eval()
    encoder.save_pretrained(tmp_path / "encoder")
    assert refused(tmp_path, tmp_path / "encoder").slug == "not-expressible"
    encoder = SentenceEncoder(encoder.albert, tokenizer, "mean").eval()
    encoder.save_pretrained(tmp_path / "mean")
    assert refused(tmp_path, tmp_path / "mean", data=tmp_path).slug == "wrong-model"


# --- agreement ------------------------------------------------------------------------------------


@pytest.fixture
def labelled(folder, tmp_path, tokenizer):
    """A classifier, and sentences labelled as it labels them itself."""
    rng = np.random.default_rng(0)
    words = " ".join(TEXTS).split()
    texts = [" ".join(rng.choice(words, rng.integers(1, 15))) for _ in range(200)]
    dev = tmp_path / "dev.tsv"
    lines = [f"{text}\t{'ab'[number % 2]}" for number, text in enumerate(texts)]
    write_lines(dev, ["text\tlabel", *lines])
    task = find_task("classify", Columns(text="text", label="label")).with_changes(
        labels=("a", "b"), length=32
    )
    model = AlbertForSequenceClassification.from_pretrained(folder(AlbertForSequenceClassification))
    source = tmp_path / "classifier"
    save_task_model(source, model, tokenizer, task)
    loaded = load_task_model(source)
    examples = read_split(task, dev, "dev", BadRows())
    features = task.features(examples, tokenizer, labelled=False)
    outputs = np.array(run_model(loaded.model, task, features, 4096))
    middle = np.median(outputs[:, 0] - outputs[:, 1])
    with torch.no_grad():
        loaded.model.classifier.bias[1] += float(middle)  # as many of one as of the other
    save_task_model(source, loaded.model, tokenizer, task)
    predictions = task.predictions(
        examples, features, run_model(loaded.model, task, features, 4096)
    )
    lines = [f"{text}\t{record['label']}" for text, record in zip(texts, predictions, strict=True)]
    write_lines(dev, ["text\tlabel", *lines])
    return source, dev


def crude(weight):
    """Weights of one bit: what int8 gone wrong looks like."""
    return np.where(weight > 0, 40, -40).astype(np.int8)


def test_the_metric_of_the_task(labelled, tmp_path):
    source, dev = labelled
    report = export_onnx(source, tmp_path / "out", data=dev)
    agreement = report.agreement
    assert agreement.metric == "accuracy"
    assert agreement.texts == 200
    assert agreement.source == str(dev)
    assert agreement.reference == 100
    assert agreement.found == 100
    assert agreement.top1 == 1
    assert evaluate_task(source, dev, precision="fp32").value == 1
    task, model, tokenizer = load_task_model(source)
    exported = load_onnx(tmp_path / "out")
    assert read_json(tmp_path / "out/task.json")["kind"] == "classification"
    features = task.features(
        list(task.examples(dev, split="dev", labelled=False, bad_rows=None)),
        tokenizer,
        labelled=False,
    )
    ours, theirs = (np.array(run_model(form, task, features, 512)) for form in (exported, model))
    assert_allclose(ours, theirs, atol=1e-5)


def test_the_labelled_examples_may_lie_at_an_address(labelled, tmp_path, memory):
    source, dev = labelled
    memory.pipe("/labelled/dev.tsv", dev.read_bytes())
    report = export_onnx(source, tmp_path / "out", data="memory://labelled/dev.tsv")
    agreement = report.agreement
    assert agreement.texts == 200
    assert agreement.source == "memory://labelled/dev.tsv"
    assert agreement.reference == 100
    assert agreement.found == 100


def test_int8_gone_wrong_is_refused(labelled, tmp_path, monkeypatch):
    source, dev = labelled
    monkeypatch.setattr(quantized, "to_int8", crude)
    for data, reason in ((dev, "accuracy falls by"), (None, "of the first choices are the same")):
        error = refused(tmp_path, source, precision="int8", data=data)
        assert error.slug == "doubtful"
        assert reason in error.message
        assert "--force" in error.hint
        assert ("--data DATA" in error.hint) == (data is None)
        assert "bf16" not in error.hint  # which export does not have
    report = export_onnx(source, tmp_path / "out", precision="int8", data=dev, force=True)
    assert report.agreement.problems
    assert report.agreement.found < 99
    assert report.sections()[0].values["saved in spite of"]
    assert (tmp_path / "out/model.onnx").exists()


def test_a_metric_that_is_not_defined_is_refused(labelled, tmp_path, monkeypatch):
    source, dev = labelled
    monkeypatch.setattr(TextClassification, "score", lambda *_: {"accuracy": float("nan")})
    error = refused(tmp_path, source, precision="int8", data=dev)
    assert error.slug == "doubtful"
    assert "accuracy is nan" in error.message


def test_states_gone_wrong_are_refused(folder, tmp_path, monkeypatch):
    source = folder(AlbertModel)
    assert export_onnx(source, tmp_path / "good", precision="int8").agreement.cosine_mean > 0.99
    monkeypatch.setattr(quantized, "to_int8", crude)
    error = refused(tmp_path, source, precision="int8")
    assert error.slug == "doubtful"
    assert "mean cosine" in error.message


def test_a_perturbed_fp32_export_is_refused(folder, tmp_path, monkeypatch):
    source = folder(AlbertForPreTraining)
    exact = graph.to_array
    monkeypatch.setattr(
        graph,
        "to_array",
        lambda tensor: exact(tensor) * (1.001 if tensor.shape == (64, 128) else 1),
    )
    error = refused(tmp_path, source, force=True)
    assert error.slug == "internal-error"
    assert error.exit_code == 1


def wide(*rows):
    """Rows long enough to have a direction of their own."""
    return torch.nn.functional.pad(torch.tensor(rows, dtype=torch.float32), (0, 30))


def test_comparing():
    reference = [{"logits": wide([1, 2], [3, -4])}, {"logits": wide([0, 5])}]
    rotated = [{"logits": wide([2, 1], [3, -4])}, {"logits": wide([0, 5.5])}]
    with_itself = compare_states(reference, reference)
    assert (with_itself.cosine_mean, with_itself.cosine_min, with_itself.top1) == pytest.approx(
        (1, 1, 1)
    )
    with_rotated = compare_states(reference, rotated)
    assert with_rotated.cosine_min == pytest.approx(0.8)
    assert with_rotated.cosine_mean == pytest.approx((0.8 + 1 + 1) / 3)
    assert with_rotated.top1 == pytest.approx(2 / 3)
    assert largest_difference_and_magnitude(reference, rotated) == (1, 5)
    numbers = (
        [{"logits": torch.tensor([[1.0], [2.0], [2.0]])}],
        [{"logits": torch.tensor([[2.0], [1.0], [2.0]])}],
    )
    # One vector, not three of one number each
    assert compare_states(*numbers).cosine_min == pytest.approx(8 / 9)
    assert compare_states(*numbers).top1 is None
    hidden = [{"start_logits": torch.tensor([[1.0, 2.0, -3e38]])}]
    assert compare_states(hidden, hidden).cosine_min == pytest.approx(1)
    broken = [{"logits": wide([np.nan, 1], [1, 1])}, {"logits": wide([1, 1])}]
    # A number that is none agrees with nothing
    assert compare_states(reference, broken).cosine_min == -1
    assert not largest_difference_and_magnitude(reference, broken)[0] <= 1


# --- refusals -------------------------------------------------------------------------------------


def refused(tmp_path, source, **options):
    """The error of an export, which left nothing behind."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(AlbertKitError) as caught:
        export_onnx(source, tmp_path / "refused", **options)
    assert sorted(tmp_path.rglob("*")) == before
    return caught.value


def test_no_model_no_place_no_precision(folder, tmp_path):
    assert refused(tmp_path, tmp_path / "nowhere").slug == "not-found"
    source = folder(AlbertForMaskedLM)
    assert refused(tmp_path, source, precision="int4").slug == "unknown-name"
    assert refused(tmp_path, source, data=tmp_path / "dev.tsv").slug == "wrong-model"
    with pytest.raises(CheckpointError, match=r"error\[exists\]"):
        export_onnx(source, source)
    (tmp_path / "empty").mkdir()
    (source / "model.safetensors").unlink()
    assert refused(tmp_path, source).slug == "missing-file"


def test_a_captioner_is_not_exported(folder, tmp_path):
    source = folder(AlbertModel)
    (source / "captioner.json").write_text("{}")
    assert refused(tmp_path, source).slug == "wrong-model"


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_extra_is_named(folder, tmp_path, monkeypatch, package):
    source = folder(AlbertForMaskedLM)
    monkeypatch.setitem(sys.modules, package, None)
    error = refused(tmp_path, source)
    assert error.slug == "not-installed"
    assert f"`{package}`" in error.message
    assert "albertkit[onnx]" in error.hint


def test_folders_that_cannot_be_run(exported, tmp_path):
    root = exported(AlbertForMaskedLM)
    with pytest.raises(CheckpointError, match=r"(?s)error\[missing-file\].*albertkit export onnx"):
        load_onnx(root / "model")
    shutil.copytree(root / "onnx", tmp_path / "out")
    content = (tmp_path / "out/model.onnx").read_bytes()
    (tmp_path / "out/model.onnx").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=r"error\[corrupt\]"):
        load_onnx(tmp_path / "out")
    config = read_json(tmp_path / "out/config.json")
    write_json(tmp_path / "out/config.json", {**config, "architectures": ["AlbertForNothing"]})
    with pytest.raises(CheckpointError, match=r"error\[ambiguous\]"):
        load_onnx(tmp_path / "out")


# --- the command ----------------------------------------------------------------------------------


def test_the_command_prints_one_object_or_plain_lines(golden, tmp_path, run_command):
    result = run_command(
        "export", "onnx", golden / "hf/seqcls_3class", "--out", tmp_path / "out", "--json"
    )
    report = result.json
    assert report == read_json(tmp_path / "out/export.json")
    assert report["model_class"] == "AlbertForSequenceClassification"
    assert report["precision"] == "fp32"
    assert report["max_abs_difference"] < 1e-5
    assert report["agreement"]["top1"] == 1
    assert result.status == 0
    assert result.err == ""
    small = (
        golden / "hf/token_cls",
        "--out",
        tmp_path / "small",
        "--precision",
        "int8",
        "--force",
    )
    printed = run_command("export", "onnx", *small).out
    for line in (
        r"model +AlbertForTokenClassification, int8, 0\.\d MB",
        r"matrix products +19 MatMulInteger, 1 Gemm, 6 MatMul",
        r"compared on +random tokens, 64 texts",
    ):
        assert re.search(f"^{line}$", printed, re.M), line
    assert "on average" in printed
    assert "same choice" in printed
