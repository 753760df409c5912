"""`albertkit tokenizer check`: finds what gives other ids than albertkit, and shows the first text that differs."""

import json
import unicodedata
import warnings

import pytest
from record_files import write_json

from albertkit.tokenizer import (
    AlbertTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
    check_tokenizer,
    rules,
)
from albertkit.tokenizer.readings import HARD_SENTENCES
from albertkit.tokenizer.sentencepiece_model import read_facts, rebuild_model, round_score

VOCABULARY = [
    "[PAD]",
    *(f"[unused{n}]" for n in range(1, 100)),
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
] + [
    prefix + chr(code)
    for prefix in ("", "##")
    for code in [*range(33, 127), *range(0xAC00, 0xAC40)]
]
AUTO = "transformers.AutoTokenizer"
SEGMENTS = "transformers.AutoTokenizer, segments of a pair"


RUNS = "tokenizer.json, runs of a character"


def differing(report):
    return {
        comparison.name: comparison.differing
        for comparison in report.comparisons
        if comparison.name != RUNS
    }


@pytest.fixture
def without_transformers(monkeypatch):
    """Leave AutoTokenizer out, which takes seconds."""
    monkeypatch.setattr("albertkit.tokenizer.check.compare_auto_tokenizer", lambda *_: [])


def test_sentences_are_of_every_kind():
    texts = list(HARD_SENTENCES)
    everything = "".join(texts)
    for needed in (
        "[MASK]",
        "2010,",
        "``",
        "(",
        "\u200b",
        "\x85",
        "\x00",
        "ﬁ",
        "Ａ",
        "ﾞ",
        "😀",
        "İ",
        "我",
    ):
        assert needed in everything
    assert "" in texts
    assert any(text and not text.strip() for text in texts)
    assert any(unicodedata.normalize("NFC", text) != text for text in texts)
    assert max(map(len, everything.split())) > 100
    names = {unicodedata.name(c, "?").split()[0] for c in everything}
    assert names > {
        "HANGUL",
        "ARABIC",
        "HEBREW",
        "DEVANAGARI",
        "THAI",
        "CYRILLIC",
        "GREEK",
        "HIRAGANA",
        "TAMIL",
    }


def test_google(google_folder):
    report = check_tokenizer(google_folder)
    assert report.ok
    assert set(differing(report).values()) == {0}
    assert report.comparisons[0].compared > len(HARD_SENTENCES)


def test_runs_that_rounding_decides_are_reported(google, google_folder, tmp_path):
    """SentencePiece itself and the `tokenizers` library are the truth; scores that add up exactly are ties in both."""
    import sentencepiece
    from tokenizers import Tokenizer

    single = sentencepiece.SentencePieceProcessor(model_proto=google.model)
    double = Tokenizer.from_file(str(google_folder / "tokenizer.json"))
    differing_runs = [
        run
        for run in google.runs_that_json_may_cut_otherwise()
        if single.encode(run) != double.encode(run, add_special_tokens=False).ids
    ]
    assert "!!!!" in differing_runs
    runs = check_tokenizer(google_folder).comparisons[-1]
    assert runs.name == RUNS
    assert runs.differing == len(differing_runs)
    assert runs.first.text == differing_runs[0]
    with pytest.warns(
        UserWarning, match=f"on {len(differing_runs)} hard lines, the first of them '!!!!'"
    ):
        google.save_pretrained(tmp_path / "google")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # whoever wrote the folder was warned
        AlbertTokenizer.from_pretrained(tmp_path / "google").save_pretrained(tmp_path / "again")
    pieces = [
        (piece, round_score(score), kind) for piece, score, kind in read_facts(google.model).pieces
    ]
    rounded = SentencePieceTokenizer(rebuild_model(google.model, pieces))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rounded.save_pretrained(tmp_path / "rounded")


def test_what_transformers_makes_of_the_model_alone(data, tmp_path):
    """transformers' own ids and segments are the truth that the report is compared with."""
    import transformers

    (tmp_path / "spiece.model").write_bytes((data / "albert/30k-clean.model").read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "albert", "vocab_size": 30000}')
    report = check_tokenizer(tmp_path)
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = SentencePieceTokenizer((tmp_path / "spiece.model").read_bytes())
    by_name = {comparison.name: comparison for comparison in report.comparisons}
    assert report.ok
    assert by_name["tokenizer.json, not written by albertkit"].skipped
    assert by_name[AUTO].differing > 10
    first = by_name[AUTO].first
    assert first.theirs == reader.convert_ids_to_tokens(reader(first.text)["input_ids"])
    assert first.ours == ["[CLS]", *ours.pieces(first.text), "[SEP]"] != first.theirs
    segments = reader("one text", "another").get("token_type_ids")
    assert (by_name[SEGMENTS].differing == 0) == (
        segments == ours("one text", "another")["token_type_ids"]
    )
    assert f"albertkit tokenizer convert {tmp_path} NEW" in report.advice


