"""Find out in what encoding a text is that is not UTF-8, and name the command that converts it; Unicode's normal forms.

LATIN1 takes every byte, so the advice to convert from it never fails, and makes letters of nonsense
of a Korean, Japanese, Chinese or Russian file. So those encodings are tried first: one fits if
nearly all that it decodes are common characters of its own language, as hardly any of another
encoding's bytes are (the rare half of CP949's syllables, of GB18030's characters).
"""

import os
import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache
from typing import Literal

from albertkit.errors import DataError

SAMPLE_BYTES = 1 << 16
# Share of what is beyond ASCII that must be common characters of the encoding's language: 14 of 14
# cases of 30 bytes and more are named rightly; johab, CP866 and Mac Roman become Western European.
_FITS = 0.9
_REPLACEMENT = "\ufffd"
_PUNCTUATION = re.compile(
    "[\u2010-\u203f\u3000-\u3004\u3008-\u3020\uff01-\uff20\uff3b-\uff40\u00b7]"
)
_WORD = re.compile(r"[^\W\d_]+")
_MIN_MOJIBAKE = 100  # characters beyond ASCII; fewer may be a language's own


def _non_ascii_letters(text: str) -> str:
    """Return the characters beyond ASCII that are no punctuation."""
    return _PUNCTUATION.sub("", "".join(character for character in text if character > "\x7f"))


def _make_charset_row_test(encoding: str, first_row: int, last_row: int) -> Callable[[str], bool]:
    """Return whether a character is in these rows of a character set, where its common characters are."""

    def common(character: str) -> bool:
        code = character.encode(encoding, "ignore")
        return len(code) == 2 and first_row <= code[0] <= last_row

    return common


def _matching_share(items: Iterable[str], *predicates: Callable[[str], bool]) -> float:
    matches = [any(kind(character) for kind in predicates) for character in items]
    return sum(matches) / max(len(matches), 1)


def _is_kana(character: str) -> bool:
    return "\u3041" <= character <= "\u30ff"


def _japanese_share(text: str) -> float:
    letters = _non_ascii_letters(text)
    return (
        _matching_share(letters, _is_kana, _make_charset_row_test("euc_jp", 0xB0, 0xCF))
        if _matching_share(letters, _is_kana) > 0.15
        else 0.0
    )


def _cyrillic_share(text: str) -> float:
    """Return the share of the words beyond ASCII that are Cyrillic throughout, in lower case but for the first letter.

    Words of one letter say nothing: the French "à" is one.
    """
    words = [word for word in _WORD.findall(text) if len(word) > 1 and not word.isascii()]
    return _matching_share(
        words,
        lambda word: (
            all("\u0401" <= character <= "\u0451" for character in word)
            and word[1:] == word[1:].lower()
        ),
    )


# Names that iconv and Python know; the first that fits is named. Korean in CP949 fits GB18030 too,
# but hardly the reverse.
_CANDIDATES: dict[str, Callable[[str], float]] = {
    # Syllables and single letters
    "CP949": lambda text: _matching_share(
        _non_ascii_letters(text),
        _make_charset_row_test("euc_kr", 0xB0, 0xC8),
        _make_charset_row_test("euc_kr", 0xA4, 0xA4),
    ),
    "SHIFT_JIS": _japanese_share,
    "EUC-JP": _japanese_share,
    "GB18030": lambda text: _matching_share(
        _non_ascii_letters(text), _make_charset_row_test("gb2312", 0xB0, 0xD7)
    ),
    "BIG5": lambda text: _matching_share(
        _non_ascii_letters(text), _make_charset_row_test("big5", 0xA4, 0xC6)
    ),
    "CP1251": _cyrillic_share,
    "KOI8-R": _cyrillic_share,
}

_WIDER = {"SHIFT_JIS": "CP932", "BIG5": "CP950"}  # as Windows writes them
_CODECS = (*_CANDIDATES, *_WIDER.values(), "CP1252", "LATIN1")
_DAMAGED = "it is UTF-8 but for a few bytes: copy or download it again"
_LINE_PROGRAM = (
    'python3 -c "import fileinput, sys; sys.stdout.buffer.writelines('
    "line if line == line.decode('utf-8', 'ignore').encode() else line.decode('{}', 'replace').encode() "
    "for line in fileinput.input(mode='rb'))\""
)


