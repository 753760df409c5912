"""The tokenizer against Stanford's program as the scorer runs it: golden lines here, thousands more in `test_scorer_peer.py`."""

import json

import pytest

from albertkit.captioning.metrics import tokenize_captions


def reference(golden):
    return json.loads((golden / "captioning/metrics_ptb_meteor.json").read_text())


def test_difficult_lines(golden):
    lines = reference(golden)["tokenizer_only"]
    assert tokenize_captions([line["text"] for line in lines]) == [line["tokens"] for line in lines]


def test_captions(golden):
    items = reference(golden)["items"]
    assert tokenize_captions([item["candidate"] for item in items]) == [
        item["candidate_tokens"] for item in items
    ]
    texts = [text for item in items for text in item["references"]]
    assert tokenize_captions(texts) == [
        tokens for item in items for tokens in item["reference_tokens"]
    ]


# What Stanford's program printed, for cases that the golden lines lack.
@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (
            "dunno gotta lemme gimme wanna 'tis 'twas",
            "dunno got ta lem me gim me wan na 't is 't was",
        ),
        (
            "rock'n'roll o'clock y'all ma'am John's James' don’t",
            "rock 'n' roll o'clock y' all ma'am john 's james do n't",
        ),
        ("5 7/8 of (555) 123-4567 no. 5 no. x", "5\xa07/8 of -lrb-555-rrb-\xa0123-4567 no. 5 no x"),
        ("AT&T R&D a&b c++ <b>bold</b> <3 <<a>>", "at&t r&d a & b c++ <b> bold </b> < 3 << a >>"),
        (
            "Mr. Fed. etc. Sept. sat. MO.N ark. Ark. x.y",
            "mr. fed etc. sept. sat mo. n ark ark. x.y",
        ),
        ("£5 ¥5 ¢5 ¤5 ₩5 ½ ⅔ ²", "# 5 ¥ 5 cents 5 $ 5 5 1/2 2/3 ²"),
        (
            "a—b a-----b ... …… „x“ «‹ab›» &quot;q&quot; &mdash; &amp;",
            "a b a ----- b „ x ``` ab ''' q &",
        ),
        (
            "日本語です。 한국어 문장입니다. naïve 😀 e\u0301",
            "日本語です 。 한국어 문장입니다 naïve e\u0301",
        ),
        (
            "the clinic., D-Fla., Calif.-based a.m.-p.m.",
            "the clinic. d-fla. calif.-based a.m.-p.m.",
        ),
        (
            "6'2\" 5:30-7pm 1,000-mile 100,000km $5-10 50%-60%",
            "6 2 5:30 -7 pm 1,000-mile 100,000 km $ 5-10 50 % -60 %",
        ),
        (
            "boy's/girl jenny/mike C# g# '90s. '05. Xi'an Qur'an",
            "boy 's / girl jenny/mike c# g # '90s 05 xi'an qur an",
        ),
        (
            "a wanna-be, gonna-be gotta-have cannot-do gonna.com wanna-",
            "a wanna-be gonna-be gotta-have cannot-do gonna.com wan na",
        ),
        (
            "sci-fi/kung-fu/shoot-em-up x/kung-fu/y a/b-c-d/e 939-2",
            "sci-fi/kung-fu/shoot-em-up x/kung-fu/y a/b-c-d/e 939-2",
        ),
        ("he n'bushe tassili n'ajjer n'ko-based n'a", "he n'bushe tassili n'ajjer n'ko based n a"),
        ("bahá'u'lláh it'sé he'llé u'llab", "bahá u 'll áh it 's é he 'll é u llab"),
        ("", ""),
        ("  . , ! ", ""),
    ],
)
def test_what_the_program_prints(text, tokens):
    assert tokenize_captions([text, "end"])[0] == tokens


def test_what_follows_a_caption_counts():
    assert tokenize_captions(["plan b.", "The end"])[0] == "plan b"
    assert tokenize_captions(["plan b.", "an end"])[0] == "plan b."
    assert tokenize_captions(["he says no.", "2 dogs"])[0] == "he says no."
    assert tokenize_captions(["he says no.", "two dogs"])[0] == "he says no"
    assert tokenize_captions(["nice :-(", "x"])[0] == "nice :--lrb-"
    assert tokenize_captions(["nice :-("]) == ["nice -lrb-"]


def test_a_caption_stays_one():
    assert tokenize_captions(["a man\nsings\r\nloud\u2028here", "b"]) == [
        "a man sings loud here",
        "b",
    ]
    assert tokenize_captions([]) == []
