"""`finetune`, `predict` and `evaluate_task` on a table that a tiny model learns in seconds."""

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from record_files import read_records
from safetensors.torch import load_file

from albertkit.batches.features import ExampleStream, Features
from albertkit.config import AlbertConfig
from albertkit.errors import CheckpointError, ConfigError, DataError
from albertkit.model import AlbertForSequenceClassification
from albertkit.pipelines.predict import predict
from albertkit.tables.bad_rows import BadRows
from albertkit.tables.columns import Columns
from albertkit.tasks.data import read_split
from albertkit.tasks.evaluate import evaluate_task
from albertkit.tasks.finetune import FinetuneResult, balanced_class_weights, finetune
from albertkit.tasks.models import load_encoder, load_task_model
from albertkit.tasks.registry import TASKS, find_task, task_from_dict
from albertkit.tasks.settings import FinetuneSettings
from albertkit.training.processes import World

from .conftest import COLUMNS

learn = partial(finetune, "classify", columns=COLUMNS)
SETTINGS = FinetuneSettings(
    lr=3e-3, epochs=4, batch_size=16, length=32, precision="fp32", batch_tokens=512
)


@pytest.fixture(scope="module")
def learned(start, table, tmp_path_factory):
    """A finished run and its result."""
    run = tmp_path_factory.mktemp("learned") / "run"
    return run, learn(start, table, run, SETTINGS)


def test_a_task_is_learned_and_the_folder_predicts_alone(learned, table):
    run, result = learned
    assert result.value > 0.95
    assert result.collapsed is None
    assert result.model == run / "best"
    results = json.loads((run / "results.json").read_text())
    assert results["accuracy"] == result.value
    examples = read_records(run / "dev/examples.jsonl")
    rows = [line.split("\t") for line in (table / "dev.tsv").read_text().splitlines()[1:21]]
    assert [[*row["texts"], row["gold"]] for row in examples] == rows
    lines = (table / "dev.tsv").read_text().splitlines()[1:]
    gold = [line.split("\t")[1] for line in lines]
    report = predict(run, table / "dev.tsv", run / "new.jsonl", precision="fp32")
    records = read_records(run / "new.jsonl")
    assert report.examples == len(records) == 100
    assert np.mean([r["label"] == g for r, g in zip(records, gold, strict=True)]) == result.value
    scored = evaluate_task(run, table, precision="fp32")
    assert scored.scores == result.scores


def test_the_best_folder_is_hugging_faces(learned):
    import transformers

    run, _ = learned
    theirs = transformers.AlbertForSequenceClassification.from_pretrained(run / "best").eval()
    loaded = load_task_model(run)
    assert theirs.config.id2label == {0: "magic", 1: "plain"}
    encoded = loaded.tokenizer("seven wizards brew", return_tensors="pt")
    with torch.inference_mode():
        torch.testing.assert_close(
            theirs(**encoded).logits, loaded.model(**encoded).logits, rtol=0, atol=1e-5
        )
    card = (run / "best/README.md").read_text()
    assert "text-classification" in card
    assert "300 training examples" in card


def test_predictions_do_not_depend_on_the_batch_and_keep_their_order(learned, table, tmp_path):
    run, _ = learned
    outputs = []
    for batch_tokens in (16, 100_000):
        out = tmp_path / f"{batch_tokens}.jsonl"
        predict(run, table / "dev.tsv", out, batch_tokens=batch_tokens, precision="fp32")
        outputs.append(read_records(out))
    assert [r["id"] for r in outputs[0]] == [str(n) for n in range(100)]
    for small, large in zip(*outputs, strict=True):
        assert small["probabilities"] == pytest.approx(large["probabilities"], abs=1e-5)


