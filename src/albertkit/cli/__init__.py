"""The command line: the app of all commands, and `main`. A command is imported only when it is called."""

import ctypes
import inspect
import logging
import os
import shlex
import shutil
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_origin

from cyclopts import App, CycloptsError, Group, Parameter, Token, convert
from cyclopts.config import Dict
from cyclopts.exceptions import CoercionError, MissingArgumentError, UnknownCommandError
from cyclopts.help import format_usage
from rich.console import Console

from albertkit import __version__
from albertkit.cli.commands import COMMANDS
from albertkit.encodings import check_path_is_utf8
from albertkit.errors import ConfigError, explain_os_error, suggest_name
from albertkit.printable import escape_line, print_note
from albertkit.training import launch
from albertkit.training.launch import stop_signals
from albertkit.validation import describe_type

# Scripts that people come from, and the command that does their work.
COMING_FROM = {
    "create_pretraining_data": "corpus build TEXT-FILES --tokenizer TOKENIZER --out STORE",
    "create_finetuning_data": "finetune TASK MODEL DATA --out RUN",
    "run_pretraining": "pretrain STORE --out RUN",
    "run_mlm": "pretrain STORE --continue MODEL --pair-task none --out RUN",
    "run_classifier": "finetune mrpc MODEL glue/MRPC --out RUN",
    "run_glue": "finetune mrpc MODEL glue/MRPC --out RUN",
    "run_squad": "finetune squad2 MODEL squad --out RUN",
    "run_squad_v1": "finetune squad1 MODEL squad --out RUN",
    "run_squad_v2": "finetune squad2 MODEL squad --out RUN",
    "run_qa": "finetune squad2 MODEL squad --out RUN",
    "run_race": "finetune race MODEL race --out RUN",
    "run_swag": "finetune choice MODEL DATA --out RUN",
    "run_ner": "finetune ner MODEL DATA --out RUN",
    "insert_vocab": "tokenizer extend TOKENIZER TEXT --model MODEL --out GROWN",
    "spm_train": "tokenizer train TEXT-FILES --out TOKENIZER",
    "spm_encode": "tokenizer encode TEXT --tokenizer TOKENIZER",
    "convert_albert_original_tf_checkpoint_to_pytorch": "convert SOURCE TARGET",
    "export_checkpoints": "convert SOURCE TARGET",
    "tf2_encoder_checkpoint_converter": "convert SOURCE TARGET",
    "tf2_albert_encoder_checkpoint_converter": "convert SOURCE TARGET",
    "evaluate-v1.1": "score squad PREDICTIONS GOLD",
    "evaluate-v2.0": "score squad PREDICTIONS GOLD",
    "albert-model-create": "init --tokenizer TOKENIZER --out MODEL",
    "albert-further-pretrain-mlm": "pretrain STORE --continue MODEL --pair-task none --out RUN",
    "albert-sts-to-sbert": "embed train korsts MODEL DATA --out RUN",
    "sbert-distillaton": "embed distill MODEL PAIRS --teacher TEACHER --out RUN",
    "run_caption_VidSwinBert_inference": "caption predict RUN video.mp4",
    "training_nli": "embed train nli MODEL DATA --out RUN",
    "training_stsbenchmark": "embed train stsb MODEL DATA --out RUN",
    "make_multilingual": "embed distill MODEL PAIRS --teacher TEACHER --out RUN",
    "migrate_to_albert": "migrate swinbert CHECKOUT",
    "run_caption_VidSwinBert": "caption train MODEL CLIPS --out RUN",
}


