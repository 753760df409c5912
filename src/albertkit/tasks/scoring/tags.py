"""Predicted tags out of files: CoNLL columns, or records of `albertkit predict`."""

import re
from collections.abc import Sequence

from albertkit.corpus.inputs import ByteStream, find_inputs
from albertkit.errors import DataError
from albertkit.tasks.scoring.files import File, join, list_of, read_table
from albertkit.tasks.tables.source import lines
from albertkit.tasks.tagging import TaggedExample
from albertkit.tasks.tagging.schemes import is_tag


def read_tags(file: File, examples: Sequence[TaggedExample]) -> list[list[str]]:
    """The predicted tags of each sentence: the last column of CoNLL lines, or records with `tags`.

    Tags are taken as they are; `metrics.tagging` reads ill-formed ones as conlleval does.

    Args:
        file: As many words as the sentences have, in their order; the first column holds the words.
        examples: The sentences.

    Raises:
        DataError: words-mismatch, unknown-label; of records also what `read_table` raises.
    """
    with ByteStream(find_inputs([file])[0]) as stream:
        rows = list(lines(stream))
    first = next((line for _, line in rows if line.strip()), "")
    if first.lstrip().startswith("{"):
        given = join([example.id for example in examples], read_table(file, ("tags", "prediction"), ("id",)), file)
        sentences = [list_of(value, file) for value in given]
    else:
        sentences = _columns(rows, examples, file)
    for tags, example in zip(sentences, examples, strict=True):
        if len(tags) != len(example.words):
            raise DataError(
                "words-mismatch", f"`{file}`: sentence {example.id} has {len(tags)} tags for {len(example.words)} words",
                "predict the very sentences that are scored",
            )  # fmt: skip
        for tag in tags:
            if not is_tag(tag) or tag[0] in "LU":
                raise DataError(
                    "unknown-label",
                    f"`{file}`: `{tag}` of sentence {example.id} is no tag",
                    "tags are O, B-type, I-type, …",
                )
    return sentences


def _columns(rows: Sequence[tuple[int, str]], examples: Sequence[TaggedExample], file: File) -> list[list[str]]:
    """The last column, cut into the sentences of the examples, whose words must be those of the first column."""
    words = [(example.id, word) for example in examples for word in example.words]
    tags: list[str] = []
    for number, line in rows:
        fields = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        comment = line.startswith(("# ", "## ")) and not is_tag(fields[-1])
        if not line.strip() or line.startswith("-DOCSTART-") or comment:
            continue
        if len(tags) < len(words) and fields[0] != words[len(tags)][1]:
            sentence, word = words[len(tags)]
            raise DataError(
                "words-mismatch", f"`{file}`, line {number:,}: `{fields[0]}`, but word {word!r} of sentence {sentence} is next",
                "predict the very sentences that are scored",
            )  # fmt: skip
        tags.append(fields[-1])
    if len(tags) != len(words):
        raise DataError(
            "words-mismatch", f"`{file}` has {len(tags):,} words, the gold data have {len(words):,}",
            "predict the very sentences that are scored",
        )  # fmt: skip
    rest = iter(tags)
    return [[next(rest) for _ in example.words] for example in examples]