@pytest.mark.parametrize("rule", rules.NAMES)
def test_all_rules_and_a_korean_model(golden, tmp_path, rule):
    SentencePieceTokenizer(
        (golden / "korean/spiece_userdef.model").read_bytes(), rule
    ).save_pretrained(tmp_path)
    assert set(differing(check_tokenizer(tmp_path)).values()) == {0}


def changed_json(folder, copy, change):
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    content = json.loads((folder / "tokenizer.json").read_text())
    change(content)
    write_json(copy / "tokenizer.json", content)


def one_score(content):
    row = next(row for row in content["model"]["vocab"] if row[0] == "▁the")
    row[1] -= 20


@pytest.mark.usefixtures("without_transformers")
@pytest.mark.parametrize(
    "change",
    [
        one_score,
        lambda content: content["normalizer"]["normalizers"].pop(2),
        lambda content: content.clear(),
    ],
)
def test_a_changed_file_is_noticed(google_folder, tmp_path, change):
    changed_json(google_folder, tmp_path, change)
    report = check_tokenizer(tmp_path)
    assert not report.ok
    assert differing(report)["tokenizer.json"] > 0


@pytest.mark.usefixtures("without_transformers")
def test_a_foreign_file_is_reported_but_is_no_error(google_folder, tmp_path):
    changed_json(google_folder, tmp_path, one_score)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    report = check_tokenizer(tmp_path)
    assert report.ok
    assert differing(report)["tokenizer.json, not written by albertkit"] > 0


@pytest.mark.usefixtures("without_transformers")
def test_given_texts(google_folder, tmp_path):
    changed_json(google_folder, tmp_path, one_score)
    (comparison,) = check_tokenizer(
        tmp_path, ["a cat", "on the mat", "in the hat", "[MASK] is [SEP]"]
    ).comparisons
    assert comparison.compared == 4
    assert comparison.differing == 2
    assert comparison.first.text == "on the mat"


@pytest.mark.usefixtures("without_transformers")
def test_a_save_compares_the_same_texts(data, tmp_path):
    """What the warning of a save counts is what `tokenizer check`, to which it points, counts."""
    tokenizer = SentencePieceTokenizer((data / "albert/30k-clean.model").read_bytes())
    content = json.loads(tokenizer.tokenizer_json())
    one_score(content)
    tokenizer.__dict__["_json"] = json.dumps(content)
    with pytest.warns(UserWarning, match="transformers reads other ids") as warned:
        tokenizer.save_pretrained(tmp_path)
    (comparison,) = check_tokenizer(
        tmp_path,
        [*tokenizer.lines_that_json_may_misread(), *tokenizer.runs_that_json_may_cut_otherwise()],
    ).comparisons
    assert (
        f"on {comparison.differing} hard lines, the first of them {comparison.first.text!r}"
        in str(warned[0].message)
    )


def test_wordpiece(tmp_path):
    WordPieceTokenizer(VOCABULARY).save_pretrained(tmp_path)
    write_json(tmp_path / "config.json", {"model_type": "albert", "vocab_size": len(VOCABULARY)})
    report = check_tokenizer(tmp_path)
    assert report.ok is True
    assert report.kind == "WordPieceTokenizer"
    assert set(differing(report).values()) == {0}


@pytest.mark.usefixtures("without_transformers")
def test_command(google_folder, tmp_path, run_command):
    result = run_command("tokenizer", "check", google_folder)
    assert result.status == 0
    assert "what albertkit wrote gives the same ids" in result.out
    changed_json(google_folder, tmp_path, one_score)
    result = run_command("tokenizer", "check", tmp_path)
    assert result.status == 1
    assert "what albertkit wrote gives other ids" in result.out
    assert "▁the" in result.out
    result = run_command("tokenizer", "check", tmp_path, "--json")
    report = result.json
    assert result.status == 1
    assert report["ok"] is False
    assert report["kind"] == "SentencePieceTokenizer"
    assert report["comparisons"][0].keys() == {
        "name",
        "own",
        "compared",
        "differing",
        "first",
        "skipped",
    }


def test_what_is_advised_helps(data, tmp_path, run_command):
    assert (
        "30,000 tokens"
        in run_command("tokenizer", "convert", data / "albert", tmp_path / "new").out
    )
    assert set(differing(check_tokenizer(tmp_path / "new")).values()) == {0}
