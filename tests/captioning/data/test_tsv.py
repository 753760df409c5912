"""TSVs and their index, against a reader that works as SwinBERT's TSVFile does: seek, read a line, split at tabs, strip."""

import numpy as np
import pytest
from swinbert_writer import write_tsv

from albertkit.captioning.swinbert_files import TsvFile
from albertkit.errors import DataError

ROWS = [["a", "x"], ["b c", "한국어 캡션"], ["ключ", '{"a": 1}', "", "z" * 300]]


def as_swinbert_reads(path):
    offsets = [int(line) for line in path.with_suffix(".lineidx").read_text().splitlines()]
    rows = []
    with open(path, encoding="utf-8") as stream:
        for offset in offsets:
            stream.seek(offset)
            rows.append([column.strip() for column in stream.readline().split("\t")])
    return rows


@pytest.fixture
def tsv(tmp_path):
    path = tmp_path / "train.img.tsv"
    write_tsv(path, ROWS)
    return path


def test_read_as_swinbert_and_as_ours(tsv):
    assert as_swinbert_reads(tsv) == ROWS
    for present in ("both", "text", "binary", "none"):
        if present in ("binary", "none"):
            tsv.with_suffix(".lineidx").unlink(missing_ok=True)
        if present in ("text", "none"):
            tsv.with_suffix(".lineidx.8b").unlink(missing_ok=True)
        file = TsvFile(tsv)
        assert [
            [column.decode() for column in file.row(number)] for number in range(len(file))
        ] == ROWS
        write_tsv(tsv, ROWS)


def test_no_line_end_at_the_end(tsv):
    tsv.write_bytes(tsv.read_bytes().removesuffix(b"\n"))
    assert TsvFile(tsv).row(2)[3] == b"z" * 300


def test_no_rows(tmp_path):
    write_tsv(tmp_path / "none.tsv", [])
    assert len(TsvFile(tmp_path / "none.tsv")) == 0
    (tmp_path / "none.lineidx").unlink()
    (tmp_path / "none.lineidx.8b").unlink()
    assert len(TsvFile(tmp_path / "none.tsv")) == 0


@pytest.mark.parametrize(
    "text",
    ["0\n5\n30\n", "0\n4\n999\n", "1\n4\n", "", "0\n4\n4\n", "0\nfour\n", "0\n-1\n"],
)
def test_wrong_index(tsv, text, slug_of):
    tsv.with_suffix(".lineidx.8b").unlink()
    tsv.with_suffix(".lineidx").write_text(text)
    assert slug_of(TsvFile, tsv) == "bad-file"


def test_an_index_that_leaves_rows_out_is_noticed_when_they_are_read(tsv):
    tsv.with_suffix(".lineidx.8b").unlink()
    # Every number is where a row begins, the third row is missing
    tsv.with_suffix(".lineidx").write_text("0\n4\n")
    file = TsvFile(tsv)
    assert file.row(0) == [b"a", b"x"]
    with pytest.raises(DataError, match="more than one line"):
        file.row(1)


def test_two_indices_that_differ(tsv):
    tsv.with_suffix(".lineidx.8b").write_bytes(np.array([0, 4, 5], "<u8").tobytes())
    with pytest.raises(DataError, match="say different things"):
        TsvFile(tsv)


def test_no_such_row(tsv, slug_of):
    assert slug_of(TsvFile(tsv).row, 3) == "bad-row"
