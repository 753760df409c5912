"""Complete instances of the original script: what is not random must come out exactly."""

from itertools import pairwise

import numpy as np
import pytest
from memory_store import MemoryStore, read_novels
from record_files import read_records

from albertkit.pretraining.batches import Assembler
from albertkit.pretraining.examples import EXAMPLE, IN_ORDER, RANDOM, SWAPPED, EpochPlan
from albertkit.pretraining.masking import MaskSettings, find_units, mask_tables

KIND = {"in_order": IN_ORDER, "swapped": SWAPPED, "random_document": RANDOM}


@pytest.fixture(scope="module")
def instances(golden):
    return read_records(golden / "masking/instances.jsonl")


@pytest.fixture(scope="module")
def lines(golden, albert_tokenizer):
    """The ids of all lines as one shard, and where each line starts."""
    _, line_ids = read_novels(golden, albert_tokenizer)
    store = MemoryStore([[ids for ids in line_ids if ids]], model=albert_tokenizer)
    return store, np.concatenate([[0], np.cumsum([len(ids) for ids in line_ids])])


def example_of(instance, starts):
    """The record that our planning would have written for an instance."""
    example = np.zeros(1, EXAMPLE)
    for segment in "ab":
        reference = instance[segment]
        first = starts[reference["lines"][0]] + reference["first_piece"]
        end = starts[reference["lines"][-1]] + reference["last_piece"] + 1
        example[f"{segment}_start"], example[f"{segment}_length"] = first, end - first
    example["kind"] = KIND[instance["kind"]]
    return example


def test_tokens_segments_labels_and_budget(instances, lines):
    store, starts = lines
    for instance in instances:
        settings = MaskSettings(
            max_predictions=instance["max_predictions_per_seq"], random_specials=True
        )
        plan = EpochPlan(example_of(instance, starts), num_specials=3, skipped_documents=0)
        assembled = Assembler(store, settings, seed=instance["id"]).batch_with_drawn_masks(
            plan, np.arange(1), epoch=0
        )
        tokens = [store.model.id_to_piece(int(i)) for i in assembled.original_ids]
        assert tokens == instance["tokens_before_masking"]
        assert assembled.batch.token_type_ids.tolist() == instance["segment_ids"]
        assert assembled.batch.sentence_order_labels.tolist() == [instance["sentence_order_label"]]
        assert settings.num_predictions_of(np.array([len(tokens)])).tolist() == [
            instance["num_to_predict"]
        ]
        assert len(assembled.batch.masked_positions) == instance["num_to_predict"]


def test_units_and_token_boundaries(instances, lines):
    store, starts = lines
    words, pieces = (
        mask_tables(store.model, MaskSettings(whole_word=flag)) for flag in (True, False)
    )
    across = 0
    for instance in instances:
        example = example_of(instance, starts)[0]
        a_length = int(example["a_length"])
        length = int(example["a_length"]) + int(example["b_length"])
        ids = np.zeros(length + 3, np.int64)
        tokens = store.tokens[0]
        ids[1 : 1 + a_length] = tokens[example["a_start"] :][:a_length]
        ids[2 + a_length : -1] = tokens[example["b_start"] :][: length - a_length]
        boundary = words.starts[ids].astype(int)
        boundary[[0, 1 + a_length, -1]] = 1
        assert boundary.tolist() == instance["token_boundary"]

        units = np.empty(length + 1, np.int32)
        number = find_units(ids, a_length, length, words.starts, units)
        positions = [1 + i + (i >= a_length) for i in range(length)]
        assert [positions[a:b] for a, b in pairwise(units[: number + 1])] == instance["units"]
        across += any(unit[0] <= a_length < unit[-1] for unit in instance["units"])
        assert find_units(ids, a_length, length, pieces.starts, units) == length
    assert across > 0  # the quirk at [SEP] is among them
