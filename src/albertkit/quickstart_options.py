"""Options of `albertkit quickstart`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from albertkit.frame.command import SEVERAL


@dataclass(frozen=True)
class QuickstartOptions:
    """The whole life of an ALBERT in minutes: text, tokenizer, store, pretraining, evaluation, a report to look at.

    Killed, the same command goes on where it was.

    Attributes:
        out: Folder for everything it makes: corpus.txt, tokenizer/, store/, run/, report.html.
        corpus: Text files, globs or folders. Default: the documentation that every Python carries.
        vocab_size: Tokens of the vocabulary.
        text_rules: google for English (lower-case, no accents); multilingual keeps both; none leaves text as it is.
        minutes: Pretrain for this many minutes (including evaluations and checkpoints); the other steps take about a minute.
            The number of updates is estimated again during the run (fewer on a busy machine), and the learning rate schedule
            follows.
        seed: Seed of everything random.
    """

    out: str | Path = Path("quickstart")
    _: KW_ONLY
    corpus: Annotated[tuple[str, ...], SEVERAL] = ()
    vocab_size: int = 4000
    text_rules: Literal["google", "multilingual", "none"] = "google"
    minutes: float = 3.75
    seed: int = 0
