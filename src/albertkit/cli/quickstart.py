"""albertkit quickstart"""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def quickstart(
    *,
    out: Path = Path("quickstart"),
    corpus: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    vocab_size: int = 4000,
    text_rules: Literal["google", "multilingual", "none"] = "google",
    minutes: float = 3.75,
    seed: int = 0,
    json: bool = False,
) -> None:
    """The whole life of an ALBERT in minutes: text, tokenizer, store, pretraining, evaluation, a report to look at.

    Args:
        out: Folder for everything it makes.
        corpus: Text files, globs or folders. Default: the documentation that every Python carries.
        vocab_size: Pieces of the tokenizer.
        text_rules: google for English (lower-case, no accents); multilingual keeps both; none leaves text as it is.
        minutes: Time for the pretraining; the rest takes about a minute. A busy machine makes fewer updates in it.
        seed: Start of everything random.
        json: Print one JSON object.
    """
    from albertkit.cli.printing import print_quickstart, print_result
    from albertkit.first_run import next_commands, quickstart

    result = quickstart(out, corpus or (), vocab_size=vocab_size, text_rules=text_rules, minutes=minutes, seed=seed)
    if json:
        print_result(result.to_dict(), json)
    else:
        print_quickstart(result.to_dict(), next_commands(out))
