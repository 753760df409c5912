"""Settings that decide the bytes of a store, besides inputs and tokenizer."""

from dataclasses import dataclass

from albertkit.errors import ConfigError, near_miss

FORMATS = ("text", "jsonl", "parquet", "wiki", "paragraphs", "pairs")
SEPARATOR = ";$;"  # between the sentences of a line of `pairs`
SENTENCES = ("lines", "split", "kiwi")


@dataclass(frozen=True)
class BuildSettings:
    """What decides the bytes of a store, beside inputs and tokenizer.

    Attributes:
        format: `text`, `jsonl`, `parquet` or `wiki`; found out for each file if not given. Also `paragraphs` (each line is a
            document) and `pairs` (each line is one whose sentences the separator divides: `A;$;B`).
        field: JSONL field or Parquet column that holds the text; `a.b`, or `a[].b` of every item of a list (JSONL).
        separator: Between the sentences of a line of `pairs`; a line without it is passed over, counted and named.
        sentences: `lines` (a line is a sentence), `split`, or `kiwi` for Korean without full stops (250 times slower; extra
            `korean`). Not given: split in JSONL, Parquet, WikiExtractor's output and paragraphs; lines in pairs and in plain
            text, whose beginning is looked at first: the build stops if its lines are paragraphs.
        language: Two-letter code, for abbreviations. `en` serves Korean, Chinese and Japanese too.
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
                raise ConfigError("unknown-name", f"there is no {name} `{value}`", near_miss(value, known))
        if not self.separator.strip(" "):
            raise ConfigError("bad-value", "the separator is empty", "use a sign that no sentence holds, like ;$;")
        if not 0 < self.shard_tokens <= 1 << 31:
            raise ConfigError("bad-value", f"shard_tokens is {self.shard_tokens:,}", "use 1 to 2^31")