def usage_error(error: CycloptsError, app: App) -> ConfigError:
    """State a command line that cannot be understood as a fact and a hint."""
    chain = [word for word in (error.command_chain or ()) if not word.startswith("-")]
    command = " ".join(["albertkit", *chain])
    if isinstance(error, UnknownCommandError):
        word = error.unused_tokens[0] if error.unused_tokens else ""
        script = word.rsplit("/", 1)[-1].removesuffix(".py").removesuffix(".ipynb")
        if script in COMING_FROM:
            return ConfigError(
                "bad-command-line",
                f"`{word}` is a script of another project",
                f"albertkit {COMING_FROM[script]}",
            )
        group = app
        for name in chain:
            group = group[name]
        commands = [name for name in group if not name.startswith("-")]
        return ConfigError(
            "bad-command-line", f"`{command}` has no command `{word}`", suggest_name(word, commands)
        )
    if isinstance(error, MissingArgumentError) and error.target is not None and error.argument:
        name = error.argument.field_info.name
        parameters = inspect.signature(error.target).parameters.values()
        required = [
            p.name
            for p in parameters
            if p.kind is not p.KEYWORD_ONLY and p.default is inspect.Parameter.empty
        ]
        flag = error.argument.name
        displayed_name = name.upper() if name in required else flag
        number, _ = error.argument.token_count()
        needed = "needs a value" if number == 1 else f"takes {number} words, separated by spaces"
        words = list(error.root_input_tokens or ())
        wrong = needed if flag in words else "is missing"
        usage = " ".join([command, *map(str.upper, required)])
        hint = f"`{command} --help` lists the options"
        after = words[words.index(flag) + 1 :][:1] if flag in words else []
        if after and after[0].startswith("-") and number == 1:
            hint = f"a value that begins with a dash: {flag}={shlex.quote(after[0])}"
        return ConfigError("bad-command-line", f"`{usage}`: {displayed_name} {wrong}", hint)
    if (
        isinstance(error, CoercionError)
        and error.token
        and error.argument
        and get_origin(error.target_type) is not Literal  # cyclopts suggests a choice
    ):
        return ConfigError(
            "bad-command-line",
            f"`{command}`: {error.argument.name} is `{error.token.value}`, it must be {describe_type(error.target_type)}",
            f"`{command} --help` lists the options",
        )
    fact, has_suggestion, close = " ".join(str(error).split()).partition("Did you mean ")
    fact = (
        fact.replace(" from dict", " of --config-file")
        .strip()
        .rstrip(".")
        .removeprefix(f'Command "{" ".join(chain)}" ')
    )
    close = close.rstrip("?.").strip("\"'")
    hint = f"did you mean `{close}`?" if has_suggestion else f"`{command} --help` lists the options"
    return ConfigError("bad-command-line", f"`{command}`: {fact[:1].lower()}{fact[1:]}", hint)


def convert_exactly(kind: Any, tokens: Sequence[Token]) -> Any:
    """Convert as cyclopts does, but refuse 1.5 for a whole number, which it would round."""
    value = convert(kind, tokens)
    values = value if isinstance(value, tuple) else [value]
    for token, number in zip(tokens, values, strict=False):
        if type(number) is int and "." in token.value and number != float(token.value):
            raise CoercionError(token=token, target_type=int)
    return value


def _format_default(value: Any) -> str | None:
    """Return a default as it would be typed; None, which `--help` leaves out, for no value or no values."""
    if value is None or value == ():
        return None
    return " ".join(value) if isinstance(value, tuple) else str(value)


app = App(
    name="albertkit",
    help="Train, fine-tune, evaluate and serve ALBERT models.",
    version=__version__,
    help_format="markdown",
    result_action="return_value",  # `main` ends the process
    suppress_keyboard_interrupt=False,  # `main` says it
    exit_on_error=False,
    print_error=False,  # `main` prints all errors alike
    # Only settings have a --no-form: they may stand in a file, which flags win over.
    default_parameter=Parameter(
        converter=convert_exactly,
        negative_bool=(),
        negative_iterable=(),
        show_default=_format_default,
    ),
)
# The jobs that commands are for, in the order of the help page; a command or group that none names
# is for looking.
_TEXT, _MODELS, _TRAINING, _ANSWERS, _LOOKING = (
    Group(title, sort_key=position)
    for position, title in enumerate(
        ("Text", "Checkpoints", "Training", "Using a model", "Evaluation and inspection"),
        1,
    )
)
_GROUPS = {"": app}
for name, group_of_help, text in (
    ("tokenizer", _TEXT, "Train, use and convert SentencePiece tokenizers."),
    ("corpus", _TEXT, "Build, inspect and export token stores for pretraining."),
    ("embed", _TRAINING, "Train, distil, evaluate and use sentence embeddings."),
    ("caption", _TRAINING, "Prepare clips; train, evaluate and use video captioners."),
    ("export", _ANSWERS, "Export models to other runtimes."),
    ("migrate", _MODELS, "Replace BERT by ALBERT in SwinBERT; convert SwinBERT checkpoints."),
):
    _GROUPS[name] = App(name=name, group=group_of_help, help=text)
    app.command(_GROUPS[name])

