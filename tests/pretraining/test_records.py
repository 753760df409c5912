"""Training from records: the original's are read exactly, each comes once an epoch, runs resume to the bit, faults are said."""

import json
import shutil
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from small_store import ALONE, SETTINGS, write_config
from torch.nn.functional import cross_entropy

from albertkit.config import AlbertConfig
from albertkit.conversion.tensorflow.records import (
    RecordFile,
    encode_example,
    frame_record,
    may_hold_records,
    read_example,
)
from albertkit.errors import ConfigError, DataError
from albertkit.model import AlbertForMaskedLM, AlbertForPreTraining
from albertkit.pretraining.export import export_records
from albertkit.pretraining.options import ExportSettings
from albertkit.pretraining.pretrain_command import estimate
from albertkit.pretraining.records import (
    RecordEvaluation,
    RecordStream,
    TrainingRecords,
    find_record_files,
)
from albertkit.pretraining.run import evaluate, pretrain
from albertkit.pretraining.settings import PretrainSettings
from albertkit.pretraining.sources import open_pretraining_data


@pytest.fixture(scope="module")
def exported(tmp_path_factory, store):
    folder = tmp_path_factory.mktemp("exported") / "out"
    export_records(store, folder, ExportSettings(length=32, dupe_factor=1, files=3))
    return folder


@pytest.fixture(scope="module")
def records(exported, store):
    return TrainingRecords(exported, store.tokenizer())


