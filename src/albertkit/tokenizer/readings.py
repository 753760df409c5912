"""Hard sentences, and a comparison of the ids that two readers of one vocabulary give to texts."""

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


def _normalize_nfd(text: str) -> str:
    return unicodedata.normalize("NFD", text)


# Other readers take these names for the tokens, albertkit for text
SENTENCES_WITH_SPECIAL_NAMES = (
    "Paris is the [MASK] of France.",
    "[CLS] one [SEP] two [PAD] three [UNK] <pad> <unk>[MASK]",
    "a[MASK]b [MASK][MASK], [mask] [ MASK ]",
)

HARD_SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "I do not know whether it's theirs; don't ask.",
    "McDonald's CEO said NATO and iPhone in ONE sentence",
    "In 2010, about 1,234,567 people lived there, 12,5 % of them in 1999,",
    'range(3)" successively yields 0, 1, and then 2, about 2,500',
    "₩3,000,000, $5,99, 7,and 1,,2",
    "全部で１０，０００，円 and ٣,٤,",
    "A (small) house [in brackets] {and braces} <angles>",
    "f(x)=(a+b)-(c.d) ((nested)) ( spaced ) )(",
    "\"Quoted,\" she said, 'single' “curly” ‘curly’ «guillemets»",
    "``Old'' quotes and `ticks`, 5'10'' tall",
    "pre-train - en–dash – em—dash — minus−sign −5 --flag",
    "£5 or €6.50 or $7 or ¥800 or ₩9,000",
    "Well... wait… what?! No!!! e.g. U.S.A. 3.14.15",
    *SENTENCES_WITH_SPECIAL_NAMES,
    "Crème brûlée, naïve café, Zürich, Łódź, Ångström, ñandú",
    _normalize_nfd("Crème brûlée, naïve café, Zürich, Ångström, ñandú"),
    "Tiếng Việt có nhiều dấu: ệ ữ ằ ộ",
    _normalize_nfd("Tiếng Việt có nhiều dấu: ệ ữ ằ ộ"),
    "Z\u0300\u0301\u0302a\u0308\u0304l\u0323\u0307go",  # stacked marks
    "\u0301 a \u0301b \u200d\u0301",  # mark alone
    "İstanbul'da ısı, DİYARBAKIR ve IĞDIR",
    "ΟΔΥΣΣΕΥΣ και ΣΟΦΟΣ. ὉΔΌΣ",
    "Straße, GROẞ, Weiß und Fuß",
    "ﬁne ﬂow oﬃce Ĳsselmeer ǆ ŉ",  # ligatures
    "ＡＬＢＥＲＴ　ｖ２（２０２０），ｏｋ！",
    "ｱﾙﾊﾞｰﾄ ｶﾞｷﾞｸﾞ ﾡﾢ",  # half-width
    "① ⑩ ½ ¼ ™ ㎏ ㍿ ℃ № Ⅳ ﷺ",  # compatibility
    "𝐀𝐥𝐛𝐞𝐫𝐭 𝟙𝟚𝟛 x² + y₂ ≤ ∑ √2 ∞",
    "대한민국의 수도는 서울이다.",
    _normalize_nfd("대한민국의 수도는 서울이다."),
    '2023년 3월, 1,500원(약 1달러)을 냈다. "좋아요"라고 했다.',
    "한" + _normalize_nfd("글") + "과 " + _normalize_nfd("영어") + " English를 섞어 쓴다",
    "ㅋㅋㅋ ㅠㅠ ㄱㄴㄷ \u1100\u1161 \u1112\u1161\u11ab 쀍",  # Korean jamo
    "그는 ‘안녕’이라 말했다…『책』·「글」 3.1절~8·15",
    "日本語のテキストです。カタカナ、ひらがな「引用」",
    _normalize_nfd("がぎぐげご パピプペポ です。"),
    "我爱北京天安门，今天天气很好。ALBERT很小",
    "臺灣的語言學家說：「模型很輕」",  # Chinese, traditional
    "𠀀𪚥 㐀㐁 豈更車 \u2f00\u2e80",  # Chinese, rare
    "اللغة العربية جميلة، أليس كذلك؟ مُحَمَّد",
    "שלום עולם, זה משפט בעברית. בְּרֵאשִׁית",
    "हिन्दी में एक वाक्य है। क़लम",
    "ภาษาไทยไม่มีช่องว่างระหว่างคำ ก็น้ำ",
    "தமிழ் ஒரு செம்மொழி",
    "Русский текст, Ёлка и йод, українська їжа",
    _normalize_nfd("Ёлка и йод, їжа"),
    "Հայերեն և ქართული ენა ᲥᲐᲠᲗᲣᲚᲘ",
    "Samsung삼성三星サムスン mixed на русском αβγ עם",
    "Great 😀👍🏽 ❤️ 🇰🇷 👩‍💻 done 🙂",
    "🙂",
    "zero\u200bwidth non\u200cjoiner join\u200der word\u2060joiner soft\u00adhyphen",
    "\ufeffstarts with a mark, \ufeffand again",
    "\u202eright to left\u202c \u200fand\u200e back",  # direction marks
    "null\x00byte bell\x07 esc\x1b[0m del\x7f",
    "tab\there\nnew\r\nline  two   three\u00a0nbsp\u3000wide\u2009thin",
    "next\x85line line\u2028sep para\u2029sep ogham\u1680mark",  # white space, rare
    "unit\x1fsep group\x1dsep vertical\x0btab form\x0cfeed",  # white space, separators
    "  \t leading and trailing \n ",
    "",
    "   ",
    "\t\n\u3000\x85",
    "user@example.com https://www.example.org/a/b?c=d&e=f#g @name #tag",
    "snake_case camelCase C++ C# a->b x[i]+=1; // done",
    "a▁b ▁▁ under_score",
    "broken \ufffd text, private \ue000 use, \U0010fffe none",
    "Donaudampfschifffahrtsgesellschaftskapitän " + "supercalifragilistic" * 4,
    "x" + "abcdefghij" * 13,
    "a" * 50 + " " + "=" * 40 + " " + "ㅋ" * 30,
    "0 007 3.14159265358979 -2.5e-10 0x1F 1/2 12:30:59 +82-2-123-4567",
    "२०१०, ๒๕๖๓, 〇一二三, ⅷ",  # wide number signs
    "ends with a comma, and 2010,",
)