_GROUP_OF_COMMAND = {
    **dict.fromkeys(("quickstart", "pretrain", "finetune"), _TRAINING),
    **dict.fromkeys(("convert", "init", "inspect"), _MODELS),
    **dict.fromkeys(("predict", "serve", "compare-precision", "early-exit"), _ANSWERS),
    **dict.fromkeys(("evaluate", "score", "report", "doctor"), _LOOKING),
}

for command in COMMANDS:
    first, _, last = command.name.rpartition(" ")
    if first not in _GROUPS:
        app.command(_GROUPS.setdefault(first, App(name=first, group=_LOOKING)))
    options: dict[str, Any] = {} if first else {"group": _GROUP_OF_COMMAND.get(last, _LOOKING)}
    _GROUPS[first].command(f"albertkit.cli.commands:{command.identifier}", name=last, **options)


_TRAINS = ("quickstart", "pretrain", "finetune", "embed", "caption")
_MIN_COLUMNS, _MAX_COLUMNS = 20, 1000  # of a terminal
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h

# Whose log people read: which model a run stands for; that loops are compiled.
_PRINTED = ("model_paths", "jit")


class _LogLines(logging.Handler):
    """Print lines of the log on the standard error, each once a command."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line that has not been printed yet."""
        line = record.getMessage()
        if line not in self._printed:
            self._printed.add(line)
            print_note(line)


def _run_command(arguments: list[str]) -> Any:
    """Run the command that the arguments name."""
    words = [argument for argument in arguments if not argument.startswith("-")]
    if " ".join(words) in _GROUPS:
        group = _GROUPS[" ".join(words)]
        for name in group:
            # Imports a command that is registered by its import path: its docstring is the summary
            group[name]
    for command in COMMANDS:
        words = command.name.split()
        if arguments[: len(words)] != words:
            continue
        for index, argument in enumerate(arguments):
            flag, _, value = argument.partition("=")
            path = value or " ".join(arguments[index + 1 : index + 2])
            if flag == "--config-file" and path and command.settings:
                # Between the defaults and the flags
                settings = command.settings.read(Path(path), pipe=True)  # type: ignore[attr-defined]
                app.config = Dict(settings, use_commands_as_keys=False)
        if {"--help", "-h"} & {*arguments}:
            # For optional arguments cyclopts writes [ARGS]
            command_app = app
            for word in words:
                command_app = command_app[word]
            assert command_app.default_command is not None
            parameters = inspect.signature(command_app.default_command).parameters.values()
            optional = [
                f"[{p.name.upper().replace('_', '-')}]"
                for p in parameters
                if p.kind is not p.KEYWORD_ONLY and p.default is not p.empty
            ]
            usage = str(format_usage(app, words)).rstrip()
            command_app.usage = usage.replace("[ARGS]", " ".join(optional))
        break
    replaced = []
    # Elsewhere a "-" after an option is a value, such as a text.
    for previous, word in zip(["", *arguments], arguments, strict=False):
        if word == "-" and previous == "--out":
            word = "/dev/stdout"
        elif word == "-" and not previous.startswith("-"):
            word = "/dev/stdin"
        replaced.append(word)
    try:
        return app(replaced)
    except CycloptsError as error:
        raise usage_error(error, app) from None