@pytest.fixture(scope="module")
def settings(tmp_path_factory, store):
    dropout = dict(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    folder = tmp_path_factory.mktemp("config")
    config = write_config(
        folder, store.vocab_size, intermediate_size=128, max_position_embeddings=512, **dropout
    )
    return replace(SETTINGS, config=config, length=PretrainSettings.length, batch_tokens=256)


# --- what is read ---------------------------------------------------------------------------------


def read_features(folder):
    return [
        read_example(payload) for file in find_record_files(folder) for payload in RecordFile(file)
    ]


def write_features(path, features):
    path.write_bytes(b"".join(map(frame_record, map(encode_example, features))))
    return path


def test_the_originals_records_are_read_without_their_padding(golden, albert_tokenizer):
    expected = [json.loads(line) for line in (golden / "masking" / "seq128_cap20.jsonl").open()]
    records = TrainingRecords(golden / "masking" / "seq128_cap20.tfrecord", albert_tokenizer)
    assert len(records) == 200
    assert records.length == 128
    for number, features in enumerate(expected):
        batch = records.batch(np.array([number]))
        tokens = sum(features["input_mask"])
        masked = int(sum(features["masked_lm_weights"]))
        assert batch.input_ids.tolist() == features["input_ids"][:tokens]
        assert batch.token_type_ids.tolist() == features["segment_ids"][:tokens]
        assert batch.position_ids.tolist() == list(range(tokens))
        assert batch.masked_positions.tolist() == features["masked_lm_positions"][:masked]
        assert batch.masked_labels.tolist() == features["masked_lm_ids"][:masked]
        assert batch.sentence_order_labels.tolist() == features["next_sentence_labels"]
    batch = records.batch(np.array([5, 3]))
    assert batch.lengths == (sum(expected[5]["input_mask"]), sum(expected[3]["input_mask"]))
    first = int(sum(expected[5]["masked_lm_weights"]))
    assert batch.masked_positions[first:].tolist() == [
        sum(expected[5]["input_mask"]) + p
        for p, weight in zip(
            expected[3]["masked_lm_positions"], expected[3]["masked_lm_weights"], strict=True
        )
        if weight
    ]


def test_losses_are_the_originals_on_the_padded_features(tmp_path, golden, albert_tokenizer):
    """Google's features go padded through transformers' class, and its logits through the sums of run_pretraining.py."""
    transformers = pytest.importorskip("transformers")
    path = golden / "masking" / "seq128_cap20.tfrecord"
    sizes = dict(
        embedding_size=16,
        hidden_size=32,
        num_attention_heads=1,
        num_hidden_layers=2,
        intermediate_size=64,
    )
    torch.manual_seed(0)
    theirs = transformers.AlbertForPreTraining(
        transformers.AlbertConfig(vocab_size=30000, **sizes)
    ).eval()
    theirs.save_pretrained(tmp_path)
    ours = AlbertForPreTraining.from_pretrained(tmp_path)
    features = [read_example(payload) for payload in islice(RecordFile(path), 12)]
    padded = {
        name: torch.from_numpy(np.stack([record[name] for record in features]))
        for name in features[0]
    }
    records = TrainingRecords(path, albert_tokenizer)
    with torch.inference_mode():
        logits = theirs(padded["input_ids"], padded["input_mask"], padded["segment_ids"])
        losses = ours.pretraining_losses(records.batch(np.arange(12)))
        next_losses = ours.pretraining_losses(records.batch(np.arange(1, 13)))
    target_positions = padded["masked_lm_positions"][:, :, None].expand(-1, -1, 30000)
    per_example = torch.nn.functional.cross_entropy(
        logits.prediction_logits.gather(1, target_positions).flatten(0, 1),
        padded["masked_lm_ids"].flatten(),
        reduction="none",
    )
    masked_lm = (per_example * padded["masked_lm_weights"].flatten()).sum()
    order = torch.nn.functional.cross_entropy(
        logits.sop_logits, padded["next_sentence_labels"].flatten(), reduction="sum"
    )
    torch.testing.assert_close(losses.masked_lm.loss_sum, masked_lm, rtol=1e-5, atol=0)
    torch.testing.assert_close(losses.sentence_order.loss_sum, order, rtol=1e-5, atol=0)
    assert abs(float(next_losses.masked_lm.loss_sum - masked_lm)) > 1e-4 * float(masked_lm)


@pytest.mark.parametrize(
    "path", ["{out}", "{out}/*.tfrecord", "{out}/records-00001-of-00003.tfrecord"]
)
def test_a_folder_a_glob_or_a_file(path, exported, records, store):
    found_records = TrainingRecords(path.format(out=exported), store.tokenizer())
    assert (
        len(found_records) == len(records)
        if "00001" not in path
        else len(found_records) == len(records) // 3
    )
    assert (found_records.fingerprint == records.fingerprint) == ("00001" not in path)


def test_the_model_gardens_names_and_missing_boundaries_are_known(
    tmp_path, exported, records, store
):
    """Its use_v2_feature_names renames two features, and it writes no token_boundary."""
    names = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
    features = read_features(exported)
    renamed = [
        {names.get(n, n): v for n, v in record.items() if n != "token_boundary"}
        for record in features
    ]
    renamed_records = TrainingRecords(
        write_features(tmp_path / "v2.tfrecord", renamed), store.tokenizer()
    )
    for number in (0, 17):
        first, second = (record.batch(np.array([number])) for record in (renamed_records, records))
        assert all(
            torch.equal(torch.as_tensor(a), torch.as_tensor(vars(second)[n]))
            for n, a in vars(first).items()
        )


# --- in which order -------------------------------------------------------------------------------


def of_epochs(stream, number):
    """The global batches of the first epochs, one list an epoch."""
    epochs = [[] for _ in range(number)]
    while batches := next(stream):
        epoch = stream.state()["epoch"]
        if epoch == number:
            return epochs
        epochs[epoch].append(batches)


def sequences(batch):
    """Each sequence with its labels, as plain numbers."""
    labels = batch.masked_labels.split(torch.bincount(torch.bucketize(batch.masked_positions, batch.offsets[1:], right=True),
                                                      minlength=batch.num_sequences).tolist())  # fmt: skip
    ids = batch.input_ids.split(batch.lengths)
    return [(tuple(i.tolist()), tuple(m.tolist())) for i, m in zip(ids, labels, strict=True)]


def test_every_record_comes_once_an_epoch_however_it_is_divided(records):
    included = ~records.held_out(0.2, 7)
    everything = sorted(sequences(records.batch(np.flatnonzero(included))))
    held_out = set(sequences(records.batch(np.flatnonzero(~included)))) - set(everything)
    assert held_out
    for world_size, accumulation, batch_tokens in (
        (1, 1, 128),
        (1, 3, 96),
        (2, 2, 64),
        (3, 1, 1000),
    ):
        epochs = [[], []]
        steps = set()
        for rank in range(world_size):
            stream = RecordStream(
                records,
                included,
                seed=3,
                batch_tokens=batch_tokens,
                accumulation=accumulation,
                rank=rank,
                world_size=world_size,
            )
            mine = of_epochs(stream, 2)
            assert [len(epoch) for epoch in mine] == [stream.estimate_global_batches(0)] * 2
            steps.add(tuple(tuple(len(batches) for batches in epoch) for epoch in mine))
            assert all(
                batch.num_tokens <= batch_tokens
                for epoch in mine
                for batches in epoch
                for batch in batches
            )
            for numbers, epoch in zip(epochs, mine, strict=True):
                numbers += [s for batches in epoch for batch in batches for s in sequences(batch)]
        assert len(steps) == 1
        for numbers in epochs:
            assert sorted(numbers) == everything
            assert not held_out & set(numbers)
        assert epochs[0] != epochs[1]


def test_restoring_continues_to_the_bit(records, slug_of):
    def fresh(seed=3, share=0.2):
        return RecordStream(
            records, ~records.held_out(share, 7), seed=seed, batch_tokens=256, accumulation=2
        )

    through = fresh()
    for _ in range(9):
        next(through)
    state = through.state()
    assert all(type(value) is int for value in state.values())
    expected = list(islice(through, 20))
    assert through.state()["epoch"] > state["epoch"]
    resumed = fresh()
    next(resumed)
    resumed.restore(state)
    for first, second in zip(expected, islice(resumed, 20), strict=True):
        assert [sequences(batch) for batch in first] == [sequences(batch) for batch in second]
    for different in (fresh(seed=4), fresh(share=0.5)):
        assert slug_of(different.restore, state) == "changed"


def test_evaluation_is_one_pass_over_what_is_held_out(records):
    held_out = records.held_out(0.3, 1)
    expected = sequences(records.batch(np.flatnonzero(held_out)))
    alone = RecordEvaluation(records, held_out, 100, ALONE)
    for _ in range(2):
        assert [s for batch in alone for s in sequences(batch)] == expected
    divided = [
        RecordEvaluation(records, held_out, 100, replace(ALONE, rank=rank, size=2))
        for rank in range(2)
    ]
    assert sorted(s for part in divided for batch in part for s in sequences(batch)) == sorted(
        expected
    )
    shares = [records.held_out(share, 1).mean() for share in (0.0, 0.3, 1.0)]
    assert shares[0] == 0
    assert shares[1] == pytest.approx(0.3, abs=0.1)
    assert shares[2] == 1


def test_frequencies_are_those_of_the_text_before_masking(exported, records):
    expected = np.zeros(48, np.int64)
    for record in read_features(exported):
        text = record["input_ids"].copy()
        is_masked = record["masked_lm_weights"] == 1
        text[record["masked_lm_positions"][is_masked]] = record["masked_lm_ids"][is_masked]
        expected += np.bincount(text[record["input_mask"] == 1], minlength=48)
    expected[[records.tokenizer.cls_id, records.tokenizer.sep_id]] = 0
    assert expected[records.tokenizer.mask_id] == 0
    assert records.count_tokens(np.ones(len(records), bool)).tolist() == expected.tolist()
    held_out_counts = records.count_tokens(records.held_out(0.5, 1))
    assert 0.3 < held_out_counts.sum() / expected.sum() < 0.7


# --- whole runs -----------------------------------------------------------------------------------


def test_a_run_on_records_leaves_what_it_promises(tmp_path, exported, train):
    result = train(data=exported)
    for name in (
        "config.json",
        "model.safetensors",
        "spiece.model",
        "README.md",
        "provenance.json",
    ):
        assert (tmp_path / "run" / "final" / name).exists(), name
    # The records decide
    assert PretrainSettings.read(tmp_path / "run" / "run.toml")["length"] == 32
    # How they were masked they do not say
    assert "masked_lm_prob" not in (result.model / "provenance.json").read_text()
    card = (result.model / "README.md").read_text()
    assert not any(f"`{name}`" in card for name in ("masked_lm_prob", "max_ngram", "sop_pairs"))
    assert all(f"`{name}`" in card for name in ("length", "pair_task", "held_out"))
    assert result.scores["masked_lm_count"] > 100
    assert result.scores["masked_lm_loss"] < 4.5
    assert 1 < result.scores["unigram_loss"] < np.log(48)
    longer = train("longer", data=exported, steps=60)
    assert longer.scores["masked_lm_loss"] < result.scores["masked_lm_loss"]


def test_a_run_is_resumed_only_with_its_own_records_and_tokenizer(
    tmp_path, exported, slug_of, train
):
    train(data=exported, steps=3)
    assert train(data=exported, resume=True, steps=3).steps == 3
    shutil.copytree(exported, tmp_path / "other")
    file = tmp_path / "other" / "records-00001-of-00003.tfrecord"
    file.write_bytes(b"".join(map(frame_record, list(RecordFile(file))[::-1])))
    assert slug_of(train, data=tmp_path / "other", resume=True, steps=3) == "changed"


def test_the_estimate_trains_nothing(exported, settings):
    measured = estimate(exported, settings=settings)
    assert 0 < measured.tokens_per_step <= settings.batch_tokens
    assert measured.steps_per_epoch > 1


def test_without_pairs_order_labels_are_not_needed(tmp_path, exported, train):
    features = read_features(exported)
    for record in features:
        del record["next_sentence_labels"]
    shutil.copytree(exported / "tokenizer", tmp_path / "tokenizer")
    single = write_features(tmp_path / "single.tfrecord", features)
    with pytest.raises(DataError) as caught:
        train(data=single, steps=2)
    assert caught.value.slug == "bad-row"
    assert "--pair-task none" in caught.value.hint
    result = train(data=single, steps=2, pair_task="none")
    assert result.scores["sentence_order_count"] == 0


def test_what_cannot_be_trained_on_is_reported_before_anything_is_written(
    tmp_path, exported, settings, slug_of
):
    def slug(data, tokenizer=None, **changes):
        raised = slug_of(
            pretrain, data, tmp_path / "run", replace(settings, **changes), tokenizer=tokenizer
        )
        assert not (tmp_path / "run").exists()
        return raised

    file = shutil.copy(exported / "records-00000-of-00003.tfrecord", tmp_path)
    (tmp_path / "empty.tfrecord").touch()
    tokenizer = exported / "tokenizer"
    assert slug(file) == "no-tokenizer"
    assert slug(exported, max_predictions=20) == "bad-value"
    assert slug(exported, length=48) == "bad-value"
    assert slug(exported, held_out=0.0) == "too-little-data"
    assert slug(tmp_path / "no*.tfrecord", tokenizer) == "not-found"
    assert slug(tmp_path / "nothing") == "not-found"
    assert slug(file, tmp_path / "nothing") == "not-found"
    assert slug(tmp_path / "empty.tfrecord", tokenizer) == "too-little-data"
    wide = read_features(file)[:20]
    for record in wide:
        record |= {
            name: np.pad(values, (0, 600 - 32))
            for name, values in record.items()
            if len(values) == 32
        }
    assert slug(write_features(tmp_path / "wide.tfrecord", wide), tokenizer) == "bad-value"


def test_a_store_refuses_another_tokenizer(tmp_path, store, golden, data, settings, slug_of):
    assert (
        slug_of(pretrain, store, tmp_path / "run", settings, tokenizer=data / "albert")
        == "wrong-tokenizer"
    )


# --- faults ---------------------------------------------------------------------------------------


def changed(**values):
    return lambda features: {
        **features,
        **{name: change(features[name].copy()) for name, change in values.items()},
    }


def set_value(index, value):
    def change(array):
        array[index] = value
        return array

    return change


FAULTS = {
    "wrong-tokenizer": [
        changed(input_ids=set_value(3, 48)),
        changed(masked_lm_ids=set_value(0, -1)),
    ],
    "bad-row": [
        lambda features: {n: v for n, v in features.items() if n != "masked_lm_ids"},
        lambda features: {n: v[:-1] if len(v) == 32 else v for n, v in features.items()},
        changed(input_mask=set_value(2, 0)),
        changed(input_mask=lambda v: v * 0),
        changed(masked_lm_positions=set_value(0, 32)),
        changed(masked_lm_positions=set_value(0, -1)),
        changed(segment_ids=set_value(1, 2)),
        changed(next_sentence_labels=set_value(0, 2)),
        changed(input_mask=lambda v: v[:-1]),
        changed(masked_lm_weights=lambda v: v[:-1]),
        changed(next_sentence_labels=lambda v: v[:0]),
        changed(input_ids=lambda v: v.astype(np.float32)),
    ],
}


@pytest.mark.parametrize(
    ("slug", "break_it"), [(slug, one) for slug, several in FAULTS.items() for one in several]
)
def test_a_broken_record_is_named(tmp_path, exported, store, slug, break_it):
    features = read_features(find_record_files(exported)[0])
    number = 101  # the first hundred are looked at when records are opened
    features[number] = break_it(features[number])
    path = write_features(tmp_path / "broken.tfrecord", features)
    records = TrainingRecords(path, store.tokenizer())
    records.batch(np.array([number - 1]))
    with pytest.raises(DataError) as caught:
        records.batch(np.array([number - 1, number, number + 1]))
    assert caught.value.slug == slug
    assert f"record {number} of `{path}`" in caught.value.message
    assert caught.value.hint


def test_a_payload_that_is_no_example_is_named(tmp_path, store):
    (tmp_path / "other.tfrecord").write_bytes(b"".join(map(frame_record, [b"\xff\xff\xff"])))
    with pytest.raises(DataError) as caught:
        TrainingRecords(tmp_path / "other.tfrecord", store.tokenizer())
    assert caught.value.slug == "corrupt"
    assert "record 0" in caught.value.message
    assert "other.tfrecord" in caught.value.message


@pytest.mark.parametrize("special", ["cls_id", "sep_id", "mask_id"])
def test_records_of_another_vocabulary_are_refused_at_once(exported, store, special, slug_of):
    """The ids are all in range, but [CLS], [SEP] or [MASK] is another piece."""
    tokenizer = store.tokenizer()
    TrainingRecords(exported, tokenizer)

    class Other:
        vocab_size = tokenizer.vocab_size
        fingerprint = tokenizer.fingerprint
        cls_id = tokenizer.cls_id
        sep_id = tokenizer.sep_id
        mask_id = tokenizer.mask_id

    setattr(Other, special, tokenizer.pad_id)
    assert slug_of(TrainingRecords, exported, Other) == "wrong-tokenizer"


def test_a_model_is_evaluated_on_records_as_they_were_masked(
    exported, records, store, settings, tmp_path, run_command, monkeypatch
):
    """The loss is that of the original's own numbers: torch's cross-entropy of the logits at the masked places."""
    tokenizer = store.tokenizer()
    torch.manual_seed(1)
    model = AlbertForPreTraining(
        AlbertConfig.from_dict(json.loads(settings.config.read_text()))
    ).eval()
    model.save_pretrained(tmp_path / "model", tokenizer)
    evaluation = evaluate(tmp_path / "model", exported)
    batch = records.batch(np.arange(len(records)))
    with torch.no_grad():
        logits, order = model.packed_logits(batch)
    assert evaluation.masked_lm_loss == pytest.approx(
        float(cross_entropy(logits, batch.masked_labels)), rel=1e-5
    )
    assert evaluation.sentence_order_loss == pytest.approx(
        float(cross_entropy(order, batch.sentence_order_labels)), rel=1e-5
    )
    assert evaluation.masked_lm_count == len(batch.masked_labels)
    assert evaluation.sentence_order_count == len(records)

    masked_lm = AlbertForMaskedLM.from_pretrained(tmp_path / "model", strict=False)
    masked_lm.save_pretrained(tmp_path / "masked_lm", tokenizer)
    for data in (exported, store.folder):
        process = run_command("evaluate", tmp_path / "masked_lm", data, "--json")
        assert process.status == 0, process.err
        alone = process.json
        assert alone["sentence_order_loss"] is None
        if data == exported:
            assert alone["masked_lm_loss"] == pytest.approx(evaluation.masked_lm_loss, rel=1e-5)
        assert "evaluating: " not in process.err
    monkeypatch.setattr("albertkit.output.progress._LINE_SECONDS", 0)
    for data, end in (
        (exported, f"{len(records):,} of {len(records):,} records"),
        (store.folder, "sequences"),
    ):
        lines = run_command("evaluate", tmp_path / "model", data).err.splitlines()
        progress_lines = [line for line in lines if line.startswith("evaluating: ")]
        assert end in progress_lines[-1]
    with pytest.raises(ConfigError, match="whose length and masks are fixed"):
        evaluate(tmp_path / "model", exported, length=64)


def test_a_text_file_given_as_data_is_called_neither_records_nor_a_store(tmp_path, run_command):
    text = tmp_path / "my text.txt"
    text.write_text("One sentence a line.\n")
    process = run_command("pretrain", text, "--out", tmp_path / "run", "--size", "tiny")
    assert process.status == 2
    assert "error[wrong-kind]" in process.err
    assert f"albertkit corpus build '{text}'" in process.err
    assert not (tmp_path / "run").exists()


def test_records_under_any_name_are_found_by_their_first_bytes(tmp_path, exported, slug_of):
    first = sorted(exported.glob("*.tfrecord"))[0]
    different = shutil.copy(first, tmp_path / "train.bin")
    assert may_hold_records(different)
    assert slug_of(open_pretraining_data, different, PretrainSettings()) == "no-tokenizer"
