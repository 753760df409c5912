"""Options of `albertkit quickstart`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from albertkit.command import SEVERAL
from albertkit.validation import Range


@dataclass(frozen=True)
class QuickstartOptions:
    """Train a tiny ALBERT from text in minutes: tokenizer, token store, pretraining, evaluation, HTML report.

    Run the same command again to continue an interrupted run.

    Attributes:
        out: Folder for all output: corpus.txt, tokenizer/, store/, run/, report.html.
        corpus: Text files, globs or folders. Default: the documentation that is part of Python.
        vocab_size: Vocabulary size, in tokens.
        text_rules: Text normalisation: google (English: lower case, no accents), multilingual
            (keeps both) or none.
        minutes: Minutes of pretraining, including evaluations and checkpoints; the other steps take
            about one minute. The number of updates is re-estimated during the run (fewer on a busy
            machine), and the learning rate schedule follows.
        seed: Random seed for all steps.
    """

    out: str | Path = Path("quickstart")
    _: KW_ONLY
    corpus: Annotated[tuple[str, ...], SEVERAL] = ()
    vocab_size: int = 4000
    text_rules: Literal["google", "multilingual", "none"] = "google"
    minutes: Annotated[float, Range(above=0)] = 3.75
    seed: int = 0
