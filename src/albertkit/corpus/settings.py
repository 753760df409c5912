"""What decides the bytes of a store, beside inputs and tokenizer."""

from dataclasses import dataclass

from albertkit.corpus.readers import FORMATS, SEPARATOR
from albertkit.corpus.sentences import SENTENCES
from albertkit.errors import ConfigError, near_miss


@dataclass(frozen=True)
class BuildSettings:
    """What decides the bytes of a store, beside inputs and tokenizer.

    Args:
        format: text, jsonl, parquet, wiki, paragraphs or pairs; None finds out for each file (never the last two).
        field: JSONL field or Parquet column that holds the text; `a.b`, or `a[].b` of every item of a list (JSONL).
        separator: Between the sentences of a line of pairs.
        sentences: "lines" (a line is a sentence), "split", or "kiwi" (Korean, also without full stops: needs kiwipiepy);
            None: lines in plain text and pairs, split in the others.
        language: Two-letter code whose abbreviations the splitter knows.
        shard_tokens: Tokens a shard holds at most. 2^29: a file of 1 GiB (uint16) or 2 GiB, easy to copy and to check
            one by one, while offsets stay far below 2^32.
    """

    format: str | None = None
    field: str = "text"
    separator: str = SEPARATOR
    sentences: str | None = None
    language: str = "en"
    shard_tokens: int = 1 << 29

    def __post_init__(self) -> None:
        for name, known in (("format", FORMATS), ("sentences", SENTENCES)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise ConfigError(f"bad-{name}", f"there is no {name} `{value}`", near_miss(value, known))
        if not self.separator.strip(" "):
            raise ConfigError("bad-separator", "the separator is empty", "use a sign that no sentence holds, like ;$;")
        if not 0 < self.shard_tokens <= 1 << 31:
            raise ConfigError("bad-shard-tokens", f"shard_tokens is {self.shard_tokens:,}", "use 1 to 2^31")
