"""A mistyped command line is answered like every other mistake, and settings files come in the formats that people have."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import albertkit
from albertkit.cli import COMING_FROM, app, main
from albertkit.cli.commands import COMMANDS
from albertkit.errors import ConfigError, DataError
from albertkit.files import check_folder_name, parse_yaml
from albertkit.pretraining import PretrainSettings
from albertkit.tasks.settings import FinetuneSettings


@pytest.fixture
def run_cli(capsys):
    """Run a command in this process; return its exit status and what it says on standard error."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return ended.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("arguments", "fact", "hint"),
    [
        (
            ["finetune"],
            "`albertkit finetune TASK MODEL DATA`: TASK is missing",
            "`albertkit finetune --help`",
        ),
        (
            "finetune model data --out o".split(),
            "DATA is missing",
            "`albertkit finetune --help`",
        ),
        (
            ["corpus", "build"],
            "`albertkit corpus build INPUTS`: INPUTS is missing",
            "`albertkit corpus build --help`",
        ),
        (["pretrain", "store"], "`albertkit pretrain STORE`: --out is missing", "--help"),
        (
            ["pretrain", "store", "--out"],
            "`albertkit pretrain STORE`: --out needs a value",
            "--help",
        ),
        (
            ["predict", "m", "--text", "-5 degrees"],
            "--text needs a value",
            "begins with a dash: --text='-5 degrees'",
        ),
        (
            "tokenizer train text --out o --special-pieces [PAD],[UNK]".split(),
            "--special-pieces takes 5 words, separated by spaces",
            "--help",
        ),
        (
            "pretrain s --out r --steps x".split(),
            "--steps is `x`, it must be a whole number",
            "--help",
        ),
        (
            "finetune a b c --lora 1.5".split(),
            "--lora is `1.5`, it must be a whole number",
            "--help",
        ),
        (
            "embed evaluate a b --dimension 8 --dimension 1.5".split(),
            "--dimension is `1.5`, it must be a whole number",
            "--help",
        ),
        (
            "finetune a b c --lenght 3".split(),
            "unknown option: --lenght",
            "did you mean `--length`?",
        ),
        (["embed", "trian"], "`albertkit embed` has no command `trian`", "did you mean `train`?"),
        (["pretrian"], "`albertkit` has no command `pretrian`", "did you mean `pretrain`?"),
        (
            ["run_pretraining"],
            "`run_pretraining` is a script of another project",
            "albertkit pretrain STORE --out RUN",
        ),
        (
            ["evaluate-v2.0.py"],
            "`evaluate-v2.0.py` is a script",
            "albertkit score squad PREDICTIONS GOLD",
        ),
        (
            ["insert_vocab.ipynb"],
            "`insert_vocab.ipynb` is a script",
            "albertkit tokenizer extend TOKENIZER TEXT",
        ),
        (
            ["albert/run_squad_v2.py"],
            "`albert/run_squad_v2.py` is a script",
            "albertkit finetune squad2 MODEL squad",
        ),
    ],
)
def test_a_mistyped_command_line_is_an_error_with_a_slug_and_a_hint(run_cli, arguments, fact, hint):
    code, text = run_cli(*arguments)
    assert code == 2
    assert text.startswith("error[bad-command-line]: ")
    message, _, hinted = text.partition("\n\nhint: ")
    assert fact in message
    assert hint in hinted


