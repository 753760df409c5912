"""Split documents into sentences, by sentencex (Wikimedia, MIT): rules and abbreviations in the package, no downloads."""

import re
from bisect import bisect_left
from itertools import accumulate, pairwise

# Chosen among eight libraries: 26 of 29 hand-made cases at 82 MB/s a core on English Wikipedia.
# pysbd has all 29 at 0.23 MB/s and has not changed since 2021; the table is in docs/log.md.
from sentencex import segment

from albertkit.tokenizer.morphemes import load_kiwi

# sentencex looks for an enclosing quotation around every ideographic full stop, over the whole
# text: 12 MB/s on 1,000 characters without a space, 0.9 on 16,000. Chinese and Japanese lines
# beyond this many characters go in pieces of it.
_IDEOGRAPHIC_WINDOW = 500
_IDEOGRAPHIC_END = re.compile(r"(?<=[。！？])(?![。！？」』”’）])")
_IDEOGRAPHIC_WRAP = re.compile(
    r"(?<=[\u3000-\u9fff\uff00-\uffef])\n(?=[\u3000-\u9fff\uff00-\uffef])"
)
# For each of these marks sentencex may search the rest of the text: 100,000 bytes of `。」` took 2 s,
# of `“` 27 s. A window ends with this many of them, and the next one starts with the first sentence
# that ends in its second half: only a quotation of 1,000 marks, some 20,000 characters of a novel,
# comes out otherwise than from the whole text.
_SEARCHED_MARK = re.compile(r"[`'\"«»‘’‚“”‛„‟‹›《》「」『』（）。！？]")
_WINDOW_MARKS = 2000
# A space of several bytes between an initial and its full stop ends sentencex 1.0.32 with a panic:
# it gets one of a single byte.
_WIDE_SPACE_AFTER_INITIAL = re.compile(r"([A-Z][\s./]*)[^\S\x00-\x7f](?=\.)")
# Typesetting breaks lines after 60 to 120 characters. A longer line is a paragraph of its own:
# joined to the next ones, one quotation mark that is never closed would hide every sentence after
# it from the splitter (4 MB of English Wikipedia with a document a line: 4,656 sentences in place
# of 35,509).
_MAX_TYPESET_LINE = 200  # characters


def line_rule(sentences: str | None, format: str) -> str:
    """Return the meaning of a line in a file of this format, by `BuildSettings.sentences`.

    It is "sentence"; "paragraph", when a line break always ends a sentence; "wrapped", when line
    breaks are only typesetting (plain text to be split); or "kiwi", a paragraph of Korean that
    kiwipiepy splits.
    """
    if sentences == "lines" or (sentences is None and format in ("text", "pairs")):
        return "sentence"
    if sentences == "kiwi":
        return "kiwi"
    return "wrapped" if format == "text" else "paragraph"


def split_sentences(text: str, rule: str = "paragraph", language: str = "en") -> list[str]:
    """Return the sentences of a document, stripped, none empty.

    Args:
        text: The document.
        rule: Meaning of a line; see `line_rule`.
        language: Two-letter code; decides which abbreviations are known. "en" serves Korean,
            Chinese and Japanese too.
    """
    if rule == "wrapped":
        lines = _IDEOGRAPHIC_WRAP.sub("", text).split("\n")
        ends = ["\n" if len(line) > _MAX_TYPESET_LINE else " " for line in lines[:-1]]
        text = "".join(line + end for line, end in zip(lines, [*ends, ""], strict=True))
    lines = text.split("\n")
    if rule == "kiwi":
        # Korean without full stops has sentences that only its verb endings show. Kiwi knows them,
        # at a 250th of the speed: of 1,500 film reviews, sentencex leaves 911 whole and Kiwi 757.
        # On edited text it is no better: 95 % of Wikipedia's lines come out the same. Of 22
        # hand-made cases sentencex has 12 at 53 MB/s, Kiwi 20 at 0.21.
        kiwi = load_kiwi("splitting Korean sentences by their endings")
        lines = [sentence.text for line in lines for sentence in kiwi.split_into_sents(line)]
    elif rule != "sentence":
        parts: list[str] = []
        for line in lines:
            parts.append("")
            if len(line) <= _IDEOGRAPHIC_WINDOW or not any(stop in line for stop in "。！？"):
                parts[-1] = line
                continue
            for sentence in _IDEOGRAPHIC_END.split(line):
                if len(parts[-1]) + len(sentence) > _IDEOGRAPHIC_WINDOW:
                    parts.append("")
                parts[-1] += sentence
        lines = [sentence for part in parts for sentence in _segment_in_windows(language, part)]
    stripped_lines = map(str.strip, lines)
    return [line for line in stripped_lines if line]


def _segment_in_windows(language: str, text: str) -> list[str]:
    searched_text = _WIDE_SPACE_AFTER_INITIAL.sub(r"\1 ", text)
    if len(text) <= _WINDOW_MARKS and searched_text == text:
        return segment(language, text)
    marks = [mark.start() for mark in _SEARCHED_MARK.finditer(text)]
    ends = [0]
    start = first_mark = 0
    while len(marks) - first_mark > _WINDOW_MARKS:
        middle = marks[first_mark + _WINDOW_MARKS // 2]
        window = searched_text[start : marks[first_mark + _WINDOW_MARKS]]
        ends += [end for end in _sentence_ends(language, window, start) if end <= middle]
        start = ends[-1] if ends[-1] > start else middle
        first_mark = bisect_left(marks, start)
    ends += _sentence_ends(language, searched_text[start:], start)
    return [text[start:end] for start, end in pairwise(ends)]


def _sentence_ends(language: str, window: str, start: int) -> list[int]:
    lengths = map(len, segment(language, window))
    return list(accumulate(lengths, initial=start))[1:]
