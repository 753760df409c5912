"""`albertkit tokenizer check`: agrees with itself, notices what is changed, names transformers' faults."""

import json
import unicodedata
from pathlib import Path

import pytest

from albertkit.tokenizer import SentencePieceTokenizer, WordPieceTokenizer, check_tokenizer, rules
from albertkit.tokenizer.comparison import UNKNOWN, explain, known_bugs
from albertkit.tokenizer.hard_sentences import HARD_SENTENCES
from albertkit.tokenizer.transformers_readings import CLASS_READERS

VOCABULARY = ["[PAD]", *(f"[unused{n}]" for n in range(1, 100)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [
    prefix + chr(code) for prefix in ("", "##") for code in [*range(33, 127), *range(0xAC00, 0xAC40)]
]


def readers(report) -> dict[str, int]:
    return {found.name: len(found.differences) for found in report.comparisons}


@pytest.fixture
def only_own_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the readings of transformers out, which take seconds."""
    monkeypatch.setattr("albertkit.tokenizer.check.read_by_others", lambda *_: [])


def test_sentences_are_of_every_kind() -> None:
    texts = [text for _, text in HARD_SENTENCES]
    everything = "".join(texts)
    for needed in ("[MASK]", "2010,", "``", "(", "\u200b", "\x85", "\x00", "ﬁ", "Ａ", "ﾞ", "😀", "İ", "我"):
        assert needed in everything
    assert "" in texts
    assert any(text and not text.strip() for text in texts)
    assert any(unicodedata.normalize("NFC", text) != text for text in texts)
    assert max(map(len, everything.split())) > 100
    names = {unicodedata.name(c, "?").split()[0] for c in everything}
    assert names > {"HANGUL", "ARABIC", "HEBREW", "DEVANAGARI", "THAI", "CYRILLIC", "GREEK", "HIRAGANA", "TAMIL"}


def test_google(google_folder: Path) -> None:
    report = check_tokenizer(google_folder)
    assert report.ok
    found = readers(report)
    theirs = found.pop("transformers.AutoTokenizer, model alone", None)
    by_class = {name: found.pop(name, 0) for name in CLASS_READERS}
    assert set(found.values()) == {0}
    pytest.importorskip("transformers")
    assert theirs > 10
    # `` and '' and control characters: the class's own normalisation
    assert max(by_class.values()) == 2
    assert "transformers.AlbertTokenizer builds its own normalisation" in report.cannot_be_right()[0]
    faults = {c for found in report.comparisons for d in found.differences for c in d.causes}
    assert faults >= {"digit-comma", "symbols-as-special-tokens", "quotes", "no-segments"}
    assert UNKNOWN not in faults


@pytest.mark.parametrize("rule", rules.NAMES)
def test_all_rules_and_a_korean_model(golden: Path, tmp_path: Path, rule: str) -> None:
    SentencePieceTokenizer((golden / "korean" / "spiece_userdef.model").read_bytes(), rule).save_pretrained(tmp_path)
    report = check_tokenizer(tmp_path)
    assert report.ok
    assert readers(report)["tokenizer.json"] == 0
    assert UNKNOWN not in {c for found in report.comparisons for d in found.differences for c in d.causes}


def changed_json(folder: Path, copy: Path, change) -> None:
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    content = json.loads((folder / "tokenizer.json").read_text())
    change(content)
    (copy / "tokenizer.json").write_text(json.dumps(content))


def one_score(content: dict) -> None:
    row = next(row for row in content["model"]["vocab"] if row[0] == "▁the")
    row[1] -= 20


@pytest.mark.usefixtures("only_own_readers")
@pytest.mark.parametrize(
    "change", [one_score, lambda content: content["normalizer"]["normalizers"].pop(2), lambda content: content.clear()]
)
def test_a_changed_file_is_noticed(google_folder: Path, tmp_path: Path, change) -> None:
    changed_json(google_folder, tmp_path, change)
    report = check_tokenizer(tmp_path)
    assert not report.ok
    assert readers(report)["tokenizer.json"] > 0
    assert readers(report)["SentencePiece itself"] == 0


@pytest.mark.usefixtures("only_own_readers")
def test_a_foreign_file_is_reported_but_is_no_error(google_folder: Path, tmp_path: Path) -> None:
    changed_json(google_folder, tmp_path, one_score)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    report = check_tokenizer(tmp_path)
    assert report.ok
    assert readers(report)["tokenizer.json, not written by albertkit"] > 0


@pytest.mark.usefixtures("only_own_readers")
def test_a_broken_engine_is_noticed(google_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = SentencePieceTokenizer.encode_batch

    def broken(self, texts, num_threads=0):
        batch = whole(self, texts, num_threads)
        return batch._replace(ids=batch.ids + (batch.ids == 15))

    monkeypatch.setattr(SentencePieceTokenizer, "encode_batch", broken)
    report = check_tokenizer(google_folder)
    assert not report.ok
    assert readers(report)["encode_batch"] > 5


@pytest.mark.usefixtures("only_own_readers")
@pytest.mark.parametrize(
    ("config", "cause"),
    [({"vocab_size": 29999}, "vocab-mismatch"), ({"vocab_size": 30000, "pad_token_id": 1}, "pad-mismatch"), ({}, None)],
)
def test_config(google_folder: Path, tmp_path: Path, config: dict, cause: str | None) -> None:
    changed_json(google_folder, tmp_path, lambda content: None)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "albert", **(config or {"vocab_size": 30522})}))
    report = check_tokenizer(tmp_path, ["a text"])
    assert report.ok == (cause is None)
    causes = [d.causes for found in report.comparisons if found.own for d in found.differences]
    assert causes == ([[cause]] if cause else [])


def test_wordpiece(tmp_path: Path) -> None:
    WordPieceTokenizer(VOCABULARY).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "albert", "vocab_size": len(VOCABULARY)}))
    report = check_tokenizer(tmp_path)
    assert (report.ok, report.kind) == (True, "WordPieceTokenizer")
    found = readers(report)
    assert set(found.values()) == {0}


def test_faults_are_blamed_only_with_evidence() -> None:
    assert explain("in 2010, (there)", lambda text: "2010," not in text) == ["digit-comma"]
    assert explain("in 2010, (there)", lambda text: "(" not in text) == ["symbols-as-special-tokens"]
    both = explain("in 2010, (there)", lambda text: "(" not in text and "2010," not in text)
    assert both == ["digit-comma", "symbols-as-special-tokens"]
    assert explain("in 2010, (there)", lambda text: False) == [UNKNOWN]
    assert explain("plain", lambda text: True) == [UNKNOWN]
    assert len({bug.name for bug in known_bugs()}) == len(known_bugs())


def test_a_folder_with_a_model_alone_is_explained(data: Path, tmp_path: Path, run_command) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "tokenizer.model").write_bytes((data / "albert" / "30k-clean.model").read_bytes())
    done = run_command("tokenizer", "check", tmp_path)
    assert done.status == 0
    assert "no-configuration" in done.out
    assert "unexplained" not in done.out
    assert "-1 of" not in done.out


def test_offsets_with_the_space_before_a_word_are_noticed(google_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")

    def one_piece_for_all(content: dict) -> None:
        content["pre_tokenizer"] = content["pre_tokenizer"]["pretokenizers"][1]

    changed_json(google_folder, tmp_path, one_piece_for_all)
    report = check_tokenizer(tmp_path, ["Anna Smith works"])
    found = next(c for c in report.comparisons if c.name == "transformers.AutoTokenizer, offsets")
    assert found.differences[0].theirs == ["' Smith'", "' works'"]
    assert found.differences[0].causes == ["space-in-offsets"]
    assert readers(check_tokenizer(google_folder, ["Anna Smith works"]))["transformers.AutoTokenizer, offsets"] == 0


@pytest.mark.usefixtures("only_own_readers")
def test_command(google_folder: Path, tmp_path: Path, run_command) -> None:
    done = run_command("tokenizer", "check", google_folder)
    assert done.status == 0
    assert "all of albertkit's readings agree" in done.out
    changed_json(google_folder, tmp_path, one_score)
    done = run_command("tokenizer", "check", tmp_path)
    assert done.status == 1
    assert "albertkit's own readings differ" in done.out
    assert "▁the" in done.out
    done = run_command("tokenizer", "check", tmp_path, "--json")
    report = done.json
    assert (done.status, report["ok"], report["kind"]) == (1, False, "SentencePieceTokenizer")
    assert {"name", "own", "compared", "differences", "skipped"} == set(report["comparisons"][0])


def test_what_is_advised_helps(data: Path, tmp_path: Path, run_command) -> None:
    assert "30,000 tokens" in run_command("tokenizer", "convert", data / "albert", tmp_path / "new").out
    report = check_tokenizer(tmp_path / "new")
    assert readers(report)["transformers.AutoTokenizer"] == 0