@pytest.mark.parametrize(
    "command",
    [
        "score classify DATA DATA --out",
        "embed evaluate MODEL pairs=DATA --out",
        "finetune classify MODEL DATA --out",
        "pretrain STORE --out",
        "embed train pairs MODEL DATA --out",
        "embed distill MODEL DATA --teacher MODEL --out",
        "corpus build DATA --tokenizer MODEL --out",
        "corpus export STORE --out",
        "tokenizer train DATA --out",
        "tokenizer convert MODEL",
        "convert MODEL",
        "init --tokenizer MODEL --out",
        "export onnx MODEL --out",
        "caption train MODEL DATA --out",
        "quickstart --out",
    ],
)
def test_a_folder_that_is_called_a_file_is_refused_before_anything_is_read(
    run_cli, tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    for name in ("results.json", "results.json.gz", "Model.ONNX"):
        code, text = run_cli(*command.split(), name)
        assert code == 2
        assert "error[bad-value]" in text
        assert not Path(name).exists()
    Path("results.json").mkdir()
    for name in ("run-1.5", "albert.ko", "model.v2", "results.json"):
        assert check_folder_name(name) == Path(name)


def test_the_commands_that_scripts_are_answered_with_are_understood():
    for command in COMING_FROM.values():
        app.parse_args(command.split(), exit_on_error=False, print_error=False)


def test_a_word_that_is_not_utf_8_is_refused(run_cli):
    code, text = run_cli("predict", "model", os.fsdecode(b"caf\xe9.csv"), "--out", "p.jsonl")
    assert code == 2
    assert text.startswith(r"error[bad-encoding]: the name `caf\udce9.csv` is not UTF-8")


def test_only_settings_have_a_negative_form(capsys):
    with pytest.raises(SystemExit):
        main(["finetune", "--help"])
    output = capsys.readouterr().out
    assert "--no-gradient" in output  # a settings file may have switched it on
    assert "--no-json" not in output
    assert "--empty" not in output


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", 'lr = 0.003\nsteps = 7\noptimizer = "adamw"\n'),
        ("a.json", '{"lr": 0.003, "steps": 7, "optimizer": "adamw"}'),
        ("a.yaml", "lr: 0.003\nsteps: 7\noptimizer: adamw\n"),
        ("a.yml", "{lr: 0.003, steps: 7, optimizer: adamw}"),
    ],
)
def test_settings_are_read_from_toml_json_and_yaml(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert PretrainSettings.read(tmp_path / name) == {"lr": 0.003, "steps": 7, "optimizer": "adamw"}


@pytest.mark.parametrize("text", ["lr = 0.003\nsteps = 7\n", '{"lr": 0.003, "steps": 7}'])
def test_settings_are_read_from_a_pipe(tmp_path, text):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    assert PretrainSettings.read(pipe, pipe=True) == {"lr": 0.003, "steps": 7}
    writer.join()
    with pytest.raises(DataError, match="wrong-kind"):  # a run's own file is none
        PretrainSettings.read(pipe)


@pytest.mark.parametrize(
    ("name", "text", "fact"),
    [
        ("a.json", '{"lr": ', "a.json"),
        ("a.json", "[1, 2]", "holds no keys"),
        ("a.yaml", "lr: [1, {a: b}]", "neither a number"),
        ("a.yaml", "a: &a [x]\nb: &b [*a, *a]\nlr: [*b, *b]", "neither a number"),
        ("a.yaml", "lr: !!python/object:os.system {}", "could not determine a constructor"),
        ("a.yaml", "lr: 0.1\nsteps: 3\nlr: 0.2\n", "the key `lr` occurs twice"),
        ("a.toml", "lr = ", "a.toml"),
        ("a.toml", "# " + "x" * 1_000_001, "longer than 1,000,000 bytes"),
    ],
)
def test_a_broken_settings_file_is_refused(tmp_path, name, text, fact):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        PretrainSettings.read(tmp_path / name)
    assert caught.value.slug == "bad-file"
    assert fact in caught.value.message


def test_settings_of_another_training_are_recognised(tmp_path):
    PretrainSettings(size="tiny").save(tmp_path / "run.toml")
    with pytest.raises(
        ConfigError, match="the file holds PretrainSettings, `FinetuneSettings` are expected"
    ):
        FinetuneSettings.read(tmp_path / "run.toml")


CALL = """
import atexit, os
from albertkit.cli import main
atexit.register(lambda: print(os.environ.get("GOMP_SPINCOUNT")))
main(["--version"])
"""


@pytest.mark.parametrize(
    ("variables", "bound"),
    [
        ({}, "3000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, "None"),
    ],
)
def test_waiting_threads_spin_as_long_as_the_environment_says(variables, bound):
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    process = subprocess.run(
        [sys.executable, "-c", CALL], env=environment | variables, capture_output=True, text=True
    )
    assert process.stdout.split()[-1] == bound, process.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_commands_that_train_keep_freed_memory_unless_the_environment_says_otherwise(
    run_cli, monkeypatch
):
    calls = []
    library = SimpleNamespace(mallopt=lambda option, value: calls.append((option, value)))
    monkeypatch.setattr("albertkit.cli.ctypes.CDLL", lambda name: library)
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    run_cli("predict", "--help")
    assert calls == []
    run_cli("pretrain", "--help")
    assert calls == [(-4, 0), (-1, -1)]  # M_MMAP_MAX, M_TRIM_THRESHOLD of malloc.h
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    run_cli("finetune", "--help")
    assert len(calls) == 2


def test_the_package_is_a_command_too():
    process = subprocess.run(
        [sys.executable, "-m", "albertkit", "--version"], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == albertkit.__version__


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_help_names_every_argument_and_speaks_of_the_command_line(capsys, command):
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    output = capsys.readouterr().out
    usage = output.partition("\n")[0]
    assert usage.startswith(f"Usage: albertkit {command}")
    assert "[ARGS]" not in usage
    assert {"inspect": "[OPTIONS] [MODEL]", "predict": "[OPTIONS] MODEL [INPUT]"}.get(
        command, ""
    ) in usage
    assert "In Python" not in output
    sentences = " ".join(output.replace("│", " ").split())
    assert "[default: ()]" not in sentences
    assert "[default: None]" not in sentences
    assert ("[default: <pad> <unk> [CLS] [SEP] [MASK]]" in sentences) == (
        command == "tokenizer train"
    )


@pytest.mark.parametrize("columns", "0 1 -3 wide 99999999999".split())
def test_a_terminal_of_any_width_shows_help(columns, run_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    result = run_command("inspect", "--help")
    assert result.status == 0
    assert "Usage" in result.out


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_closed_stream_is_read_and_written_as_nothing(stream, monkeypatch):
    """Python has None for a stream that was closed: `albertkit … >&-`."""
    monkeypatch.setattr(sys, stream, None)
    for arguments, status in (["--help"], 0), (["no-such-command"], 2):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == status


def test_a_key_of_yaml_that_overrides_a_merged_one_is_none_given_twice():
    text = "base: &base {lr: 0.1, steps: 3}\nrun: {<<: *base, lr: 0.2}\n"
    assert parse_yaml(text)["run"] == {"lr": 0.2, "steps": 3}
