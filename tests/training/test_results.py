"""What a terminal and the files show of a task's results."""

import builtins
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from albertkit.output.plots import TRAIN
from albertkit.output.render import print_sections, to_markdown, to_page
from albertkit.output.sections import to_json_value
from albertkit.tasks.finetune import FinetuneResult
from albertkit.tasks.metrics import EVERY_ROW, class_scorer, class_table, confusion
from albertkit.training.results import (
    largest_class_and_share,
    not_better_than_largest_class_note,
    result_sections,
    save_results,
)


@pytest.fixture(scope="module", autouse=True)
def copied_pictures():
    """Draw every picture."""


def results_of(names, right):
    """Predictions of which a share is right."""
    random = np.random.default_rng(0)
    labels = random.integers(0, len(names), 600)
    predictions = np.where(random.random(600) < right, labels, (labels + 1) % len(names))
    return {
        **class_scorer(labels, predictions, len(names))(EVERY_ROW),
        "total": 600,
        "intervals": {"accuracy": [0.5, 0.75]},
        "classes": class_table(labels, predictions, names),
        "confusion": {"names": names, "counts": confusion(labels, predictions, len(names))},
        "notes": ["a [strange] note"],
    }


def rendered(results, metric=None):
    out = io.StringIO()
    print_sections(result_sections(results, metric), out)
    return out.getvalue()


def test_terminal_shows_scores_classes_matrix_and_notes(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    results = results_of(["no", "yes"], 0.7)
    lines = rendered(results, "matthews_correlation").splitlines()
    assert lines[1].split()[:2] == ["matthews", "correlation"]  # the score that counts comes first
    assert f"{results['accuracy']:.4f}  0.5000 to 0.7500" in "\n".join(lines)
    assert lines[0].split() == ["score", "95%", "interval"]
    matrix = [line.split()[1:] for line in lines[-4:-2]]
    assert matrix == [[str(count) for count in row] for row in results["confusion"]["counts"]]
    assert lines[-1] == "! a [strange] note"
    legend = "Stronger is a larger share of the label"  # only a page has backgrounds
    assert [
        legend in text for text in (rendered(results), to_markdown(result_sections(results)))
    ] == [False, False]
    assert legend in to_page("results", result_sections(results))


def test_the_share_of_the_largest_class_stands_beside_the_scores_and_an_accuracy_near_it_is_noted():
    """Numbers of MRPC's 1,725 test examples and a model that answers 1 to all but 43 of them."""
    classes = [{"name": "0", "support": 578}, {"name": "1", "support": 1147}]
    details = {"classes": classes, "intervals": {"accuracy": [0.6522, 0.6939]}}
    result = FinetuneResult(
        model=Path("m"),
        task="mrpc",
        metric="accuracy",
        value=0.6736,
        scores={"accuracy": 0.6736},
        details=details,
    )
    out = io.StringIO()
    print_sections(result.sections(), out)
    assert ["largest", "class", "0.6649"] in [line.split() for line in out.getvalue().splitlines()]
    note = "not clearly better than always answering `1`: accuracy 0.6736, the largest class 0.6649"
    assert result.scores_and_notes()["notes"] == [note]
    better = replace(result, details={**details, "intervals": {"accuracy": [0.67, 0.70]}})
    collapsed = replace(
        result, collapsed="all 1,725 predictions are `1`", remedy="try a lower --lr"
    )
    assert better.scores_and_notes()["notes"] == []
    assert collapsed.failure.startswith("nothing learned")
    assert collapsed.scores_and_notes()["notes"] == []  # it was said when the training ended
    assert largest_class_and_share({}) is None
    assert (
        not_better_than_largest_class_note(
            {"accuracy": 0.5, "intervals": {"accuracy": [None, None]}, "classes": classes}
        )
        == ""
    )


def test_many_classes_show_the_most_frequent_mistakes():
    results = results_of([f"class {number}" for number in range(20)], 0.5)
    text = rendered(results)
    counts = np.array(results["confusion"]["counts"])
    np.fill_diagonal(counts, 0)
    row, column = np.unravel_index(counts.argmax(), counts.shape)
    first = text.split("Most frequent mistakes")[1].splitlines()[2]
    assert first.split() == ["class", str(row), "class", str(column), str(counts.max())]


def test_undefined_scores_are_said_and_are_null_in_json(tmp_path):
    results = {
        "pearson": float("nan"),
        "mse": 1.0,
        "intervals": {"pearson": (float("nan"), float("inf"))},
    }
    assert "undefined" in rendered(results)
    assert to_json_value(results) == {
        "pearson": None,
        "mse": 1.0,
        "intervals": {"pearson": [None, None]},
    }
    save_results(results, tmp_path)
    assert json.loads((tmp_path / "results.json").read_text()) == to_json_value(results)


def blue_share(picture):
    """Share of the pixels that are as blue as a cell of which everything was predicted so."""
    pixels = np.round(image.imread(picture)[:, :, :3] * 255)
    blue = np.array([int(TRAIN[index : index + 2], 16) for index in (1, 3, 5)])
    return float((np.abs(pixels - blue).max(2) <= 3).mean())


def file_names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_pictures_show_what_was_predicted(tmp_path):
    names = ["a $cost$", "b_c", "x" * 80]
    save_results(results_of(names, 1.0), tmp_path / "right", "all right")
    assert file_names(tmp_path / "right") == ["confusion.png", "results.json"]
    save_results(results_of(names, 0.5), tmp_path / "half")
    assert blue_share(tmp_path / "right/confusion.png") > 5 * blue_share(
        tmp_path / "half/confusion.png"
    )
    pairs = [[label / 10, label / 10] for label in range(50)] + [[1.0, float("nan")]]
    save_results({"pairs": pairs}, tmp_path / "pairs")
    assert file_names(tmp_path / "pairs") == ["regression.png", "results.json"]
    assert blue_share(tmp_path / "pairs/regression.png") == 0.0  # points are translucent
    assert image.imread(tmp_path / "pairs/regression.png").std() > 0.05


def test_without_matplotlib_there_are_results_and_no_picture(tmp_path, monkeypatch):
    real = builtins.__import__

    def no_matplotlib(name, *options):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *options)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    save_results(results_of(["a", "b"], 0.5), tmp_path)
    assert file_names(tmp_path) == ["results.json"]