def set_up_process(trains: bool) -> None:
    """Set for the process how long threads spin and whether freed memory is kept: a library must not, a command may.

    What the environment says wins. Standard streams that were closed (`>&-`) are /dev/null.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (until the process ends)
    # rich and cyclopts fail where the width is 0, never end where it is 1, and fill huge ones
    columns = shutil.get_terminal_size().columns
    if not _MIN_COLUMNS <= columns <= _MAX_COLUMNS or "COLUMNS" in os.environ:
        os.environ["COLUMNS"] = str(min(max(columns, _MIN_COLUMNS), _MAX_COLUMNS))
    # OpenMP's waiting threads spin for milliseconds by default, also for a thread whose core
    # another process has. So they spin for some 30 microseconds and then sleep. Training tokens a
    # second of a small model on two cores: alone 18,900 with the default, 18,300 so, 17,400 with a
    # third of it; beside one busy process 1,800, 9,500 and 9,800. OpenMP reads it when torch is
    # loaded, so the Python functions leave it as it is.
    if "torch" not in sys.modules and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "3000"
    # glibc returns blocks above 32 MB to the system at once, and the next ones fault page by page:
    # 53,000 times an update of `recipes/wiki-tiny-cpu.toml`, which costs 12 % of its time. Kept,
    # they cost 16 % more memory at the peak. Huge pages were no help: `THP_MEM_ALLOC_ENABLE` costs
    # more than the faults that it saves, `glibc.malloc.hugetlb=1` changes nothing.
    if (
        trains
        and sys.platform == "linux"
        and not any(name.startswith("MALLOC_") for name in os.environ)
    ):
        with suppress(AttributeError):  # a C library without it
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_MMAP_MAX, 0)
            mallopt(_M_TRIM_THRESHOLD, -1)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; say errors without a traceback. Exit status 2: the user's mistake; 1: ours or the machine's.

    Of several processes that torchrun started, the first prints results, and the first that fails
    says why.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    set_up_process(trains=bool(arguments) and arguments[0] in _TRAINS)
    if launch.was_refused_before():
        sys.exit(2)
    if not launch.is_speaking_process():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
        app.error_console = Console(file=sys.stdout)
    printing = _LogLines()
    logs = [logging.getLogger(f"albertkit.{name}") for name in _PRINTED]
    for log in logs if launch.is_speaking_process() else ():
        log.addHandler(printing)
        log.setLevel(logging.INFO)
    last_resort, logging.lastResort = logging.lastResort, printing  # of the other loggers
    format_warning = warnings.formatwarning
    warnings.formatwarning = lambda message, *_: f"warning: {escape_line(str(message))}\n"
    before: dict[signal.Signals, Any] = {}
    with suppress(ValueError):  # not in the main thread, which alone gets signals
        for number in stop_signals():
            # The exit status of a process that the signal ended, but half-written files go and
            # workers end.
            before[number] = signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        for word in arguments:
            check_path_is_utf8(word)
        result = _run_command(arguments)
        sys.stdout.flush()  # a reader that has gone shows here, not after the last line of Python
    except KeyboardInterrupt:
        print_note("stopped")
        sys.exit(130)
    except BrokenPipeError:  # `albertkit … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        explained = explain_os_error(error)
        if launch.world_size() > 1 and not launch.claim_first_failure():
            sys.exit(explained.exit_code if explained else 1)
        if explained is None or os.environ.get("ALBERTKIT_TRACEBACK"):
            raise
        launch.record_failure(explained)
        print(explained, file=sys.stderr, flush=True)
        sys.exit(explained.exit_code)
    finally:
        for log in logs:
            log.removeHandler(printing)
        logging.lastResort = last_resort
        warnings.formatwarning = format_warning
        for number, handler in before.items():
            signal.signal(number, handler)
        app.config = ()  # a next command in the same process has settings of its own
    sys.exit(result if isinstance(result, int) else 0)
