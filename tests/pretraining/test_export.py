"""Exported records: what the original wrote is laid out as it wrote it; what training draws is what is exported."""

import json
import os
import subprocess
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from fault_moments import ends_the_same_when_killed
from small_store import ALONE

from albertkit.conversion.tensorflow.records import RecordFile, read_example
from albertkit.errors import ConfigError, DataError
from albertkit.files import files_not_matching_checksums, read_json
from albertkit.job import Job
from albertkit.pretraining.export import RecordLayout, export_records
from albertkit.pretraining.options import ExportSettings
from albertkit.pretraining.records import TrainingRecords, find_record_files
from albertkit.pretraining.settings import PretrainSettings
from albertkit.pretraining.sources import open_pretraining_data

SMALL = ExportSettings(length=32, dupe_factor=2, files=3, seed=4)


def contents(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.tfrecord"))}


def in_order(folder):
    """The features of all records in the order they were dealt to the files."""
    files = [list(RecordFile(file)) for file in find_record_files(folder)]
    rounds = max(map(len, files))
    return [read_example(file[n]) for n in range(rounds) for file in files if n < len(file)]


def test_the_originals_examples_are_laid_out_as_it_wrote_them(golden, albert_tokenizer):
    """200 records: padding taken away and put back, `token_boundary` found again from the pieces before masking."""
    lines = (golden / "masking/seq128_cap20.jsonl").read_text().splitlines()
    expected = [json.loads(line) for line in lines]
    records = TrainingRecords(golden / "masking/seq128_cap20.tfrecord", albert_tokenizer)

    def laid_out():
        batch = records.batch(np.arange(len(records)))
        features = RecordLayout(128, 20, albert_tokenizer).examples(batch)
        return [
            {name: values.tolist() for name, values in features_of_example.items()}
            for features_of_example in features
        ]

    assert laid_out() == expected
    wrong = [not start for start in albert_tokenizer.word_starts()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(albert_tokenizer, "word_starts", lambda: wrong)
        assert laid_out() != expected


@pytest.mark.parametrize(
    "how",
    [
        dict(),
        dict(sop_pairs="google", max_predictions=3),
        dict(pair_task="nsp", held_out=0.3),
        dict(mask_units="pieces", favor_shorter_ngram=False),
    ],
)
def test_what_training_draws_is_what_is_exported(tmp_path, store, how):
    """Duplicate d is epoch d of a run with the same settings, example by example."""
    report = export_records(store, tmp_path / "out", replace(SMALL, **how))
    records = in_order(tmp_path / "out")
    assert len(records) == report.instances
    settings = PretrainSettings(length=32, batch_tokens=64, seed=4, **{"held_out": 0.0, **how})
    stream = open_pretraining_data(store, settings).training(ALONE)
    width = how.get("max_predictions", 5)  # 15 % of 32
    training_examples = []
    while batches := next(stream):
        if stream.state()["epoch"] == SMALL.dupe_factor:
            break
        training_examples += batches
    examples = chain.from_iterable(
        zip(
            batch.input_ids.split(batch.lengths),
            batch.token_type_ids.split(batch.lengths),
            batch.sentence_order_labels,
            predictions(batch),
            strict=True,
        )
        for batch in training_examples
    )
    for features, (ids, segments, label, (positions, labels)) in zip(
        records, examples, strict=True
    ):
        tokens = len(ids)
        masked = len(positions)
        assert features["input_ids"].tolist() == ids.tolist() + [0] * (32 - tokens)
        assert features["input_mask"].tolist() == [1] * tokens + [0] * (32 - tokens)
        assert features["segment_ids"].tolist() == segments.tolist() + [0] * (32 - tokens)
        assert features["masked_lm_positions"].tolist() == positions + [0] * (width - masked)
        assert features["masked_lm_ids"].tolist() == labels + [0] * (width - masked)
        assert features["masked_lm_weights"].tolist() == [1.0] * masked + [0.0] * (width - masked)
        assert features["next_sentence_labels"].tolist() == [int(label)]


def predictions(batch):
    """Positions in the sequence and labels, sequence by sequence."""
    for first, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        mine = (batch.masked_positions >= first) & (batch.masked_positions < end)
        yield (batch.masked_positions[mine] - first).tolist(), batch.masked_labels[mine].tolist()


def test_the_same_seed_gives_the_same_bytes(tmp_path, store):
    for name, settings in (("one", SMALL), ("two", SMALL), ("three", replace(SMALL, seed=5))):
        export_records(store, tmp_path / name, settings)
    first, second, three = (contents(tmp_path / name) for name in ("one", "two", "three"))
    assert list(first) == [f"records-{k:05d}-of-00003.tfrecord" for k in range(3)]
    assert first == second
    assert all(first[name] != three[name] for name in first)


def test_the_report_is_what_is_there(tmp_path, store):
    report = export_records(store, tmp_path / "out", SMALL)
    sizes = [len(list(RecordFile(file))) for file in find_record_files(tmp_path / "out")]
    assert sum(sizes) == report.instances
    assert max(sizes) - min(sizes) <= 1
    assert report.bytes == sum(map(len, contents(tmp_path / "out").values()))
    assert report.max_seq_length == 32
    assert report.max_predictions_per_seq == 5
    export = read_json(tmp_path / "out/export.json")
    assert export["report"] == report.to_dict()
    assert ExportSettings(**export["settings"]) == SMALL
    assert export["store"] == store.fingerprint
    assert (tmp_path / "out/tokenizer/spiece.model").exists()
    assert len(TrainingRecords(tmp_path / "out", store.tokenizer())) == report.instances


@pytest.mark.skipif(
    torch.get_num_threads() > 1, reason="OMP_NUM_THREADS is not 1: a fork has none of the threads"
)
def test_killed_anywhere_and_again(tmp_path, store, monkeypatch):
    monkeypatch.setattr("albertkit.job.COMMIT_SECONDS", 0.0)
    monkeypatch.setattr("albertkit.pretraining.export._CHUNK", 16)
    # A report holds seconds
    monkeypatch.setattr("albertkit.pretraining.export.time.monotonic", lambda: 0.0)
    ends_the_same_when_killed(tmp_path, lambda place: export_records(store, place, SMALL), 6)


def test_an_unfinished_export_is_none_and_goes_on_only_as_it_began(
    tmp_path, store, monkeypatch, slug_of
):
    out = tmp_path / "out"
    commit = Job.commit
    countdown = iter(range(3))

    def interrupted(self, **facts):
        if next(countdown, None) is None:
            raise KeyboardInterrupt
        commit(self, **facts)

    with monkeypatch.context() as patch:
        patch.setattr("albertkit.job.COMMIT_SECONDS", 0.0)
        patch.setattr("albertkit.pretraining.export._CHUNK", 16)
        patch.setattr(Job, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            export_records(store, out, SMALL)
    assert contents(out) == {}
    assert (
        slug_of(open_pretraining_data, out, PretrainSettings(), store.folder / "tokenizer")
        == "unfinished"
    )
    with pytest.raises(DataError, match=r"unfinished work .*\(differing: seed\)"):
        export_records(store, out, replace(SMALL, seed=5))
    export_records(store, out, SMALL)
    export_records(store, tmp_path / "undisturbed", SMALL)
    assert contents(out) == contents(tmp_path / "undisturbed")
    assert {file.name for file in out.iterdir()} == {
        *contents(out),
        "tokenizer",
        "export.json",
        "SHA256SUMS",
    }
    assert not files_not_matching_checksums(out)


def test_nothing_is_overwritten_unless_asked(tmp_path, store, slug_of):
    (tmp_path / "mine.txt").write_text("mine")
    assert slug_of(export_records, store, tmp_path, SMALL) == "exists"
    first = export_records(store, tmp_path / "out", SMALL)
    before = contents(tmp_path / "out")
    assert export_records(store, tmp_path / "out", SMALL) == first
    assert slug_of(export_records, store, tmp_path / "out", replace(SMALL, seed=9)) == "changed"
    assert contents(tmp_path / "out") == before
    export_records(store, tmp_path / "out", replace(SMALL, seed=9), overwrite=True)
    assert contents(tmp_path / "out").keys() == before.keys()
    assert contents(tmp_path / "out") != before


@pytest.mark.parametrize(
    "wrong",
    [
        dict(files=0),
        dict(dupe_factor=0),
        dict(pair_task="none"),
        dict(held_out=1.0),
        dict(held_out=-0.1),
    ],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError) as caught:
        ExportSettings(**wrong)
    assert caught.value.slug == "bad-value"
    assert next(iter(wrong)) in caught.value.message


def test_the_command_prints_the_report(tmp_path, store, run_command):
    process = run_command(
        "corpus",
        "export",
        store.folder,
        "--out",
        tmp_path / "out",
        "--length",
        32,
        "--files",
        3,
        "--json",
    )
    assert process.json["instances"] == len(TrainingRecords(tmp_path / "out", store.tokenizer()))
    assert process.json["files"] == 3


READ_AS_THE_ORIGINAL = """
import json, sys
import tensorflow as tf
S, P, *files = sys.argv[1:]
fixed, S, P = tf.io.FixedLenFeature, int(S), int(P)
spec = {  # input_fn_builder of google-research/albert's run_pretraining.py
    "input_ids": fixed([S], tf.int64), "input_mask": fixed([S], tf.int64), "segment_ids": fixed([S], tf.int64),
    "token_boundary": fixed([S], tf.int64), "masked_lm_positions": fixed([P], tf.int64),
    "masked_lm_ids": fixed([P], tf.int64), "masked_lm_weights": fixed([P], tf.float32),
    "next_sentence_labels": fixed([1], tf.int64),
}
for record in tf.data.TFRecordDataset(files):
    example = tf.io.parse_single_example(record, spec)
    print(json.dumps({name: value.numpy().tolist() for name, value in example.items()}))
"""


@pytest.mark.peer
def test_tensorflow_reads_the_records_as_the_original_does(tmp_path, store):
    python = os.environ.get("ALBERTKIT_TENSORFLOW_PYTHON")
    if not python:
        pytest.skip("ALBERTKIT_TENSORFLOW_PYTHON, an interpreter with TensorFlow, is not set")
    export_records(store, tmp_path / "out", replace(SMALL, max_predictions=20))
    files = find_record_files(tmp_path / "out")
    process = subprocess.run(
        [python, "-c", READ_AS_THE_ORIGINAL, "32", "20", *files],
        capture_output=True,
        text=True,
        check=True,
    )
    read_records = [json.loads(line) for line in process.stdout.splitlines()]
    ours = [
        {n: v.tolist() for n, v in read_example(r).items()}
        for file in files
        for r in RecordFile(file)
    ]
    assert read_records == ours
    assert len(read_records) > 400
    read_records[3]["masked_lm_ids"][0] += 1
    assert read_records != ours