def test_rows_that_cannot_be_used_are_named_or_left_out(learned, tmp_path):
    run, _ = learned
    empty = tmp_path / "empty.jsonl"
    empty.write_text(
        '{"sentence": "the quick fox"}\n{"sentence": " "}\n{"text": "x"}\n{"sentence": "seven wizards"}\n'
    )
    with pytest.raises(DataError, match=r"\[bad-row\].*line 2"):
        predict(run, empty, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
    report = predict(run, empty, tmp_path / "out.jsonl", on_error="skip")
    assert report.examples == 2
    assert [row.line for row in report.left_out] == [2, 3]


def test_stopped_and_resumed_it_predicts_the_same(start, table, tmp_path, stop_at):
    settings = replace(SETTINGS, epochs=2, eval_every=4, dropout=0.1)
    learn(start, table, tmp_path / "whole", settings)
    stop_at(1, 4, 9)
    results = [
        learn(start, table, tmp_path / "cut", settings, resume=resume)
        for resume in (False, True, True, True)
    ]
    assert [result.model is None for result in results] == [True, True, True, False]
    for name in ("best/model.safetensors", "dev/predictions.tsv", "best/task.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), (
            name
        )


def test_another_run_other_settings_and_other_data_are_refused(
    learned, start, table, tmp_path, slug_of
):
    run, _ = learned
    learn_again = partial(learn, start)
    assert slug_of(learn_again, table, run, SETTINGS) == "exists"
    assert slug_of(learn_again, table, run, replace(SETTINGS, lr=1e-3), resume=True) == "changed"
    assert slug_of(learn_again, table, tmp_path / "none", SETTINGS, resume=True) == "missing-file"
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text((table / name).read_text().replace("wizards", "rivers"))
    assert slug_of(learn_again, tmp_path, run, SETTINGS, resume=True) == "changed"
    with pytest.raises(CheckpointError, match="trained on classify, not on other"):
        finetune(
            find_task("classify", COLUMNS).with_changes(name="other"),
            start,
            table,
            run,
            SETTINGS,
            resume=True,
        )


def test_a_run_that_learns_nothing_says_so(start, table, tmp_path, capfd):
    result = learn(start, table, tmp_path / "run", replace(SETTINGS, lr=9.0, epochs=1))
    line = f"nothing learned: {result.collapsed}; {result.remedy}"
    assert capfd.readouterr().err.count(f"{line}\n") == 1
    assert "nothing learned" not in str(result.sections())  # printed right below


def test_early_stopping_ends_a_run_that_gets_no_better(start, table, tmp_path):
    settings = replace(SETTINGS, lr=1.2345e-9, epochs=20, eval_every=5, patience=2)
    result = learn(start, table, tmp_path / "run", settings)
    assert result.steps == 15  # the first evaluation is the best, two more are not better
    # As given, not rounded
    assert tomllib.loads((tmp_path / "run/run.toml").read_text())["lr"] == 1.2345e-9


@pytest.mark.parametrize(
    "changes",
    [
        dict(freeze=True),
        dict(lora=4, lr=2e-2),
    ],
    ids=["freeze", "lora"],
)
def test_frozen_encoder_and_adapters_leave_plain_folders(start, table, tmp_path, changes):
    settings = replace(SETTINGS, epochs=2, eval_every=19, **changes)
    result = learn(start, table, tmp_path / "run", settings)
    before = load_file(start / "model.safetensors")
    after = load_file(result.model / "model.safetensors")
    encoder = [name for name in before if name.startswith("albert.") and "pooler" not in name]
    assert set(encoder) < set(after)
    changed = [name for name in encoder if not torch.equal(before[name], after[name])]
    assert bool(changed) == ("lora" in changes)
    assert all("attention" in name or "ffn" in name for name in changed)
    state = load_file(
        next((tmp_path / "run/checkpoints").glob("step-*")) / "training_state.safetensors"
    )
    trained = {name.removeprefix("parameters/") for name in state if name.startswith("parameters/")}
    assert not any("embeddings" in name for name in trained)
    AlbertForSequenceClassification.from_pretrained(result.model)


def test_a_teacher_is_imitated(learned, start, table, tmp_path):
    run, _ = learned
    settings = replace(SETTINGS, epochs=2, teacher=run, teacher_weight=1.0, teacher_hidden=0.1)
    more_texts = tmp_path / "texts.txt"
    more_texts.write_text(
        "\n".join(f"seven {word} wizards brew" for word in ("old", "lazy", "brown"))
    )
    result = learn(start, table, tmp_path / "student", settings, unlabelled=more_texts)
    metrics = (tmp_path / "student/metrics.jsonl").read_text()
    assert "distillation_loss" in metrics
    assert "hidden_states_loss" in metrics
    assert result.value > 0.6  # the labels play no part: the weight of the teacher is 1


def test_a_teacher_that_was_not_fine_tuned_is_refused(start, table, tmp_path):
    settings = replace(SETTINGS, epochs=1, teacher=start)
    with pytest.raises(CheckpointError, match=r"\[wrong-model\].*not fine-tuned"):
        learn(start, table, tmp_path / "student", settings)


def test_class_weights_make_rare_classes_count(start, tmp_path):
    rows = (
        ["sentence\tlabel"] + ["the quick brown fox\tmany"] * 190 + ["seven old wizards\trare"] * 10
    )
    (tmp_path / "train.tsv").write_text("\n".join(rows))
    (tmp_path / "dev.tsv").write_text("\n".join(rows[:1] + rows[-20:]))
    task = find_task("classify", COLUMNS)
    examples = read_split(task, tmp_path / "train.tsv", "train", BadRows())
    task = task.fitted(examples)
    balanced = replace(SETTINGS, class_weights="balanced")
    weights = balanced_class_weights(task, examples, balanced, World(0, 1, torch.device("cpu")))
    # scikit-learn's "balanced"
    assert weights.tolist() == pytest.approx([200 / (2 * 190), 200 / (2 * 10)])
    assert learn(start, tmp_path, tmp_path / "run", balanced).value == 1.0


def test_a_head_is_kept_only_for_the_same_labels(learned, start):
    run, _ = learned
    loaded = load_task_model(run)
    same_head, _, notes = load_encoder(run / "best", loaded.task)
    assert torch.equal(same_head.classifier.weight, loaded.model.classifier.weight)
    assert any("same labels" in note for note in notes)
    other_task = loaded.task.with_changes(labels=("a", "b", "c"), positive_class="")
    torch.manual_seed(0)
    fresh, _, notes = load_encoder(run / "best", other_task)
    assert fresh.classifier.weight.shape[0] == 3
    assert any("fresh" in note for note in notes)
    assert torch.equal(fresh.albert.pooler.weight, loaded.model.albert.pooler.weight)


def test_an_update_is_so_many_examples_and_every_process_its_share():
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 30, 50)
    features = Features.from_sequences(
        [([1] * n, n) for n in lengths], range(50), {"labels": np.arange(50)}
    )
    stream = ExampleStream(features, batch_size=8, batch_tokens=40, seed=3)
    example_numbers = []
    updates = 0
    while True:
        state = stream.state()
        update = next(stream)
        if stream.state()["epoch"] > 0:
            break
        updates += 1
        labels = np.concatenate([batch.per_sequence["labels"].numpy() for batch in update])
        assert len(labels) == (8 if updates < 7 else 2)
        assert all(batch.num_tokens <= 40 or batch.packed.num_sequences == 1 for batch in update)
        parts = [
            ExampleStream(features, batch_size=8, batch_tokens=40, seed=3, rank=r, world_size=2)
            for r in (0, 1)
        ]
        for part in parts:
            part.restore(state)
        shared = [b.per_sequence["labels"].numpy() for part in parts for b in next(part)]
        assert sorted(np.concatenate(shared)) == sorted(labels)
        example_numbers += labels.tolist()
    assert sorted(example_numbers) == list(range(50))
    with pytest.raises(ConfigError, match=r"\[changed\]"):
        ExampleStream(features, batch_size=8, batch_tokens=40, seed=4).restore(state)


