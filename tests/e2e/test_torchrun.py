"""Training with torchrun: two processes compute what one does, whatever ends early goes on, whatever fails says so once."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import all_trainings
import pytest
import torch
from all_trainings import STEPS, make_data, pretraining
from record_files import read_records
from safetensors.torch import load_file

from albertkit.files import read_json
from albertkit.pretraining.run import pretrain
from albertkit.pretraining.settings import PretrainSettings

QUICK = ("pretrain", "teacher", "finetune")
SLOW = ("embed-cosent", "embed-mnrl", "distill", "caption")
NAMES = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
# most_guessed: each process looks at the first pieces of its own.
NOT_COMPARED = {"event", "seconds", "tokens_per_second", "most_guessed"}
MANY = 100_000  # updates of a run that is to be interrupted


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As the processes that torchrun starts: sums of more threads may be rounded in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    make_data(folder)
    return folder


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """Folder of trainings by one process and by two; what each of the two printed is in a file of its own."""
    folders = {}

    def of(name):
        names = QUICK if name in QUICK else SLOW
        if names not in folders:
            out = folders[names] = tmp_path_factory.mktemp("trainings")
            logs = ["--redirects", "3", "--log-dir", out / "logs"]
            launched = start(*torchrun(2, *logs), all_trainings.__file__, data, out / "two", *names)
            all_trainings.main(data, out / "one", names)
            _, errors = launched.communicate(timeout=600)
            assert launched.returncode == 0, errors + "".join(
                f.read_text() for f in out.rglob("stderr.log")
            )
        return folders[names]

    return of


def torchrun(processes, *options):
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        processes,
        *options,
    ]


def start(*command):
    return subprocess.Popen(
        [str(part) for part in command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def start_pretraining(
    data, out, *options, processes=2, steps=STEPS["pretrain"], program=("-m", "albertkit")
):
    """The pretraining by the command line."""
    file = out.with_suffix(".toml")
    PretrainSettings(**{**pretraining(data), "steps": steps}).save(file)
    arguments = ["pretrain", data / "store", "--out", out, "--config-file", file]
    restarts = [option for option in options if option.startswith("--max-restarts")]
    other_options = [option for option in options if option not in restarts]
    return start(*torchrun(processes, *restarts), *program, *arguments, *other_options)


def finished(process, code=0):
    """What a process has printed, once it has ended with a code."""
    out, errors = process.communicate(timeout=300)
    assert process.returncode == code, errors
    return out, errors


def wait_for(process, is_there):
    deadline = time.monotonic() + 240
    while not is_there():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def records(run):
    return read_records(run / "metrics.jsonl")


def assert_same_bits(first, second):
    models = [load_file(run / "final/model.safetensors") for run in (first, second)]
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())


def copy_until(run, step, to):
    """A run as it was when it had made its checkpoint of a step."""
    shutil.copytree(run, to)
    for folder in (*(to / "checkpoints").glob("step-*"), to / "final", to / "best"):
        if folder.name != f"step-{step:06d}":
            shutil.rmtree(folder)
    return to


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_learn_what_one_does(runs, name):
    folder = runs(name)
    first = records(folder / "one" / name)
    second = records(folder / "two" / name)
    assert [(r["event"], r["step"]) for r in first] == [
        (r["event"], r["step"]) for r in second
    ]  # nothing is there twice
    assert sum(r["event"] == "step" for r in first) >= 3
    for ours, theirs in zip(first, second, strict=True):
        assert ours.keys() == theirs.keys()
        for key in ours.keys() - NOT_COMPARED:
            assert ours[key] == pytest.approx(theirs[key], rel=2e-5, abs=2e-5), (
                ours["event"],
                ours["step"],
                key,
            )
    models = [
        load_file(folder / count / name / "best/model.safetensors") for count in ("one", "two")
    ]
    for key, tensor in models[0].items():
        torch.testing.assert_close(tensor, models[1][key], rtol=0, atol=2e-5, msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_reduced_once_an_update(runs, name):
    for count, rank, expected in (("two", 0, STEPS[name]), ("two", 1, STEPS[name]), ("one", 0, 0)):
        assert read_json(runs(name) / count / f"collectives-{rank}.json")[name] == expected


def test_pretraining_by_two_processes_gives_the_bits_of_one_with_the_same_micro_batches(runs):
    """Two micro-batches: their gradients are added in one order only."""
    folder = runs("pretrain")
    assert_same_bits(folder / "one/pretrain", folder / "two/pretrain")


def test_only_the_first_process_speaks_and_nobody_warns(runs):
    logs = runs("pretrain") / "logs"
    output = {
        rank: "".join(f.read_text() for f in logs.rglob(f"{rank}/std*.log")) for rank in (0, 1)
    }
    assert "batch: up to 128 tokens an update (64 x 1 x 2)" in output[0]
    assert "arning" not in output[0]
    assert output[1] == ""


def test_a_run_of_two_processes_goes_on_with_one(runs, data, tmp_path, capfd):
    run = runs("pretrain") / "two/pretrain"
    half = copy_until(run, 6, tmp_path / "half")
    # The run knows how many it was begun with
    settings = replace(PretrainSettings(**pretraining(data)), processes=None)
    assert pretrain(data / "store", half, settings, resume=True).steps == STEPS["pretrain"]
    assert "the number of processes changed from 2 to 1" in capfd.readouterr().err
    assert_same_bits(run, half)


@pytest.mark.slow
@pytest.mark.parametrize(("began", "goes_on"), [("one", 2), ("two", 3)])
def test_a_run_goes_on_with_more_processes(runs, data, tmp_path, began, goes_on):
    run = runs("pretrain") / began / "pretrain"
    half = copy_until(run, 6, tmp_path / "half")
    _, errors = finished(start_pretraining(data, half, "--resume", processes=goes_on))
    idle = "2 micro-batches an update on 3 processes: 1 process is idle in the last turn" in errors
    assert idle == (goes_on == 3)
    assert_same_bits(run, half)


@pytest.mark.slow
def test_a_killed_process_costs_nothing_but_time(runs, data, tmp_path):
    """torchrun starts all again, and they go on from the newest checkpoint; a first start begins the run."""
    run = tmp_path / "killed"
    launch = start_pretraining(data, run, "--resume", "--max-restarts=1")
    wait_for(launch, (run / "checkpoints/step-000006").exists)
    workers = subprocess.run(
        ["pgrep", "-P", str(launch.pid)], capture_output=True, text=True
    ).stdout.split()
    assert len(workers) == 2
    os.kill(int(workers[1]), signal.SIGKILL)
    _, errors = finished(launch)
    assert "one is started" in errors
    assert errors.count("resumed at step 6") == 1
    # Of the survivor, unless torchrun stops it first
    assert errors.count("error[worker-died]") <= 1
    assert_same_bits(runs("pretrain") / "two/pretrain", run)


@pytest.mark.slow
def test_a_signal_to_torchrun_makes_all_save_and_stop(data, tmp_path):
    run = tmp_path / "stopped"
    launch = start_pretraining(data, run, steps=MANY)
    wait_for(launch, (run / "checkpoints/step-000006").exists)
    launch.send_signal(signal.SIGTERM)
    _, errors = finished(launch, code=1)  # torchrun's, for a signal
    assert errors.count("stopped by SIGTERM after step") == 1
    assert "error[" not in errors
    last = int(errors.split("stopped by SIGTERM after step ")[1].split(";")[0])
    state = read_json(run / "checkpoints" / f"step-{last:06d}" / "training_state.json")
    assert state["step"] == last
    assert state["processes"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("data", "error[corrupt]: shard 3"),
        ("memory", "error[out-of-memory]: CUDA out"),
        ("bug", "ZeroDivisionError:"),
    ],
)
def test_an_error_in_one_process_ends_all_and_is_said_once(data, tmp_path, fault, message):
    program = (Path(__file__).with_name("failing_process.py"), fault)
    _, errors = finished(start_pretraining(data, tmp_path / "run", program=program), code=1)
    ours, _, summary = errors.partition(
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
    )
    assert ours.count(message) == 1
    assert ours.count("error[") == (0 if fault == "bug" else 1)
    assert "exitcode  : " + ("2" if fault == "data" else "1") in summary
    if fault != "bug":
        assert message in summary


@pytest.mark.slow
def test_a_users_mistake_is_said_once_and_not_tried_again(runs, data, tmp_path):
    """Nor does a restart take the refused folder for a run of its own."""
    run = copy_until(runs("pretrain") / "two/pretrain", 6, tmp_path / "run")
    before = (run / "metrics.jsonl").read_bytes()
    _, errors = finished(start_pretraining(data, run, "--max-restarts=2"), code=1)
    ours, _, summary = errors.partition(
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
    )
    assert ours.count("error[exists]") == 1
    assert "error[exists]" in summary
    assert (run / "metrics.jsonl").read_bytes() == before
