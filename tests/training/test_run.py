"""What `Run` promises every training: a folder of its own, resuming to the same bits, seeds, retries, results."""

import os
import signal

import pytest
import successors
from safetensors.torch import load_file
from successors import learn_successors

from albertkit.errors import CheckpointError, ConfigError, MachineError
from albertkit.files import files_not_matching_checksums, read_json
from albertkit.training.run import RunResult
from albertkit.training.settings import EpochSettings


def bits(model):
    return [tensor.numpy().tobytes() for tensor in load_file(model / "model.safetensors").values()]


def test_a_training_leaves_its_folder(tmp_path):
    result = learn_successors(tmp_path / "run", EpochSettings())
    assert result.model == tmp_path / "run/best"
    assert result.metric == "accuracy"
    assert result.steps == 60
    assert result.value == result.scores["accuracy"] > 0.9
    assert read_json(tmp_path / "run/results.json") == result.to_dict()
    assert read_json(tmp_path / "run/best/provenance.json") == {"data": "numbers"}
    assert files_not_matching_checksums(tmp_path / "run/best") == []
    assert "lr = 0.1" in (tmp_path / "run/run.toml").read_text()
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {"metrics.jsonl", "checkpoints"}


def test_a_stopped_training_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    unbroken = learn_successors(tmp_path / "whole", EpochSettings())
    evaluate = successors.scores
    calls = []

    def stopping(model):
        calls.append(os.kill(os.getpid(), signal.SIGTERM) if not calls else None)
        return evaluate(model)

    monkeypatch.setattr(successors, "scores", stopping)
    stopped = learn_successors(tmp_path / "cut", EpochSettings())
    assert stopped.model is None
    assert stopped.steps == 20
    resumed = learn_successors(tmp_path / "cut", EpochSettings(), resume=True)
    assert resumed.scores == unbroken.scores
    for folder in ("best", "checkpoints/step-000060"):
        assert bits(tmp_path / "cut" / folder) == bits(tmp_path / "whole" / folder)


def test_a_signal_after_the_last_update_is_reported(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(
        "albertkit.training.run.check_model",
        lambda folder: (_ for _ in ()).throw(KeyboardInterrupt),
    )
    with pytest.raises(KeyboardInterrupt):
        learn_successors(tmp_path / "run", EpochSettings(steps=2))
    assert "is complete; --resume measures it" in capfd.readouterr().err


def test_a_signal_in_the_last_update_ends_the_command_after_it(tmp_path, monkeypatch, capfd):
    def stopping(*_):
        signal.raise_signal(signal.SIGINT)  # in the evaluation after the last update
        return {"accuracy": 0.5}

    monkeypatch.setattr(successors, "scores", stopping)
    with pytest.raises(KeyboardInterrupt):
        learn_successors(tmp_path / "run", EpochSettings(steps=2, eval_every=2, seeds=3))
    assert "is complete; --resume measures it" in capfd.readouterr().err
    assert not (tmp_path / "run/seed-1").exists()


def test_a_folder_holds_one_run_made_from_one_thing(tmp_path):
    learn_successors(tmp_path / "run", EpochSettings(steps=2))
    with pytest.raises(CheckpointError, match="already holds a run"):
        learn_successors(tmp_path / "run", EpochSettings(steps=2))
    with pytest.raises(CheckpointError, match="no run in"):
        learn_successors(tmp_path / "other", EpochSettings(), resume=True)
    with pytest.raises(CheckpointError, match=r"started with other settings: seed was 0, now 1"):
        learn_successors(tmp_path / "run", EpochSettings(steps=2, seed=1), resume=True)
    with pytest.raises(ConfigError, match="retries is -1, it must be a whole number, at least 0"):
        learn_successors(tmp_path / "other", EpochSettings(retries=-1))
    wrong = EpochSettings(steps=1.5, lr="1e-3")  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError,
        match=r"steps is 1\.5, it must be a whole number or None, at least 1 .*; lr is .*, it must be a number",
    ):
        learn_successors(tmp_path / "other", wrong)
    for checkpoint in (tmp_path / "run/checkpoints").iterdir():
        (checkpoint / "provenance.json").write_text('{"data": "letters"}')
        (checkpoint / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match="trained on letters, not on numbers"):
        learn_successors(tmp_path / "run", EpochSettings(steps=2), resume=True)


def test_of_several_seeds_the_best_is_kept_and_the_median_reported(tmp_path):
    result = learn_successors(tmp_path / "run", EpochSettings(steps=7, seeds=3))
    assert sorted(result.seeds) == [0, 1, 2]
    assert result.value == sorted(result.seeds.values())[1]
    assert result.scores["accuracy"] == max(result.seeds.values())
    best = max(result.seeds, key=lambda seed: result.seeds[seed])
    assert bits(tmp_path / "run/best") == bits(tmp_path / "run" / f"seed-{best}" / "best")
    assert read_json(tmp_path / "run/results.json")["seeds"]["1"] == result.seeds[1]
    assert "of 3 seeds: median" in result.notes()[0]


@pytest.mark.parametrize("fault", ["collapsed", "not finite"])
def test_a_run_that_learns_nothing_is_begun_again_with_a_third_of_its_rate(
    tmp_path, monkeypatch, fault, capfd
):
    evaluate = successors.scores

    def failing(model):
        if (tmp_path / "run/retry-1").exists():
            return evaluate(model)
        if fault == "not finite":
            raise MachineError("not-finite", "no finite gradient", "lower the rate")
        return {"accuracy": 0.0}

    monkeypatch.setattr(successors, "scores", failing)
    result = learn_successors(tmp_path / "run", EpochSettings(retries=1, lr=0.1))
    assert result.value > 0.7
    assert result.model == tmp_path / "run/best"
    assert result.retries[0].startswith("learning rate 0.1: ")
    assert "lr = 0.0333" in (tmp_path / "run/retry-1/run.toml").read_text()
    printed = capfd.readouterr().err
    assert printed.count("parameters: 364") == 1
    assert "begun again with learning rate 0.0333 after learning rate 0.1: " in printed
    assert result.notes()[0].startswith("begun again after learning rate 0.1: ")
    assert bits(tmp_path / "run/best") == bits(tmp_path / "run/retry-1/best")
    assert read_json(tmp_path / "run/results.json")["retries"] == list(result.retries)


@pytest.mark.parametrize(
    ("changes", "hidden_size", "remedy"),
    [
        ({}, 768, "try --retries 2, a lower --lr, a longer --warmup or another --seed"),
        ({"retries": 2}, 768, "try a lower --lr, a longer --warmup or another --seed"),
        ({"steps": 60, "retries": 2}, 768, "try a higher --lr (0.0001 to 0.001) and more --epochs"),
        ({}, 192, "try a higher --lr (0.0001 to 0.001) and more --epochs"),
        ({"lr": 5e-4}, 192, "try a higher --lr (0.0005 to 0.001) and more --epochs"),
        ({"lr": 1e-3}, 192, "try --retries 2, a lower --lr"),
    ],
)
def test_what_is_tried_where_nothing_was_learned_fits_the_run_and_the_model(
    changes, hidden_size, remedy
):
    settings = EpochSettings(**{"steps": 800, "lr": 2e-5, **changes})
    assert settings.remedy(hidden_size).startswith(remedy)
    result = RunResult(collapsed="all `up`", remedy=settings.remedy(hidden_size))
    assert result.failure.startswith(f"nothing learned: all `up`; {remedy}")
