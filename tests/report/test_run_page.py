"""`albertkit report`: every kind of run, unfinished and damaged ones, and folders that strangers made."""

import json
import math
import re
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from albertkit import model as classes
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertKitError, MissingExtraError
from albertkit.report import run_page as page
from albertkit.report.run_page import read_run, write_run_report

EVIL = "<script>alert('x')</script>"
TINY = AlbertConfig(
    vocab_size=60,
    embedding_size=8,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=1,
    intermediate_size=48,
    max_position_embeddings=40,
)
CARD = "# name\n\n## Versions\n\npython 3.11.4, torch 2.13.0+cpu.\n"


def write(file, value):
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = "\n".join(map(json.dumps, value)) if file.suffix == ".jsonl" else json.dumps(value)
    file.write_text(value if isinstance(value, str) else lines, encoding="utf-8")


def save_model(folder, name="AlbertForMaskedLM", **files):
    getattr(classes, name)(TINY).save_pretrained(folder)
    for file, value in files.items():
        write(folder / file.replace("__", "."), value)


def checkpoint(run, step, **state):
    write(
        run / f"checkpoints/step-{step:06d}/training_state.json",
        {"step": step, "threads": 2, "skipped": 0, **state},
    )


@pytest.fixture
def read_report(harmless):
    """`read_report(run)`: the report of a run and the text of its page; nothing in it runs or comes from outside."""

    def read(run):
        report = write_run_report(run)
        return report, harmless(report.report.read_text(encoding="utf-8")).words

    return read


@pytest.fixture
def words_of(read_report):
    """`words_of(run)`: the text of that page."""
    return lambda run: read_report(run)[1]


@pytest.fixture
def without_pictures(monkeypatch):
    """Leave pictures out, which take a second each."""

    def missing(*_args, **_kwargs):
        raise MissingExtraError.for_package("matplotlib", "report", "drawing a curve")

    monkeypatch.setattr(page, "run_svgs", missing)


def check_all(parts, text):
    """Check that a text has all parts."""
    assert [part for part in parts if part not in text] == []


@pytest.fixture
def pretraining(tmp_path, records):
    """An unfinished pretraining."""
    run = tmp_path / "pre"
    measured = {
        "unigram_loss": 6.7,
        "most_frequent_accuracy": 0.05,
        "masked_lm_count": 1000.0,
        "masked_lm_accuracy": 0.3,
    }
    write(
        run / "metrics.jsonl",
        [record | (measured if record["event"] == "eval" else {}) for record in records],
    )
    write(run / "run.toml", 'pair_task = "sop"\nsteps = 5000\nlr = 0.001\nmasked_lm_prob = 0.15\n')
    checkpoint(run, 900, skipped=3)
    save_model(run / "best", provenance__json={"store": "0f0f", "length": 24})
    return run


@pytest.fixture
def finetuning(tmp_path):
    """A finished fine-tuning with everything a task can leave."""
    run = tmp_path / "fine"
    steps = [
        {
            "event": "step",
            "step": n,
            "classification_loss": 1 / n,
            "learning_rate": 1e-5,
            "tokens": 9 * n,
        }
        for n in range(1, 61)
    ]
    scores = [
        {"event": "eval", "step": n, "accuracy": 0.5 + n / 200, "f1": 0.4} for n in (20, 40, 60)
    ]
    write(run / "metrics.jsonl", [*steps, *scores])
    write(run / "run.toml", 'threshold_from = "train"\nsteps = 60\nseed = 20261122\n')
    write(run / "results.json", {
        "model": str(run / "best"), "task": "classify", "metric": "accuracy", "value": 0.8, "f1": 0.75, "accuracy": 0.8,
        "matthews_correlation": None, "rows_cut": 1234, "collapsed": None, "steps": 60, "seconds_of_updates": 3.5,
        "intervals": {"accuracy": [0.71, 0.89]},
        "classes": [{"name": "up", "precision": 0.9, "recall": 0.7, "f1": 0.7875, "support": 1500}],
        "confusion": {"names": ["down", "up"], "counts": [[3, 1], [0, 1500]]}, "retries": ["learning rate 2e-05: all `up`"],
        "pairs": [[0.0, 0.5], [1.0, 0.75], [None, 2.0]],
    })  # fmt: skip
    files = dict(task__json={}, README__md=CARD, provenance__json={"task": "mine"})
    save_model(run / "best", "AlbertForSequenceClassification", **files)
    checkpoint(run, 60)
    write(run / "dev/predictions.jsonl", [
        {"id": "7", "words": ["in", "Seoul", "now"], "tags": [], "entities": [{"type": "place", "start": 3, "end": 8}]},
        {"id": "8", "label": "A", "probabilities": {"B": 0.25, "A": 0.75}},
    ])  # fmt: skip
    return run