def test_windows_of_an_example_are_learned_in_one_update_and_need_not_be_in_one_batch():
    features = Features.from_sequences([([1] * n, n) for n in (9, 9, 3, 9, 5)], [0, 0, 0, 1, 2])
    stream = ExampleStream(features, batch_size=3, batch_tokens=12)
    update = next(stream)
    assert [batch.packed.lengths for batch in update] == [(3, 5), (9,), (9,), (9,)]
    assert sorted(np.concatenate([batch.sequences for batch in update])) == [0, 1, 2, 3, 4]


def test_sequences_that_compete_stay_together():
    features = Features.from_sequences([([1] * n, n) for n in (3, 4, 5, 6, 7)], [0, 0, 1, 1, 1])
    stream = ExampleStream(features, grouped=True, batch_size=1, batch_tokens=1)
    for _ in range(4):
        (batch,) = next(stream)
        assert batch.sequences.tolist() in ([0, 1], [2, 3, 4])


def test_published_settings_are_the_papers_and_in_proportion():
    base = AlbertConfig.from_size("base")
    exact, reasons = FinetuneSettings().resolve("mrpc", base, 3668)
    assert exact.steps == 800
    assert exact.warmup_steps == 200
    assert exact.lr == 2e-5
    assert exact.batch_size == 32
    assert any("table 14" in line for line in reasons)
    half, _ = FinetuneSettings().resolve("mrpc", base, 1834)
    assert half.steps == 400
    assert half.warmup_steps == 100
    wide, reasons = FinetuneSettings().resolve("qqp", AlbertConfig.from_size("xlarge"), 363_849)
    assert wide.lr == 1e-5
    assert any("diverge" in line for line in reasons)
    for hidden_size, lr in ((192, 3e-4), (384, 1e-4), (513, 2e-5)):
        narrow = base.replace(hidden_size=hidden_size, num_attention_heads=3)
        resolved, reasons = FinetuneSettings().resolve("mrpc", narrow, 3668)
        assert resolved.lr == lr
        assert any("narrow" in line for line in reasons) == (hidden_size < 513)
    unpublished, _ = FinetuneSettings(epochs=2).resolve("classify", base, 100)
    assert unpublished.steps == 7
    assert unpublished.lr == 2e-5
    assert unpublished.dropout == 0.0


