"""Packed batches: what goes in padded comes out padded."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from albertkit.batches.packed import unpack
from albertkit.errors import ConfigError, DataError
from albertkit.model import PackedBatch

sequences = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=9), min_size=1, max_size=5)


@given(sequences)
@settings(max_examples=50)
def test_sequences_survive_packing(ids):
    batch = PackedBatch.from_sequences(ids)
    assert [piece.tolist() for piece in batch.input_ids.split(batch.lengths)] == ids
    assert batch.offsets.diff().tolist() == list(batch.lengths) == [len(x) for x in ids]
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(x) for x in ids], batch_first=True)
    assert torch.equal(batch.unpack(batch.input_ids), padded)
    assert torch.equal(batch.padding_mask(), padded != 0)
    repacked = PackedBatch.from_padded(padded, padded != 0)
    assert torch.equal(repacked.input_ids, batch.input_ids)
    assert torch.equal(repacked.position_ids, batch.position_ids)
    assert repacked.lengths == batch.lengths


def test_positions_and_targets_follow_their_tokens():
    batch = PackedBatch.from_sequences(
        [[1, 2, 3], [4, 5]],
        token_type_ids=[[0, 0, 1], [0, 1]],
        masked_positions=[[2], [0, 1]],
        masked_labels=[[30], [40, 50]],
        sentence_order_labels=[1, -100],
    )
    assert batch.masked_positions is not None
    assert batch.input_ids[batch.masked_positions].tolist() == [3, 4, 5]
    assert batch.token_type_ids.tolist() == [0, 0, 1, 0, 1]
    assert batch.num_tokens == 5
    assert batch.num_sequences == 2


def test_a_hole_in_the_mask_keeps_the_padded_positions():
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    mask = torch.tensor([[1, 0, 1, 1], [1, 1, 0, 0]])
    labels = torch.tensor([[-100, 6, 7, -100], [9, -100, -100, 12]])
    batch = PackedBatch.from_padded(ids, mask, labels=labels)
    assert batch.input_ids.tolist() == [5, 7, 8, 9, 10]
    assert batch.position_ids.tolist() == [0, 2, 3, 0, 1]
    assert batch.masked_positions is not None
    assert batch.masked_positions.tolist() == [1, 3]  # the labels 6 and 12 stand at padding
    assert unpack(batch.input_ids, mask).tolist() == [[5, 0, 7, 8], [9, 10, 0, 0]]


def test_moving_keeps_every_field():
    batch = PackedBatch.from_sequences(
        [[1, 2]], masked_positions=[[1]], masked_labels=[[7]], sentence_order_labels=[0]
    )
    moved = batch.to("meta")
    assert moved.device.type == moved.masked_labels.device.type == "meta"
    assert moved.lengths == (2,)


def test_impossible_input_is_named():
    with pytest.raises(DataError, match="sequence 1 has no token"):
        PackedBatch.from_sequences([[1], []])
    with pytest.raises(DataError, match="row 0 is all padding"):
        PackedBatch.from_padded(
            torch.ones(2, 3, dtype=torch.int64), torch.tensor([[0, 0, 0], [1, 1, 1]])
        )
    with pytest.raises(ConfigError, match=r"attention_mask has shape \[1, 3\]"):
        PackedBatch.from_padded(torch.ones(2, 3, dtype=torch.int64), torch.ones(1, 3))
    with pytest.raises(ConfigError, match=r"expected \[batch, length\]"):
        PackedBatch.from_padded(torch.ones(3, dtype=torch.int64))