_TOKENS_SHOWN = 6


class Vocabulary(Protocol):
    """Method of an `AlbertTokenizer` that is used here."""

    vocab_size: int

    def id_to_piece(self, piece_id: int) -> str: ...


@dataclass
class FirstDifference:
    """First text that two readers read differently.

    Attributes:
        text: The text.
        ours: Our tokens.
        theirs: Tokens of the other reader; an id that the vocabulary lacks is a number.
    """

    text: str
    ours: list[str]
    theirs: list[str]

    def differing_excerpts(self) -> tuple[str, str]:
        """Return the tokens of both sides around the first one that differs."""
        shorter = min(len(self.ours), len(self.theirs))
        position = next((n for n in range(shorter) if self.ours[n] != self.theirs[n]), shorter)
        window = slice(max(position - 1, 0), position - 1 + _TOKENS_SHOWN)
        return " ".join(self.ours[window]), " ".join(self.theirs[window])


@dataclass
class ReaderComparison:
    """One reader compared with albertkit's `encode`.

    Attributes:
        name: The reader.
        own: True for a file that albertkit wrote, which must agree.
        compared: Number of texts.
        differing: Number of texts on which it does not agree.
        first: The first of them.
        skipped: Reason why nothing was compared; empty if something was.
    """

    name: str
    own: bool = False
    compared: int = 0
    differing: int = 0
    first: FirstDifference | None = None
    skipped: str = ""


def compare_reader(
    reader_name: str,
    vocabulary: Vocabulary,
    texts: Iterable[str],
    ours: Callable[[str], Sequence[int]],
    theirs: Callable[[str], Sequence[int]],
    is_own: bool = False,
) -> ReaderComparison:
    """Compare the ids of two readers, text by text.

    Args:
        reader_name: Name of the other reader.
        vocabulary: Names the tokens of ids.
        texts: Texts that both read.
        ours: Returns the ids of a text.
        theirs: Returns the ids of a text by the other reader.
        is_own: See `ReaderComparison`.
    """
    comparison = ReaderComparison(reader_name, is_own)
    for text in texts:
        our_ids = list(ours(text))
        their_ids = list(theirs(text))
        comparison.compared += 1
        if our_ids == their_ids:
            continue
        comparison.differing += 1
        if comparison.first is None:
            comparison.first = FirstDifference(
                text,
                _tokens(vocabulary, our_ids),
                _tokens(vocabulary, their_ids),
            )
    return comparison


def _tokens(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    known_ids = range(vocabulary.vocab_size)
    return [
        vocabulary.id_to_piece(token_id) if token_id in known_ids else str(token_id)
        for token_id in ids
    ]
