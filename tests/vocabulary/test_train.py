"""`albertkit tokenizer train` on files of every format, and the report on lines held out."""

import gzip
import json

import pyarrow
import pyarrow.parquet as parquet
import pytest
import zstandard

from albertkit.errors import AlbertKitError
from albertkit.tokenizer import AlbertTokenizer
from albertkit.vocabulary import train_vocabulary
from albertkit.vocabulary.train import HoldingOut


def test_every_format_gives_the_same_bytes(korean, tmp_path):
    text = "\n".join(korean)
    files = {
        "a.txt": text.encode(),
        "b.txt.gz": gzip.compress(text.encode()),
        "c.jsonl.zst": zstandard.compress(
            "\n".join(json.dumps({"text": line}) for line in korean).encode()
        ),
        "d.wiki": f'<doc id="1" url="u" title="제목">\n제목\n\n{text}\n</doc>\n'.encode(),
    }
    parquet.write_table(pyarrow.table({"text": korean}), tmp_path / "e.parquet")
    files["e.parquet"] = (tmp_path / "e.parquet").read_bytes()
    models = []
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        report = train_vocabulary([tmp_path / name], tmp_path / f"out-{name[0]}", vocab_size=300)
        assert report.held_out.lines == 17
        models.append((tmp_path / f"out-{name[0]}" / "spiece.model").read_bytes())
    assert len(set(models)) == 1
    assert str(tmp_path).encode() not in models[0]


def test_report(korean, korean_file, tmp_path):
    report = train_vocabulary([korean_file], tmp_path / "a", vocab_size=300, text_rules="korean")
    fit = report.held_out
    reading = HoldingOut(iter(korean), 0)
    trained_on = list(reading)
    assert sorted([*trained_on, *reading.held_out]) == sorted(korean)
    tokenizer = AlbertTokenizer.from_pretrained(tmp_path / "a")
    ids = [tokenizer.encode(line) for line in reading.held_out]
    assert fit.lines == len(ids)
    assert fit.words == sum(len(line.split()) for line in reading.held_out)
    assert fit.pieces == sum(map(len, ids))
    assert fit.unknown_rate == 0
    assert fit.character_coverage == 1
    assert fit.round_trip == 1
    assert report.longest_pieces == sorted(report.longest_pieces, key=len, reverse=True)
    assert all(
        piece == tokenizer.id_to_piece(tokenizer.piece_to_id(piece))
        for piece in report.longest_pieces
    )
    low = train_vocabulary([korean_file], tmp_path / "b", vocab_size=300, coverage=0.98).held_out
    unknown = sum(tokenizer.unk_id in row for row in ids)
    assert unknown == 0
    assert low.unknown_rate > 0.005
    assert low.character_coverage == pytest.approx(0.98, abs=0.01)
    assert 0.02 < low.unknown_words < 0.3
    assert low.round_trip < 0.9
    assert set("".join(low.unknown_characters)) <= set("".join(korean))


def test_a_short_text_is_not_measured(tmp_path):
    (tmp_path / "text.txt").write_text("짧은 글 하나\n" * 3, encoding="utf-8")
    report = train_vocabulary(
        [tmp_path / "text.txt"], tmp_path / "out", vocab_size=12, user_defined_symbols=()
    )
    assert report.held_out is None


@pytest.mark.parametrize(
    ("content", "slug"),
    [
        (b"fine\ncaf\xe9 au lait\n", "bad-encoding"),
        (b"\x7fELF\x00\x00\x00", "wrong-kind"),
        (gzip.compress(b"words and words\n" * 1000, mtime=0)[:-20], "corrupt"),
        (None, "not-found"),
    ],
)
def test_the_same_error_has_the_same_name_everywhere(tmp_path, content, slug, slug_of):
    from albertkit.tokenizer import train_tokenizer

    path = tmp_path / "text.txt"
    if content is not None:
        path = tmp_path / ("text.txt.gz" if content[:2] == b"\x1f\x8b" else "text.txt")
        path.write_bytes(content)
    for train in (train_vocabulary, train_tokenizer):
        assert slug_of(train, [path], tmp_path / "out", vocab_size=50) == slug
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(korean_file, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(AlbertKitError, match=r"\[exists\].*not part of a tokenizer: config\.json"):
        train_vocabulary([korean_file], tmp_path, vocab_size=300, overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_command(korean_file, tmp_path, run_command):
    names = "[PAD] [UNK] [CLS] [SEP] [MASK]".split()
    settings = "--vocab-size 700 --reserve 4 --byte-fallback --split-digits --text-rules korean --special-pieces".split()
    ran = run_command(
        "tokenizer", "train", korean_file, "--out", tmp_path / "out", *settings, *names
    )
    assert ran.status == 0
    assert "700 tokens" in ran.out
    assert "tokens a word" in ran.out
    tokenizer = AlbertTokenizer.from_pretrained(tmp_path / "out")
    assert [tokenizer.id_to_piece(i) for i in (*range(5), 699)] == [*names, "[unused3]"]


def test_lines_that_tokenizer_json_reads_otherwise_are_reported(tmp_path, monkeypatch):
    """The held-out lines are compared at the end; the comparison is what `tokenizer check` shows."""
    from albertkit.tokenizer.readings import FirstDifference, ReaderComparison
    from albertkit.vocabulary import train

    def differing(folder, tokenizer, texts):
        return ReaderComparison(
            "tokenizer.json", True, len(texts), 1, FirstDifference("0, 1, 2", ["a"], ["b"])
        )

    text = tmp_path / "text.txt"
    text.write_text(
        "".join(f"line {n} of the text, with words\n" for n in range(300)), encoding="utf-8"
    )
    trained = [train.train_vocabulary([text], tmp_path / "right", vocab_size=45)]
    monkeypatch.setattr(train, "compare_json", differing)
    trained.append(train.train_vocabulary([text], tmp_path / "wrong", vocab_size=45))
    assert [len(report.warnings) for report in trained] == [0, 1]
    assert "'0, 1, 2'" in trained[1].warnings[0]
