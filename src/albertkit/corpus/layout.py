"""Find out whether the lines of plain text are sentences or whole paragraphs, before a store is built.

A line of plain text is one sentence, as in Google's `create_pretraining_data`. A file with a paragraph or a document a line
was read like that without a word: of 1.24 million tokens an epoch showed 57 % (paragraphs) or 1.6 % (documents), because a
sentence longer than a sequence is cut. So a build looks at the layout first, and stops unless its settings say what a line is.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from albertkit.addresses import is_remote
from albertkit.corpus.options import BuildSettings
from albertkit.corpus.readers import DocumentFile
from albertkit.corpus.sentences import split_sentences
from albertkit.data.inputs import InputFile
from albertkit.errors import DataError

_MAX_FILES = 5
_HEAD_BYTES = 1 << 16  # of each file
_MIN_CHARACTERS = 2000  # characters; less text says nothing
# In bytes of UTF-8, which are nearly the same in every language: sentences of English and Korean Wikipedia have 129 and 148 on
# average, their paragraphs 365 and 420. Where the average does not tell, the number of sentences does.
_PARAGRAPH_BYTES = 400
_MIN_SENTENCES = 3  # two are often a quotation


@dataclass(frozen=True)
class LineLayout:
    """The lines at the beginning of some files of plain text.

    Attributes:
        file: The first of the files.
        characters: Characters in a line, on average.
        sentences: Sentences in a line, on average.
        mean_bytes: UTF-8 bytes in a line, on average.
        several: Share of the text that is in lines of three sentences or more.
        blank_lines: Whether there are blank lines between lines of text.
    """

    file: str
    characters: float
    sentences: float
    mean_bytes: float
    several: float
    blank_lines: bool

    @property
    def paragraphs(self) -> bool:
        """Return True if the lines are too long for sentences."""
        return self.mean_bytes > _PARAGRAPH_BYTES or self.several > 0.5


def line_layout(files: Sequence[InputFile], settings: BuildSettings) -> LineLayout | None:
    """Look at the first 64 KiB of up to five files of plain text; None if there is too little of it to tell.

    Files of other formats are passed over, and so are pipes.
    """
    lines: list[str] = []
    first_path = ""
    has_blank_lines = False
    step = max(len(files) // _MAX_FILES, 1)
    for file in files[::step][:_MAX_FILES]:
        if not (is_remote(file.path) or os.path.isfile(file.path)):
            continue  # what is read from a pipe is gone
        documents = DocumentFile(file, settings, errors="replace")
        try:
            head = documents.head(_HEAD_BYTES) if documents.format == "text" else b""
        finally:
            documents.close()
        text = head.decode("utf-8", "ignore").strip()
        if len(head) == _HEAD_BYTES and "\n" in text:
            text = text[: text.rindex("\n")]
        stripped = [line.strip() for line in text.split("\n")]
        has_blank_lines = has_blank_lines or "" in stripped
        lines += filter(None, stripped)
        first_path = first_path or (file.path if text else "")
    size = sum(map(len, lines))
    if size < _MIN_CHARACTERS:
        return None
    counts = [len(split_sentences(line, "paragraph", settings.language)) for line in lines]
    return LineLayout(
        file=first_path,
        characters=size / len(lines),
        sentences=sum(counts) / len(lines),
        mean_bytes=sum(len(line.encode()) for line in lines) / len(lines),
        several=sum(len(line) for line, n in zip(lines, counts, strict=True) if n >= _MIN_SENTENCES) / size,
        blank_lines=has_blank_lines,
    )


def check_layout(files: Sequence[InputFile], settings: BuildSettings) -> None:
    """Make sure that lines of plain text are sentences, unless the settings say what a line is."""
    if settings.sentences is not None or settings.format not in (None, "text"):
        return
    layout = line_layout(files, settings)
    if layout is None or not layout.paragraphs:
        return
    ways = ["`--format paragraphs` if each line is a document", "`--sentences split` if blank lines end documents"]
    raise DataError(
        "doubtful",
        f"`{layout.file}`: a line of plain text is taken for one sentence, but a line here has {layout.sentences:.1f} "
        f"sentences and {layout.characters:,.0f} characters on average; most of such a line is never trained on",
        f"add {', '.join(ways[:: -1 if layout.blank_lines else 1])}, or `--sentences lines` if a line is one sentence",
    )


def settings_for(files: Sequence[InputFile]) -> BuildSettings:
    """Return settings that fit the layout of the files, for callers that cannot ask.

    These are the usual ones; for plain text with paragraphs in its lines `sentences="split"`, or `format="paragraphs"`
    where no blank line ends a document and all inputs are plain text.
    """
    layout = line_layout(files, BuildSettings())
    if layout is None or not layout.paragraphs:
        return BuildSettings()
    if not layout.blank_lines and all(map(_is_text, files)):
        return BuildSettings(format="paragraphs")
    return BuildSettings(sentences="split")


def _is_text(file: InputFile) -> bool:
    documents = DocumentFile(file)
    documents.close()
    return documents.format == "text"
