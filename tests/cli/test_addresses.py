"""What lies at an address (`gs://…`) is read where the guides say so; all else is refused by its address."""

from pathlib import Path

import fsspec
import pytest

from albertkit import AlbertModel, AlbertTokenizer
from albertkit.embeddings import SentenceEncoder
from albertkit.embeddings.data import TextInput
from albertkit.errors import AlbertKitError
from albertkit.tables.bad_rows import BadRows

TEXT = "memory://bucket/texts.txt"
NOWHERE = "memory://bucket/out"


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """A remote text, and a current folder with a table."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("d.csv").write_text("text,label\n" + "a,x\nb,y\n" * 4)
    memory = fsspec.filesystem("memory")  # one of the process: other tests leave files there
    memory.store.clear()
    memory.pipe("/bucket/texts.txt", b"the quick brown fox\nseven old wizards\n")
    yield memory
    assert list(Path.cwd().iterdir()) == [Path("d.csv").resolve()]  # no folder `memory:`
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


@pytest.mark.parametrize(
    "command",
    [
        f"quickstart --out {NOWHERE}",
        f"init --tokenizer t --out {NOWHERE}",
        f"pretrain {NOWHERE} --out r --config c.json",
        f"pretrain s --out {NOWHERE} --config c.json",
        f"finetune classify {TEXT} d.csv --out r",
        f"finetune classify m d.csv --out {NOWHERE}",
        f"finetune classify m d.csv --out r --config-file {TEXT}",
        f"evaluate m d.csv --out {NOWHERE}",
        f"predict {TEXT} --text a",
        f"serve m --api-key-file {TEXT}",
        f"doctor {TEXT}",
        f"report {NOWHERE}",
        f"convert m {NOWHERE}",
        f"tokenizer train t.txt --out {NOWHERE} --vocab-size 48",
        f"tokenizer encode {TEXT} --tokenizer t",
        f"tokenizer check {TEXT}",
        f"corpus export s --out {NOWHERE}",
        f"embed train pairs m d.tsv --out {NOWHERE}",
        f"embed distill m {TEXT} --teacher v.npy --out r",
        f"embed augment scores d.tsv --cross-encoder m --out {NOWHERE}.tsv",
        f"embed evaluate m scores=d.tsv --table {NOWHERE}.md",
        f"embed encode m t.txt --out {NOWHERE}.npy",
        f"caption prepare {TEXT} --out c --backbone features",
        f"caption train m {TEXT} --out r",
        f"caption score p.jsonl r.jsonl --details {NOWHERE}.jsonl",
        f"export web m --out {NOWHERE}",
        f"migrate swinbert-checkpoint m {NOWHERE}",
    ],
)
def test_what_cannot_lie_at_an_address_is_refused_by_its_address(bucket, run_command, command):
    ran = run_command(*command.split())
    assert ran.status in (1, 2)
    assert ran.err.count("error[") == ran.err.count("hint: ") == 1
    assert next(word for word in command.split() if "://" in word) in ran.err
    assert list(bucket.find("/")) == ["/bucket/texts.txt"]


def test_classes_write_to_no_address(bucket, tiny_model, tiny_tokenizer):
    model = tiny_model(AlbertModel)
    for save in (
        model.save_pretrained,
        model.config.save_pretrained,
        tiny_tokenizer.save_pretrained,
        SentenceEncoder(model, tiny_tokenizer).save_pretrained,
    ):
        for address in (NOWHERE, Path(NOWHERE)):
            with pytest.raises(AlbertKitError, match=f"`{NOWHERE}[^`]*` is an address"):
                save(address)
    for load in (
        AlbertModel.from_pretrained,
        AlbertTokenizer.from_pretrained,
        SentenceEncoder.from_pretrained,
    ):
        with pytest.raises(
            AlbertKitError, match=f"`{NOWHERE}` is an address; models are read from folders"
        ):
            load(NOWHERE)


def test_texts_at_an_address_are_read(bucket):
    rows = TextInput(TEXT).texts(BadRows())
    assert [row.text for row in rows] == bucket.cat("/bucket/texts.txt").decode().splitlines()