def test_an_unfinished_pretraining_reports_what_there_is(pretraining, read_report):
    report, words = read_report(pretraining)
    assert report.kind == "pretraining"
    assert report.finished is False
    assert report.step == 1200
    assert report.notes == ()
    check_all([
        "Unfinished: recorded up to step 1,200 of 5,000.", "newest checkpoint is of step 900", "--resume",
        "unigram baseline 6.700", "30.0%", "27.2% to 32.9%", "updates skipped 3", "store 0f0f",
        "1,200 steps · 4.9 M tokens", "weights in int8", "albertkit evaluate",
        "best evaluation step 1,200: masked lm loss 3.9",
        "attention 4,288", "5000", "threads 2", "checkpoints/",
    ], words)  # fmt: skip


@pytest.mark.usefixtures("without_pictures")
def test_a_finished_run_is_not_called_unfinished(pretraining, read_report):
    save_model(pretraining / "final", README__md=CARD)
    report, words = read_report(pretraining)
    assert report.finished
    assert "Unfinished" not in words
    assert "versions python 3.11.4, torch 2.13.0+cpu" in words


def test_a_fine_tuning_shows_scores_classes_and_examples(finetuning, tmp_path, harmless):
    report = write_run_report(finetuning, tmp_path / "page.html")
    assert report.kind == "fine-tuning"
    assert report.finished is True
    assert report.step == 60
    assert not (finetuning / "report.html").exists()
    html = report.report.read_text(encoding="utf-8")
    words = harmless(html).words
    check_all([
        "accuracy, dev 0.8000 95%: 0.7100 to 0.8900", "f1 0.7500", "matthews correlation undefined", "rows cut 1,234",
        "up 0.9000 0.7000 0.7875 1,500", "down 3 1 up · 1,500", "Begun again after learning rate 2e-05: all `up`",
        "in Seoul place now", "8 A 75.0% B 25.0%", "20261122", "task mine", "accuracy on dev", "classification loss",
        "best evaluation step 60: accuracy 0.8000", f"albertkit predict {finetuning}",
    ], words)  # fmt: skip
    assert "value" not in words.split("Results on dev")[1].split("By class")[0]
    assert html.count("<svg") == 4  # curve and scatter plot, wide and narrow
    assert re.search(r'--share: 0.750">3</td>', html)


