"""`corpus inspect`: what it shows is what the store and the stream hold."""

import json
from io import StringIO

import numpy as np
import pytest
from memory_store import MemoryStore

from albertkit import first_run
from albertkit.corpus import build_store
from albertkit.output.render import print_sections
from albertkit.pretraining.examples import ExampleSettings
from albertkit.pretraining.inspection import inspect_store


@pytest.fixture(scope="module")
def inspection(novels):
    return inspect_store(novels, number=20, seed=3)


def test_samples_come_from_where_they_say(inspection, novels):
    for sample in inspection.samples:
        pieces = list(sample.pieces)
        for entry in sample.masked:
            visible_piece = pieces[entry["position"]]
            fates = {entry["original"]: "kept", "[MASK]": "mask"}
            assert entry["fate"] == fates.get(visible_piece, "random")
            pieces[entry["position"]] = entry["original"]
        boundary = sample.segment_ids.index(1)
        for segment, begin, end in zip(
            sample.segments, (1, boundary), (boundary - 1, len(pieces) - 1), strict=True
        ):
            document = novels.documents[segment["document"]]
            ids = [
                i
                for s in document[segment["first_sentence"] : segment["last_sentence"] + 1]
                for i in s
            ]
            source = "".join(f"\0{novels.model.id_to_piece(i)}" for i in ids) + "\0"
            assert "".join(f"\0{piece}" for piece in pieces[begin:end]) + "\0" in source
        a, b = sample.segments
        assert a["document"] == b["document"]
        assert (sample.label == 1) == (a["first_sentence"] > b["first_sentence"])


def test_statistics(inspection, novels):
    assert inspection.documents == 139
    assert inspection.sentences == 29913
    assert inspection.tokens == sum(map(len, novels.tokens))
    assert sum(inspection.length["shares"].values()) == pytest.approx(1)
    assert inspection.fates["mask"] == pytest.approx(0.8, abs=0.01)
    # Golden: ngram_accepted_after_shortening, 128
    assert inspection.ngrams["1"] == pytest.approx(0.5909, abs=0.01)
    assert inspection.masked_share == pytest.approx(0.1486, abs=0.0005)


def test_documents_of_one_sentence_are_counted():
    store = MemoryStore([[[7, 8, 9]], [[10, 11], [12]], [[13]]])
    assert inspect_store(store, 1).one_sentence_documents == 2
    assert inspect_store(store, 1).skipped_documents == 2
    assert (
        inspect_store(store, 1, examples=ExampleSettings(pair_task="none")).skipped_documents == 0
    )


def test_the_command(data, tmp_path, run_command):
    text = "\n\n".join(
        "\n".join(f"Sentence {s} of document {d} is here." for s in range(9)) for d in range(5)
    )
    (tmp_path / "text.txt").write_text(text)
    build_store(
        [str(tmp_path / "text.txt")], tmp_path / "store", data / "albert", workers=1, progress=False
    )
    arguments = [
        "corpus",
        "inspect",
        str(tmp_path / "store"),
        "--length",
        "32",
        "--pair-task",
        "nsp",
    ]
    for options, expected in ((["-n", "2"], "example 1 · "), (["--json"], '"documents": 5')):
        process = run_command(*arguments, *options)
        assert process.status == 0
        assert expected in process.out
    masked = [
        run_command(*arguments, "--masked-lm-prob", share, "--json").json["masked_share"]
        for share in ("0.15", "0.4")
    ]
    assert masked == pytest.approx([0.15, 0.4], abs=0.05)
    for share in (0, 1.5):
        assert (
            "error[bad-value]: masked_lm_prob is"
            in run_command(*arguments, "--masked-lm-prob", share).err
        )
    command = first_run.next_commands_and_purposes(tmp_path)[0][0].split()[1:]
    assert run_command(*command, "--json").json["masked_share"] == pytest.approx(0.4, abs=0.05)


def test_plain_output_says_everything_and_json_is_plain(inspection):
    stream = StringIO()
    print_sections(inspection.sections(), stream, width=100)
    text = stream.getvalue()
    assert "\x1b" not in text
    assert text.count("[MASK]‹") > 200
    assert {word for word in ("sentence", "label 1", "139 documents") if word not in text} == set()
    assert all(len(line) <= 100 for line in text.splitlines())
    values = json.loads(json.dumps(inspection.to_dict()))
    assert len(values["samples"]) == 20
    assert np.isclose(sum(values["kinds"].values()), 1)