def test_a_label_weighs_as_much_as_what_a_teacher_says_of_a_text_without_one():
    base = AlbertConfig.from_size("base")
    taught = FinetuneSettings(teacher=Path("TEACHER"))
    assert taught.resolve("classify", base, 1000)[0].teacher_weight == 0.5
    resolved, reasons = taught.resolve("classify", base, 1000, 900)
    # Of 32 examples 3.2 are labelled: their mean has the weight of 3.2 of 64
    assert 1 - resolved.teacher_weight == pytest.approx(0.5 * 3.2 / 32)
    assert any("teacher_weight: 0.95" in line for line in reasons)
    explicit = replace(taught, teacher_weight=0.2)
    assert explicit.resolve("classify", base, 1000, 900)[0].teacher_weight == 0.2
    assert FinetuneSettings().resolve("classify", base, 1000, 0)[0].teacher_weight is None


def test_impossible_settings_are_listed_at_once():
    with pytest.raises(ConfigError) as caught:
        FinetuneSettings(lr=-1.0, epochs=1, steps=3, dropout=1.0, freeze=True, lora=8).check()
    assert all(
        word in caught.value.message
        for word in ("lr", "epochs and steps", "dropout", "freeze and lora")
    )


def test_every_task_is_found_and_its_file_read_again(tmp_path, slug_of):
    for name in TASKS:
        task = find_task(
            name,
            Columns(text="a", label="b") if name in ("classify", "regress", "multilabel") else None,
        )
        assert task.name == name
        for variant in (task, task.with_changes(length=77)):
            assert task_from_dict(json.loads(json.dumps(variant.to_dict())), tmp_path) == variant
    assert find_task("SST-2").name == "sst2"
    with pytest.raises(ConfigError, match="did you mean `mrpc`"):
        find_task("mprc")
    assert slug_of(load_task_model, tmp_path) == "wrong-model"


@pytest.mark.slow
def test_two_processes_learn_what_one_does(start, table, tmp_path):
    settings = replace(SETTINGS, epochs=1, device="cpu")
    settings.save(tmp_path / "settings.toml")
    script = tmp_path / "train.py"
    script.write_text(
        "import sys; from pathlib import Path; import torch; torch.set_num_threads(1)\n"
        "from albertkit.tasks.finetune import finetune\n"
        "from albertkit.tables.columns import Columns\n"
        "from albertkit.tasks.settings import FinetuneSettings\n"
        "start, table, run, toml = map(Path, sys.argv[1:5])\n"
        "finetune('classify', start, table, run, FinetuneSettings(**FinetuneSettings.read(toml)),\n"
        "         columns=Columns(text='sentence', label='label'))\n"
    )
    losses = []
    for processes in (1, 2):
        run = tmp_path / f"run-{processes}"
        arguments = [str(start), str(table), str(run), str(tmp_path / "settings.toml")]
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={processes}",
        ]
        completed = subprocess.run(
            [*command, str(script), *arguments], capture_output=True, text=True, timeout=300
        )
        assert completed.returncode == 0, completed.stderr
        records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        losses.append([record["loss"] for record in records if record["event"] == "step"])
    assert len(losses[0]) == 19
    # Adam makes steps of one size of gradients that are nothing but rounding, so weights drift
    # apart and losses do not.
    assert losses[1] == pytest.approx(losses[0], abs=2e-4)
    assert losses[1] != pytest.approx(losses[0][::-1], abs=2e-4)


def test_what_there_is_of_every_example_is_in_the_file_and_not_on_the_terminal():
    details = {"pairs": [[1.0, 2.0]], "intervals": {"pearson": [0.1, 0.2]}}
    result = FinetuneResult(task="regress", metric="pearson", value=0.1, details=details)
    assert result.to_dict()["intervals"] == details["intervals"]
    assert "pairs" not in result.to_dict()
    assert result.saved()["pairs"] == details["pairs"]
