"""Sentence splitting on hand-made cases, and that it loses no character."""

import gzip
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencex import segment

from albertkit.corpus import sentences
from albertkit.corpus.sentences import line_rule, split_sentences
from albertkit.errors import MissingExtraError
from albertkit.tokenizer import morphemes

CASES = {
    "titles": "Dr. Smith met Mr. Jones.|They talked.",
    "for example": "Use metals, e.g. iron or tin.|Heat them.",
    "that is": "The best one, i.e., the first, won.|It was old.",
    "country": "The U.S. Army left in 1973.|It returned later.",
    "country at the end": "He lived in the U.S.|She did not.",
    "authors": "Devlin et al. showed this in 2018.|Lan et al. (2019) shrank it.",
    "initials": "J. R. R. Tolkien wrote it.|C. S. Lewis read it.",
    "decimals": "It costs 3.14 dollars.|Pay 2.50 now.",
    "years": "It began in 1917.|The war ended in 1918.",
    "versions, addresses": "Python 3.11 is at www.python.org today.|Get it.",
    "quotation at the end": 'He said, "I am tired."|Then he slept.',
    "quotation inside": '"Is it true?" she asked.|Nobody answered.',
    "curly quotation": "“Go now!” he cried.|We went.",
    "ellipsis inside": "I wonder ... whether it works.|It does.",
    "ellipsis at the end": "He waited...|Then he left.",
    "figure": "It works (see Fig. 3).|Try it.",
    "number": "Symphony No. 5 is famous.|Op. 67 is its number.",
    "time of day": "We met at 5 p.m. on Monday.|It rained.",
    "saint": "Acme Inc. moved to St. Louis.|It grew.",
    "circa": "Plato (c. 428 BC) taught Aristotle.|He wrote dialogues.",
    "months": "On Jan. 5 it snowed.|On Feb. 6 it melted.",
    "lower-case name": "I like it.|iPhone users disagree.",
    "exclamations": "Stop!|Who goes there?|A friend.",
    "Korean": "저는 학생입니다.|오늘은 날씨가 좋네요!|같이 갈까요?",
    "Korean decimals": "물가가 3.5% 올랐다.|그는 집에 갔다.",
    "Japanese": "私は学生です。|今日は晴れです。",
    "Chinese": "我是学生。|你是老师吗？|是的！",
}


@pytest.mark.parametrize("case", CASES)
def test_cases(case):
    expected = CASES[case].split("|")
    space = "" if case in ("Japanese", "Chinese") else " "
    assert split_sentences(space.join(expected)) == expected


def test_the_language_decides_the_abbreviations():
    text = "Er kam am 3. Mai an. Dann ging er."
    assert split_sentences(text, language="de") == ["Er kam am 3. Mai an.", "Dann ging er."]
    assert len(split_sentences(text, language="en")) == 3


def test_what_a_line_is():
    text = "A heading\nIt is. It\nwas."
    assert split_sentences(text, "sentence") == ["A heading", "It is. It", "was."]
    assert split_sentences(text, "paragraph") == ["A heading", "It is.", "It", "was."]
    assert split_sentences(text, "wrapped") == ["A heading It is.", "It was."]
    assert split_sentences("今天天\n气好。", "wrapped") == ["今天天气好。"]
    assert [line_rule(None, f) for f in ("text", "jsonl", "parquet", "wiki")] == [
        "sentence"
    ] + 3 * ["paragraph"]
    assert line_rule("split", "text") == "wrapped"
    assert line_rule("lines", "wiki") == "sentence"


KOREAN = {
    "no full stops": "오늘은 학교에 갔다|날씨가 정말 좋았다|집에 돌아와 잤다",
    "polite": "안녕하세요|저는 학생이에요|만나서 반가워요",
    "formal": "회의는 세 시에 시작합니다|자료를 준비해 주시기 바랍니다",
    "laughter": "재밌다 ㅋㅋㅋ|또 보고 싶네 ㅠㅠ",
    "decimals": "원주율은 3.14이다.|그 값은 무리수다.",
    "a date": "2020. 3. 14. 에 열렸다.|많은 사람이 왔다.",
    "a verb inside": "갔다가 왔다.|바다 위에 배가 떴다.",
}