def likely_encoding(sample: bytes) -> str | None:
    """Return the name of the encoding that a text is in, as iconv and Python know it.

    Args:
        sample: The beginning of a text, or some of its lines; 64 KiB are plenty.

    Returns:
        "UTF-8" for UTF-8 with a few damaged bytes; UTF-16 or another encoding that fits; None if
        only one of Western Europe is left, which every sequence of bytes is.
    """
    if sample.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    if b"\0" in sample:
        for name in ("UTF-16LE", "UTF-16BE"):
            text = sample[: len(sample) // 2 * 2].decode(name, "replace")
            plain = sum(
                (c.isprintable() and (c < "\u0250" or c.isalpha() or c.isspace())) or c in "\t\r\n"
                for c in text
            )
            ascii_part = sum("\x08" < c < "\x7f" for c in text)
            if plain > 0.95 * len(text) and ascii_part > 0.05 * len(text):
                return name
        return None
    if _decodable_text_and_share(sample, "utf-8")[1] > _FITS:
        return "UTF-8"
    for name, fitting in _CANDIDATES.items():
        text, sound = _decodable_text_and_share(sample, name)
        if sound > _FITS and fitting(text) > _FITS:
            return name
    return None


def _decodable_text_and_share(sample: bytes, encoding: str) -> tuple[str, float]:
    """Return the text, and which share of what is beyond ASCII can be decoded; a character cut off at the end does not count."""
    text = sample.decode(encoding, "replace").rstrip(_REPLACEMENT)
    num_foreign = sum(character > "\x7f" for character in text)
    return text.replace(_REPLACEMENT, ""), 1 - text.count(
        _REPLACEMENT
    ) / num_foreign if num_foreign else 0.0


def conversion_command(path: str, encoding: str) -> str:
    """Return the command that makes a file UTF-8, in a file of the same kind."""
    return _filter_command(path, f"iconv -f {encoding} -t UTF-8")


def _filter_command(path: str, program: str) -> str:
    """Return the command that sends a file through a program into a file of the same kind, unpacked."""
    stem, ending = os.path.splitext(path)
    unpack = {".gz": "gzip", ".xz": "xz", ".zst": "zstd"}.get(ending.lower())
    if unpack is None:
        return f"{program} '{path}' > '{stem}.utf8{ending}'"
    stem, ending = os.path.splitext(stem)
    return f"{unpack} -dc '{path}' | {program} > '{stem}.utf8{ending}'"


def encoding_advice(sample: bytes) -> str:
    """Return what to do about a text that is not UTF-8 and is piped in: the encoding that fits, and the command.

    Args:
        sample: Some of its bytes, from the beginning of a line.
    """
    if not sample:  # of a pipe that is read already
        return "convert it: `iconv -f ENCODING -t UTF-8`, of Korean mostly CP949, of Western Europe LATIN1"
    name = likely_encoding(sample)
    if name == "UTF-8":
        return _DAMAGED
    return f"{_describe_encoding(name, sample)} convert it: `iconv -f {name or 'LATIN1'} -t UTF-8`"


def file_encoding_advice(lines: Iterable[bytes], path: str) -> str:
    """Return what to do about a file that is not UTF-8: the encoding that fits, and a command that works on this file.

    Where other lines are UTF-8, the command converts only those that are not: all would become
    letters of nonsense.

    Args:
        lines: All lines of the file.
        path: Of the file.
    """
    num_lines = num_foreign = num_utf8 = 0
    sample = b""  # of the lines that are not UTF-8
    complete = set(_CODECS)  # encodings that can decode every one of them
    for line in lines:
        num_lines += 1
        if line.isascii():
            continue
        if can_decode(line, "utf-8"):
            num_utf8 += 1
            continue
        num_foreign += 1
        complete = {codec for codec in complete if can_decode(line, codec)}
        if len(sample) < SAMPLE_BYTES:
            sample += line
    if not num_foreign:  # the half is an escape of JSON
        return "a character beyond U+FFFF takes two escapes of JSON, such as \\ud83d\\ude00: write both, or none"
    counted = f"{num_foreign:,} of {num_lines:,} lines are not UTF-8"
    leave_out = _filter_command(path, "LC_ALL=C.UTF-8 grep -ax '.*'")
    name = likely_encoding(sample[:SAMPLE_BYTES])
    if name == "UTF-8":
        return f"{counted}; {_DAMAGED}; or leave out these lines: `{leave_out}`"
    if name is None:
        codec = "CP1252" if re.search(b"[\x80-\x9f]", sample) and "CP1252" in complete else "LATIN1"
    else:
        codec = next((codec for codec in (name, _WIDER.get(name, name)) if codec in complete), name)
    if not num_utf8 and codec in complete:
        return f"{_describe_encoding(name and codec, sample)} convert it: `{conversion_command(path, codec)}`"
    replacement = "" if codec in complete else ", bytes that cannot be decoded replaced"
    language = _describe_encoding(name and codec, sample, "they")
    return (
        f"{counted}, {num_utf8:,} others are; {language} convert these lines alone{replacement}: "
        f"`{_filter_command(path, _LINE_PROGRAM.format(codec))}`; or leave them out: `{leave_out}`"
    )


def can_decode(line: bytes, encoding: str) -> bool:
    """Return whether a line is sound in an encoding."""
    try:
        line.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _describe_encoding(
    encoding: str | None, sample: bytes, subject: Literal["it", "they"] = "it"
) -> str:
    """Return the first half of a sentence of advice: what the text, or its lines, seem to be."""
    is_, reads = ("is", "reads") if subject == "it" else ("are", "read")
    if encoding is None:
        return f"if {subject} {is_} in a Western European language,"
    begins = " ".join(sample.decode(encoding, "ignore").split())[:20]
    return f"{subject} {reads} as {encoding} (“{begins}…”);"


def check_path_is_utf8(name: str) -> None:
    """Refuse a file name, or a word of the command line, that is not UTF-8: no JSON and no page could hold it."""
    readable = name.encode("utf-8", "backslashreplace").decode()
    if readable != name:
        raise DataError(
            "bad-encoding",
            f"the name `{readable}` is not UTF-8",
            "rename the file to a name in UTF-8; a text on the command line must be UTF-8, too",
        )


_ISO_2022 = re.compile(rb"\x1b\$([@B]|\)C)")


def check_begins_as_utf8(head: bytes, path: str) -> None:
    """Refuse a text in UTF-16, UTF-32 (with or without a byte order mark) or ISO-2022, whose bytes UTF-8 has, too.

    Args:
        head: The beginning of the file.
        path: Of the file.
    """
    if head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        encoding: str | None = "UTF-32"
    elif head.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in head[:4096]:
        encoding = likely_encoding(head[:4096])
    elif escape := _ISO_2022.search(head):
        encoding = "ISO-2022-KR" if escape[0].endswith(b"C") else "ISO-2022-JP"
    else:
        return
    if encoding:
        raise DataError(
            "bad-encoding",
            f"`{path}` is {encoding}, not UTF-8",
            conversion_command(path, encoding),
        )


def check_mojibake(sample: bytes, path: str) -> None:
    """Make sure that a text in UTF-8 was not converted from LATIN1 when it was in another encoding.

    Args:
        sample: Its beginning.
        path: Of the file.
    """
    if sample.isascii():
        return
    text = sample.decode("utf-8", "ignore")
    foreign = [character for character in text if character > "\x7f"]
    latin = [character for character in foreign if character <= "\xff"]
    if len(latin) < _MIN_MOJIBAKE or len(latin) < _FITS * len(foreign):
        return
    before = "".join(character for character in text if character <= "\xff").encode("latin-1")
    name = likely_encoding(before)
    if name is None:
        return
    stem, ending = os.path.splitext(path)
    back = "" if name == "UTF-8" else f" | iconv -f {name} -t UTF-8"
    raise DataError(
        "bad-encoding",
        f"`{path}` is {name} that was converted as if it were LATIN1: “{''.join(latin[:8])}” is "
        f"“{' '.join(before.decode(name, 'ignore').split())[:12]}”",
        f"convert it from {name} again, or repair it: `iconv -f UTF-8 -t LATIN1 '{path}'{back} > '{stem}.utf8{ending}'`",
    )


# --- normal forms ---------------------------------------------------------------------------------

NormalForm = Literal["NFC", "NFD", "NFKC", "NFKD"]
# The standard library sorts the marks behind a letter by insertion: 25,000 pairs of marks take 4 s.
# Real texts have a few.
_LONG_RUN = 32
_AFTER_THE_MARKS = 0x20000  # combining marks are in Unicode's first two planes


def normalize(form: NormalForm, text: str) -> str:
    """Return what `unicodedata.normalize` returns, in time linear in the length of the text.

    Long runs of combining marks are decomposed and put into canonical order first, which changes no
    normal form.

    Args:
        form: NFC, NFD, NFKC or NFKD.
        text: Any text.
    """
    if len(text) < _LONG_RUN or text.isascii():
        return unicodedata.normalize(form, text)
    decomposition: NormalForm = "NFKD" if "K" in form else "NFD"
    # A long run has a mark at one of these positions. To search every text for runs takes 0.4 us a
    # character.
    if _combining_characters(decomposition).isdisjoint(text[::_LONG_RUN]):
        return unicodedata.normalize(form, text)

    def ordered(run: re.Match[str]) -> str:
        marks = "".join(unicodedata.normalize(decomposition, mark) for mark in run.group())
        return "".join(sorted(marks, key=unicodedata.combining))

    return unicodedata.normalize(form, _long_mark_runs(decomposition).sub(ordered, text))


@cache
def _long_mark_runs(decomposition: NormalForm) -> re.Pattern[str]:
    return re.compile(f"[{''.join(sorted(_combining_characters(decomposition)))}]{{{_LONG_RUN},}}")


@cache
def _combining_characters(decomposition: NormalForm) -> frozenset[str]:
    """Return the characters whose decomposition has combining marks alone. Takes 0.04 s once."""
    marks = []
    for code in range(_AFTER_THE_MARKS):
        decomposed = unicodedata.normalize(decomposition, chr(code))
        if all(map(unicodedata.combining, decomposed)):
            marks.append(chr(code))
    return frozenset(marks)