@pytest.mark.usefixtures("without_pictures")
def test_examples_are_shown_with_their_texts(finetuning, words_of):
    write(finetuning / "dev/examples.jsonl", [
        {"id": "1", "label": "up", "probabilities": {"up": 0.9}, "texts": [EVIL, "its pair"], "gold": "down"},
        {"id": "2", "value": 3.14159, "texts": ["so much"], "gold": "3.8"},
        {"id": "3", "nbest": [{"text": "Ada", "probability": 0.5}], "texts": ["c" * 5000, "Who?"], "gold": "Ada / Lovelace"},
    ])  # fmt: skip
    words = words_of(finetuning)
    check_all(
        [
            f"1 {EVIL} its pair up 90.0% Label: down",
            "so much Prediction: 3.142 Label: 3.8",
            f"{'c' * 600}… Who? Ada 50.0% Label: Ada / Lovelace",
        ],
        words,
    )
    assert "Seoul" not in words  # what older runs left is not shown besides
    assert "worst" not in words


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x1c"])
def test_predictions_are_shown_whatever_their_texts_hold(character, finetuning, words_of):
    record = {
        "id": 0,
        "texts": [f"hello{character}world"],
        "label": "a",
        "predicted": "b",
        "probabilities": {"a": 0.1, "b": 0.9},
    }
    (finetuning / "dev/predictions.jsonl").write_text(
        json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    (finetuning / "dev/examples.jsonl").unlink(missing_ok=True)
    assert "hello" in words_of(finetuning)


def test_wrong_predictions_stand_before_examples_that_were_not_chosen(finetuning, words_of):
    right, wrong = (
        {"id": n, "label": "up", "probabilities": {"up": 0.9}, "texts": [n], "gold": g}
        for n, g in ("1u", "2d")
    )
    write(finetuning / "dev/examples.jsonl", [right])
    write(finetuning / "dev/errors.jsonl", [wrong])
    words = words_of(finetuning)
    positions = [
        words.index(text)
        for text in ("the most confident mistakes first", "Label: d", "not chosen", "Label: u")
    ]
    assert positions == sorted(positions)


@pytest.mark.usefixtures("without_pictures")
def test_seeds_and_retries_show_the_run_that_made_the_model(finetuning, tmp_path, words_of):
    run = tmp_path / "seeds"
    for seed, value in (("seed-2", 0.6), ("seed-10", 0.9)):
        shutil.copytree(finetuning, run / seed)
        write(
            run / seed / "results.json", {"metric": "accuracy", "value": value, "accuracy": value}
        )
    shutil.copytree(run / "seed-10", run / "seed-10/retry-1")
    write(run / "seed-10/retry-1/run.toml", "steps = 60\nlr = 6.67e-06\n")
    (run / "seed-11").mkdir()
    assert not read_run(run).finished
    write(
        run / "results.json",
        {"metric": "accuracy", "value": 0.75, "accuracy": 0.9, "seeds": {"2": 0.6, "10": 0.9}},
    )
    run_folder = read_run(run)
    assert list(run_folder.seeds.items()) == [("seed-2", 0.6), ("seed-10", 0.9), ("seed-11", None)]
    assert run_folder.attempt == run / "seed-10/retry-1"
    words = words_of(run)
    check_all(
        (
            "seed-2 0.6000",
            "seed-10 0.9000",
            "seed-11 unfinished",
            "of the best seed",
            "lr 6.67e-06",
        ),
        words,
    )


@pytest.mark.usefixtures("without_pictures")
def test_answers_and_captions_are_shown_where_they_are(finetuning, words_of):
    write(
        finetuning / "dev/nbest_predictions.json",
        {"q1": [{"text": "no", "probability": 0.1}, {"text": "", "probability": 0.6}]},
    )
    words = words_of(finetuning)
    assert "q1 (no answer) 60.0% no 10.0%" in words
    shutil.rmtree(finetuning / "dev")
    captions = [
        {"key": "clip 1", "caption": "a red | ring <b>", "references": ["a *blue* ring", "another"]}
    ]
    write(finetuning / "results.json", {"metric": "cider", "cider": 1.5, "examples": captions})
    words = words_of(finetuning)
    assert "clip 1 a red | ring <b> Label: a *blue* ring" in words


@pytest.mark.usefixtures("without_pictures")
def test_many_classes_show_their_most_frequent_mistakes(finetuning, words_of):
    counts = [[0] * 20 for _ in range(20)]
    counts[3][4], counts[5][5] = 17, 99
    write(
        finetuning / "results.json",
        {
            "metric": "f1",
            "f1": 0.1,
            "confusion": {"names": [f"c{n}" for n in range(20)], "counts": counts},
        },
    )
    words = words_of(finetuning)
    assert "Most frequent mistakes label predicted as times c3 c4 17 " in words


@pytest.mark.usefixtures("without_pictures")
def test_a_killed_run_is_reported_however_little_there_is(pretraining, finetuning, read_report):
    for run, names in (
        (pretraining, ["best", "checkpoints", "metrics.jsonl"]),
        (finetuning, "dev best results.json checkpoints run.toml".split()),
    ):
        for name in names:
            path = run / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            report, words = read_report(run)
            assert ("Unfinished" in words) == (not report.finished)
    assert "Unfinished: recorded up to step 60. " in words
    assert "there is no checkpoint yet" in words


def test_torn_and_broken_files_are_named(finetuning, read_report):
    with open(finetuning / "metrics.jsonl", "a") as stream:
        stream.write('\n{"event": "step", "st')
    write(finetuning / "results.json", '{"metric": "acc')
    write(finetuning / "run.toml", "steps = = 3")
    write(finetuning / "best/config.json", "[]")
    write(finetuning / "dev/nbest_predictions.json", "[1]")
    (finetuning / "dev/predictions.jsonl").write_bytes(b"\xff\xfe")
    report, words = read_report(finetuning)
    assert "1 line of the metrics was left incomplete" in words
    for name in ("results.json cannot be read", "run.toml cannot be read", "best/ cannot be inspected",
                 "dev/nbest_predictions.json holds no names and values", "dev/predictions.jsonl cannot be read"):  # fmt: skip
        assert name in words, name
        assert any(note.startswith(name) for note in report.notes), name


def test_no_text_of_a_stranger_becomes_markup(finetuning, harmless, tmp_path):
    run = tmp_path / f"run {EVIL.replace('/', '_')}"
    shutil.copytree(finetuning, run)
    evil = {EVIL: EVIL, "x\"'><b": [EVIL]}
    write(run / "results.json", {
        "metric": EVIL, EVIL: 0.5, "collapsed": EVIL, "retries": [EVIL], "constant": [EVIL], "intervals": {EVIL: [0.1, 0.2]},
        "classes": [{"name": EVIL, "f1": 1.0}], "confusion": {"names": [EVIL, EVIL], "counts": [[1, 2], [3, 4]]},
    })  # fmt: skip
    write(run / "run.toml", f'threshold_from = "{EVIL}"\n"{EVIL}" = "$x$ {{{{ 7*7 }}}} {EVIL}"\n')
    write(run / "best/provenance.json", evil)
    write(run / "best/README.md", EVIL + CARD.replace("python", EVIL))
    write(
        run / "dev/predictions.jsonl",
        [
            {"id": EVIL, "words": [EVIL, "b"], "entities": [{"type": EVIL, "start": 0, "end": 4}]},
            {"id": "x", "probabilities": {EVIL: 0.5}},
        ],
    )
    records = [
        {"event": "step", "step": n, f"{EVIL}_loss": 1.0, "$\\frac{": 2.0} for n in range(1, 5)
    ]
    write(run / "metrics.jsonl", [*records, {"event": "eval", "step": 4, EVIL: 0.5}])
    write(run / f"{EVIL.replace('/', '_')}", "x")
    html = write_run_report(run, tmp_path / "page.html").report.read_text(encoding="utf-8")
    parsed = harmless(html)
    assert parsed.words.count("<script>") > 15
    assert "{{ 7*7 }}" in parsed.words
    assert "49" not in parsed.words.split("Settings")[1].split("What to try")[0]
    with pytest.raises(AssertionError):  # the check would see it
        harmless(html.replace("&lt;script&gt;", "<script>", 1))


@pytest.mark.usefixtures("without_pictures")
def test_links_that_lead_out_of_a_run_are_not_followed(finetuning, tmp_path, harmless):
    write(tmp_path / "secret/predictions.jsonl", [{"id": "1", "probabilities": {"SECRET": 1.0}}])
    write(tmp_path / "secret.json", {"metric": "SECRET", "SECRET": 0.5})
    shutil.rmtree(finetuning / "dev")
    (finetuning / "dev").symlink_to(tmp_path / "secret")
    for name in ("results.json", "metrics.jsonl", "run.toml", "best/README.md"):
        (finetuning / name).unlink()
        (finetuning / name).symlink_to(tmp_path / "secret.json")
    report = write_run_report(finetuning)
    html = report.report.read_text(encoding="utf-8")
    harmless(html)
    assert "SECRET" not in html
    assert sum("lies outside of the run" in note for note in report.notes) == 5


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.just(10**400),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["metric", "value", "intervals", "classes", "types", "confusion", "names", "counts", "pairs", "collapsed", "retries",
     "constant", "seeds", "accuracy", "steps", "event", "step", "loss", "a_loss", "masked_lm_accuracy", "masked_lm_count",
     "tokens", "seconds", "threads", "skipped", "words", "entities", "probabilities", "id", "length", "text"]
)  # fmt: skip
TABLES = st.dictionaries(KEYS, ANYTHING | st.dictionaries(KEYS, ANYTHING, max_size=3), max_size=8)