@pytest.mark.parametrize("case", KOREAN)
def test_korean_by_its_endings(case):
    expected = KOREAN[case].split("|")
    assert split_sentences(" ".join(expected), line_rule("kiwi", "text")) == expected
    assert split_sentences("\n".join(expected), "kiwi") == expected
    # What sentencex makes of the same: right only where there are stops and no date.
    assert (split_sentences(" ".join(expected)) == expected) == (
        case in ("decimals", "a verb inside")
    )


def test_kiwi_loses_nothing(data):
    with open(data / "korean/nsmc/test.tsv", encoding="utf-8") as stream:
        text = "\n".join(line.split("\t")[1] for line in list(stream)[1:200])
    assert "".join("".join(split_sentences(text, "kiwi")).split()) == "".join(text.split())


def test_without_kiwi_the_extra_is_named(monkeypatch):
    morphemes.load_kiwi.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "kiwipiepy", None)
    with pytest.raises(MissingExtraError, match=r"albertkit\[korean\]"):
        split_sentences("갔다", "kiwi")


def test_windows_do_not_change_the_sentences():
    sentence = "我是学生，今天天气很好，我们去公园吧。"
    assert split_sentences(sentence * 200) == [sentence] * 200
    assert split_sentences("他说：“我累了。”" * 100) == split_sentences("他说：“我累了。”\n" * 100)


def test_a_long_line_without_spaces_is_done_piece_by_piece():
    assert (
        len(split_sentences("我是学生。" * 100_000)) == 100_000
    )  # whole, this took sentencex 53 s


@pytest.mark.parametrize(
    "run", ["。」", "！’", "“", "»", "'", "《", "`", "“a ", "„I am. ", "「我累了。", "「「」"]
)
def test_a_run_of_quotation_marks_is_searched_in_windows(run, monkeypatch):
    windows = []
    monkeypatch.setattr(
        sentences, "segment", lambda language, text: windows.append(text) or segment(language, text)
    )
    text = run * (100_000 // len(run))
    assert "".join(split_sentences(text)).replace(" ", "") == text.replace(" ", "")
    # The work of a call is marks times characters.
    assert all(len(re.findall(r"[^a-zA-Z我累了 .]", window)) <= 2000 for window in windows)
    assert sum(map(len, windows)) <= 3 * len(text)


def test_windows_of_quotation_marks_find_the_sentences_of_the_whole_text():
    cases = [
        case.replace("|", " ")
        for name, case in CASES.items()
        if name not in ("Japanese", "Chinese")
    ]
    text = " ".join(random.Random(0).choices(cases, k=20_000))
    assert len(re.findall('["“”]', text)) > 4000
    assert split_sentences(text) == [sentence.strip() for sentence in segment("en", text)]


@pytest.mark.parametrize("space", ["\xa0", "\u3000", "\u2003", "\u2028"])
def test_a_wide_space_between_an_initial_and_its_full_stop(space):
    text = "Plan A{0}. It failed. J{0}. R{0}. Tolkien wrote. Grade B{0}..{0}. Good."
    with_one_byte = [sentence.strip() for sentence in segment("en", text.format(" "))]
    assert split_sentences(text.format(space)) == [
        sentence.replace(" .", f"{space}.") for sentence in with_one_byte
    ]


@given(st.text(alphabet=st.sampled_from('aB. !?"\n“”()。！」1é\xa0\u3000'), max_size=300))
def test_nothing_is_lost(text):
    for rule in ("sentence", "paragraph"):
        sentences_found = split_sentences(text, rule)
        assert "".join("".join(sentences_found).split()) == "".join(text.split())
        assert all(sentence == sentence.strip() != "" for sentence in sentences_found)


def test_nothing_is_lost_on_wikipedia(data):
    for folder in ("wiki-en", "wiki-ko"):
        with gzip.open(data / folder / "wiki_00.gz", "rt", encoding="utf-8") as stream:
            text = stream.read(300_000)
        assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
