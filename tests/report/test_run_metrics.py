"""Reading `metrics.jsonl`: torn lines, resumes, numbers that are none."""

import json
import math

import pytest

from albertkit.errors import DataError
from albertkit.training.monitor import RunMetrics, read_metrics


def step(number, loss=5.0, **values):
    return {"event": "step", "step": number, "masked_lm_loss": loss, **values}


def evaluation(number, loss=5.0):
    return {"event": "eval", "step": number, "masked_lm_loss": loss}


def write(path, records, tail=""):
    path.write_text(
        "".join(json.dumps(record) + "\n" for record in records) + tail, encoding="utf-8"
    )
    return path


def test_records_are_read_from_a_run_folder(tmp_path):
    write(
        tmp_path / "metrics.jsonl",
        [step(10, 6.5), step(20, 6.0), evaluation(20, 6.1), {"event": "resume", "step": 20}],
    )
    metrics = read_metrics(tmp_path)
    assert metrics.series("step", "masked_lm_loss") == ([10, 20], [6.5, 6.0])
    assert metrics.series("eval", "masked_lm_loss") == ([20], [6.1])
    assert metrics.unreadable_lines == 0
    assert metrics.superseded == 0
    assert metrics.last_step == 20


def test_a_torn_last_line_is_counted_and_skipped(tmp_path):
    file = write(tmp_path / "metrics.jsonl", [step(10), step(20)], tail='{"event": "step", "st')
    metrics = read_metrics(file)
    assert [record["step"] for record in metrics.steps] == [10, 20]
    assert metrics.unreadable_lines == 1


def test_a_torn_line_in_the_middle_costs_only_itself(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(
        json.dumps(step(1)).encode()
        + b'\n{"event": "st\xff\n\n[1, 2]\n'
        + json.dumps(step(2)).encode()
        + b"\n"
    )
    metrics = read_metrics(file)
    assert [record["step"] for record in metrics.steps] == [1, 2]
    assert metrics.unreadable_lines == 2


def test_a_record_appended_to_a_torn_line_is_kept(tmp_path):
    file = write(tmp_path / "metrics.jsonl", [step(10)], tail='{"event": "step", "st')
    with open(file, "a") as resumed:
        resumed.write(json.dumps(step(20)) + "\n" + '{"event": "step", {"event": "ev')
    metrics = read_metrics(file)
    assert [record["step"] for record in metrics.steps] == [10, 20]
    assert metrics.unreadable_lines == 2


def test_after_a_resume_the_later_line_wins_and_abandoned_steps_go():
    metrics = RunMetrics.from_records(
        [step(10, 6.0), step(20, 5.0), evaluation(20, 5.5), step(30, 4.0), step(40, 3.0), evaluation(40, 3.5),
         step(20, 5.1), evaluation(20, 5.6), step(30, 4.1)]
    )  # fmt: skip
    assert metrics.series("step", "masked_lm_loss") == ([10, 20, 30], [6.0, 5.1, 4.1])
    assert metrics.series("eval", "masked_lm_loss") == ([20], [5.6])
    assert metrics.superseded == 3
    assert metrics.last_step == 30


def test_an_evaluation_of_the_best_checkpoint_at_the_end_takes_nothing_away():
    metrics = RunMetrics.from_records(
        [step(10), evaluation(10, 4.0), step(20), evaluation(20, 4.5), evaluation(10, 4.0)]
    )
    assert [record["step"] for record in metrics.steps] == [10, 20]
    assert metrics.series("eval", "masked_lm_loss") == ([10, 20], [4.0, 4.5])


def test_what_is_no_number_is_nan_and_what_is_absent_is_left_out():
    metrics = RunMetrics.from_records(
        [step(1, None), step(2, math.inf), {"event": "step", "step": 3, "loss": 7.0}]
    )
    steps, values = metrics.series("step", "masked_lm_loss", "loss")
    assert steps == [1, 2, 3]
    assert math.isnan(values[0])
    assert math.isnan(values[1])
    assert values[2] == 7.0
    assert metrics.series("step", "masked_lm_loss")[0] == [1, 2]


def test_missing_and_foreign_files_are_refused(tmp_path, slug_of):
    assert slug_of(read_metrics, tmp_path) == "not-found"
    (tmp_path / "metrics.jsonl").write_text("step,loss\n1,2\n")
    with pytest.raises(DataError) as broken:
        read_metrics(tmp_path)
    assert broken.value.slug == "bad-file"
    assert "2 lines" in broken.value.message


def test_an_empty_file_is_a_run_that_recorded_nothing(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    assert read_metrics(tmp_path).last_step == 0
