"""GLUE's files as the original reads them, the original distributions beside them, and Korean tables."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from albertkit.errors import ConfigError, DataError
from albertkit.tasks.faults import Faults
from albertkit.tasks.glue import OFFICIAL, official_task, table_task
from albertkit.tokenizer import AlbertTokenizer

# Name of the golden file, our task, its file for each split of theirs.
GOLDEN = {
    "cola": ("cola", "CoLA", {}),
    "sst-2": ("sst2", "SST-2", {}),
    "mrpc": ("mrpc", "MRPC", {}),
    "sts-b": ("stsb", "STS-B", {}),
    "qqp": ("qqp", "QQP", {}),
    "mnli": ("mnli", "MNLI", {"dev": "dev_matched", "test": "test_matched"}),
    "mismnli": ("mnli", "MNLI", {"dev": "dev_mismatched", "test": "test_mismatched"}),
    "qnli": ("qnli", "QNLI", {}),
    "rte": ("rte", "RTE", {}),
    "wnli": ("wnli", "WNLI", {}),
    "ax": ("ax", "diagnostic", {}),
}


@pytest.fixture(scope="module")
def tokenizer(data):
    return AlbertTokenizer.from_pretrained(data / "albert")


def read(task, file, split, labelled, faults=None):
    return list(task.examples(file, split=split, labelled=labelled, faults=faults or Faults()))


def padded(features, arrays):
    width = arrays[0].shape[1]
    lengths = features.lengths
    made = np.zeros((3, len(lengths), width), np.int64)
    for row, (start, length) in enumerate(zip(features.offsets, lengths, strict=False)):
        made[0, row, :length] = features.input_ids[start : start + length]
        made[1, row, :length] = 1
        made[2, row, :length] = features.token_type_ids[start : start + length]
    return made


@pytest.mark.parametrize("theirs", GOLDEN)
def test_features_are_those_of_the_original(golden, tokenizer, theirs):
    name, folder, files = GOLDEN[theirs]
    expected = np.load(golden / f"glue/features_{theirs}.npz")
    index = json.loads((golden / "glue/features_index.json").read_text())[theirs]
    compared = 0
    for split in ("train", "dev", "test"):
        if f"{split}_guid" not in expected:
            continue
        task = official_task(name)
        file = task.files(golden / "glue/data")[files.get(split, split)]
        faults = Faults("skip")  # the original passes over QQP's short rows in silence
        examples = read(task, file, split, labelled=split != "test", faults=faults)
        assert len(examples) == index[split]["examples"]
        assert len(faults.found) == ({"train": 1, "dev": 2}.get(split, 0) if name == "qqp" else 0)
        if name != "stsb":
            assert list(OFFICIAL[name].labels) == index["labels"]
        for length in (128, 32):
            arrays = [expected.get(f"{split}_{length}_{part}") for part in ("input_ids", "input_mask", "segment_ids")]
            if arrays[0] is None:
                continue
            features = replace(task, length=length).features(examples, tokenizer, labelled=split != "test")
            assert np.array_equal(padded(features, arrays), np.array(arrays))
            if split != "test":
                assert np.array_equal(features.per_sequence["labels"], expected[f"{split}_label_ids"])
            compared += len(examples)
            shorter = replace(task, length=length - 1).features(examples, tokenizer, labelled=False)
            if index[split][f"full_at_{length}"]:  # the comparison notices one piece less
                assert not np.array_equal(padded(shorter, arrays), np.array(arrays))
        ids = [guid.split("-")[-1] for guid in expected[f"{split}_guid"]]
        numbered = [int(number) for number in ids] == list(range(int(ids[0]), int(ids[0]) + len(ids)))
        assert [e.id for e in examples] == (ids if not numbered else [str(number) for number in range(len(ids))])
    assert compared


# Counts by wc, grep and the folder's README; labels counted by hand-written scripts over raw lines.
REAL = {
    "cola": ("glue/CoLA", {"train": 8551, "dev": 527, "dev_out_of_domain": 516}),
    "sst2": ("glue/SST-2", {"train": 60614, "dev": 6735, "test": 872}),
    "mrpc": ("glue/MRPC", {"train": 4076, "dev": 1725}),
    "stsb": ("glue/STS-B", {"train": 5749, "dev": 1500, "test": 1379}),
    "rte": ("glue/RTE", {"train": 2490, "dev": 277}),
    "qnli": ("glue/QNLI", {"dev": 5463}),
    "wnli": ("glue/WNLI", {"train": 565, "dev": 70, "test": 71}),
    "nsmc": ("korean/nsmc", {"train": 20000, "test": 5000}),
    "klue-nli": ("korean/klue", {"dev": 3000}),
    "klue-sts": ("korean/klue", {"dev": 519}),
    "korsts": ("korean/korsts", {"train": 5749, "dev": 1500, "test": 1379}),
}