@pytest.mark.usefixtures("without_pictures")
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    results=TABLES,
    lines=st.lists(TABLES, max_size=4),
    state=TABLES,
    records=st.lists(TABLES, max_size=2),
    kind=st.sampled_from(["pair_task", "threshold_from", "x"]),
)
def test_whatever_files_hold_there_is_a_page(
    tmp_path, words_of, results, lines, state, records, kind
):
    run = tmp_path / "any"
    shutil.rmtree(run, ignore_errors=True)
    write(run / "results.json", results)
    write(run / "run.toml", f"{kind} = 1\nsteps = inf\n")
    write(
        run / "metrics.jsonl",
        [{"event": "eval" if n % 2 else "step", "step": n, **line} for n, line in enumerate(lines)],
    )
    write(run / "checkpoints/step-1/training_state.json", state)
    write(run / "dev/predictions.jsonl", records)
    words_of(run)


@pytest.mark.parametrize(
    "values",
    [
        [1e300, -1e300],
        [math.nan] * 3,
        [10**300],
        [True],
        ["x"],
        [0.0],
    ],
)
def test_curves_of_strange_numbers(finetuning, words_of, values):
    records = [
        {"event": event, "step": 10**n, "a_loss": v, "b": v, "learning_rate": v, "tokens": v}
        for n, v in enumerate(values)
        for event in ("step", "eval")
    ]
    write(finetuning / "metrics.jsonl", records)
    write(
        finetuning / "results.json", {"metric": "b", "pairs": [[value, value] for value in values]}
    )
    words_of(finetuning)


