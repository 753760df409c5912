"""The command line: one short file a command, no logic. Commands are imported only when they are called."""

import os
import sys

from cyclopts import App

from albertkit import __version__
from albertkit.errors import AlbertKitError, explain

app = App(
    name="albertkit",
    help="One layer, run twelve times: train, adapt, measure and serve ALBERT.",
    version=__version__,
    help_format="markdown",
)
tokenizer = App(name="tokenizer", help="Train, use and convert SentencePiece tokenizers.")
corpus = App(name="corpus", help="Turn text into a token store and look inside it.")
bench = App(name="bench", help="Measure albertkit beside its peers, on this machine, in one run.")
for group in (tokenizer, corpus, bench):
    app.command(group)

_COMMANDS = "albertkit.cli"
app.command(f"{_COMMANDS}.quickstart:quickstart", name="quickstart")
app.command(f"{_COMMANDS}.pretrain:pretrain", name="pretrain")
app.command(f"{_COMMANDS}.evaluate:evaluate", name="evaluate")
app.command(f"{_COMMANDS}.doctor:doctor", name="doctor")
tokenizer.command(f"{_COMMANDS}.tokenizer:train", name="train")
tokenizer.command(f"{_COMMANDS}.tokenizer:encode", name="encode")
corpus.command(f"{_COMMANDS}.corpus:build", name="build")
corpus.command(f"{_COMMANDS}.corpus:inspect", name="inspect")
bench.command(f"{_COMMANDS}.bench:tokenize", name="tokenize")
bench.command(f"{_COMMANDS}.bench:data", name="data")
bench.command(f"{_COMMANDS}.bench:pretrain", name="pretrain")


def main(arguments: list[str] | None = None) -> None:
    """Run a command; say errors without a traceback. Exit status 2: the user's mistake; 1: ours or the machine's."""
    try:
        result = app(arguments)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # `albertkit … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (AlbertKitError, OSError) as error:
        explained = explain(error)
        if explained is None or os.environ.get("ALBERTKIT_TRACEBACK"):
            raise
        print(explained, file=sys.stderr)
        sys.exit(explained.exit_code)
    sys.exit(result if isinstance(result, int) else 0)
