"""Comparison of an engine with fp32: what it counts, against numpy, and that a damaged engine is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import albertkit
from albertkit.cli import main
from albertkit.config import AlbertConfig
from albertkit.engines import load_engine, on_engine
from albertkit.errors import AlbertKitError
from albertkit.inference import comparison
from albertkit.inference.comparison import Comparison, compare_precision, sample_batches
from albertkit.model import AlbertForPreTraining, AlbertForSequenceClassification
from albertkit.tasks.loading import save_task_model
from albertkit.tokenizer import AlbertTokenizer

SIZES = dict(
    vocab_size=300, embedding_size=32, hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256,
    max_position_embeddings=64,
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> AlbertTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    text = [sentence for _, document in zip(range(40), albertkit_documents(), strict=False) for sentence in document]
    (folder / "text.txt").write_text("\n".join(text), encoding="utf-8")
    albertkit.train_tokenizer([folder / "text.txt"], folder / "made", vocab_size=300)
    return AlbertTokenizer.from_pretrained(folder / "made")


def albertkit_documents():
    from albertkit.corpus.builtin import builtin_documents

    return builtin_documents()


@pytest.fixture
def pretrained(tmp_path: Path, tokenizer: AlbertTokenizer) -> Path:
    torch.manual_seed(0)
    AlbertForPreTraining(AlbertConfig(**SIZES)).save_pretrained(tmp_path / "model", tokenizer)
    return tmp_path / "model"


@pytest.fixture
def classifier(tmp_path: Path, tokenizer: AlbertTokenizer) -> tuple[Path, Path]:
    """A random classifier and examples labelled as it would: all right in fp32."""
    task = albertkit.find_task("classify", albertkit.Columns(text="text", label="label")).with_changes(
        labels=("a", "b", "c"), length=32
    )
    torch.manual_seed(1)
    model = AlbertForSequenceClassification(AlbertConfig(**SIZES, foreign={"num_labels": 3})).eval()
    save_task_model(tmp_path / "model", model, tokenizer, task)
    pipeline = albertkit.load_pipeline(tmp_path / "model", precision="fp32")
    texts = [sentence for _, document in zip(range(20), albertkit_documents(), strict=False) for sentence in document][
        :60
    ]
    rows = [f"{text}\t{pipeline(text)['label']}" for text in texts if "\t" not in text and '"' not in text]
    (tmp_path / "dev.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    return tmp_path / "model", tmp_path / "dev.tsv"


def damage(monkeypatch: pytest.MonkeyPatch, amount: float) -> None:
    """From now on engines are those of a model with noise in its weights."""

    def damaged(model, precision="auto"):
        import copy

        model = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in model.encoder_model.parameters():
                parameter += amount * parameter.std() * torch.randn_like(parameter)
        return load_engine(model, precision)

    monkeypatch.setattr(comparison, "load_engine", damaged)


def test_cosines_and_choices_are_those_of_numpy(pretrained: Path) -> None:
    found = compare_precision(pretrained)
    model = AlbertForPreTraining.from_pretrained(pretrained)
    batches, _ = sample_batches(AlbertTokenizer.from_pretrained(pretrained), model.config)
    other = on_engine(model, load_engine(model, "int8"))
    cosines, same = [], []
    with torch.no_grad():
        for batch in batches:
            for exact, near in zip(model.packed_logits(batch), other.packed_logits(batch), strict=True):
                a, b = exact.double().numpy(), near.double().numpy()
                cosines += ((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).tolist()
                same += (a.argmax(1) == b.argmax(1)).tolist()
    assert found.cosine_mean == pytest.approx(np.mean(cosines), abs=1e-5)
    assert found.cosine_min == pytest.approx(np.min(cosines), abs=1e-5)
    assert found.top1 == pytest.approx(np.mean(same))
    assert found.texts == 64
    assert not found.problems


def test_a_damaged_engine_is_refused(pretrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(monkeypatch, 0.7)
    found = compare_precision(pretrained)
    assert found.problems
    with pytest.raises(AlbertKitError, match=r"\[doubtful\]"):
        found.require(False, "use bf16")
    found.require(True, "")


def test_labels_decide(classifier: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    found = compare_precision(*classifier)
    assert found.reference == 100
    assert found.loss == pytest.approx(100 * (1 - found.top1))
    damage(monkeypatch, 1.5)
    broken = compare_precision(*classifier)
    assert broken.reference == 100
    assert broken.loss > 0.5
    assert "points" in broken.problems[0]


@pytest.mark.parametrize(("loss", "refused"), [(0.5, False), (0.51, True), (-3.0, False)])
def test_half_a_point(loss: float, refused: bool) -> None:
    made = Comparison("int8", "dev.tsv", 100, 0.5, 0.1, 0.5, "accuracy", 90.0, 90.0 - loss)
    assert bool(made.problems) is refused  # states do not count where labels do


def test_the_command(pretrained: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["compare-precision", str(pretrained), "--json"])
    assert json.loads(capsys.readouterr().out)["problems"] == []
    damage(monkeypatch, 0.7)
    with pytest.raises(SystemExit, match="1"):
        main(["compare-precision", str(pretrained)])
    assert "same as fp32  no" in capsys.readouterr().out