@pytest.mark.usefixtures("without_pictures")
def test_deep_files_are_reported_as_unreadable(finetuning, read_report):
    write(finetuning / "results.json", '{"a":' * 100_000)
    write(
        finetuning / "best/provenance.json",
        {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": 1}}}}}}}}},
    )
    report, _ = read_report(finetuning)
    assert any(note.startswith("results.json cannot be read") for note in report.notes)


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize(
    "broken", ['{"a":' * 100_000, "[1]", '{"length": ' + "9" * 5000 + "}", '{"length": "long"}']
)
def test_a_model_with_broken_provenance_does_not_stop_the_page(finetuning, broken, read_report):
    write(finetuning / "best/provenance.json", broken)
    report, _ = read_report(finetuning)
    assert bool(report.notes) == ("long" not in broken)


def test_what_is_no_run_is_refused(tmp_path, pretraining):
    for folder, slug, hint in (
        (tmp_path / "nowhere", "not-found", "--out"),
        (pretraining / "best", "missing-file", "--out"),
        (tmp_path, "missing-file", str(pretraining)),
    ):
        with pytest.raises(AlbertKitError) as caught:
            write_run_report(folder)
        assert caught.value.slug == slug
        assert hint in caught.value.hint
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.usefixtures("without_pictures")
def test_the_command_names_the_page(pretraining, run_command):
    assert f"report    {pretraining / 'report.html'}" in run_command("report", pretraining).out
    printed = run_command("report", pretraining, "--out", pretraining / "other.html", "--json").json
    assert printed["report"] == str(pretraining / "other.html")
    assert printed["finished"] is False
    assert printed["step"] == 1200
