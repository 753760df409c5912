"""SwinBERT's tables of who sees whom, and what a mask adds to scores."""

import json

import numpy as np
import pytest
import torch

from albertkit.captioning.layers import attention_bias_of_mask, gate_matrix, sparsity
from albertkit.errors import ConfigError
from benchmarks.captioning import caption_mask


def _real(count, length):
    return (torch.arange(count) < length)[None]


def test_tables_equal_swinberts(golden):
    folder = golden / "captioning"
    arrays = np.load(folder / "attention_masks.npz")
    compared = []
    for entry in json.loads((folder / "attention_masks_index.json").read_text()):
        length = entry["max_seq_a_length"]
        visual_length = entry["max_img_seq_length"]
        if (
            entry["attn_mask_type"] == "seq2seq"
            and entry["is_train"]
            and entry["max_seq_length"] == length
        ):
            table = caption_mask(
                _real(length, entry["seq_a_len"]), _real(visual_length, visual_length)
            )[0, 0]
            compared.append(torch.equal(table, torch.tensor(arrays[entry["key"]]).bool()))
    assert len(compared) >= 4
    assert all(compared)


def test_padding_sees_nothing_and_is_seen_by_nothing():
    table = caption_mask(_real(4, 3), _real(3, 2))[0, 0]
    for padding in (3, 6):
        assert not table[padding].any()
        assert not table[:, padding].any()


def test_bias_of_masks_of_two_three_and_four_dimensions():
    keys = torch.tensor([[1, 0]])
    assert torch.equal(
        attention_bias_of_mask(keys, torch.float32), torch.tensor([[[[0.0, -10000.0]]]])
    )
    assert attention_bias_of_mask(keys[:, None].expand(1, 2, 2), torch.float32).shape == (
        1,
        1,
        2,
        2,
    )
    assert attention_bias_of_mask(torch.full((1, 1, 2, 2), 0.5), torch.float64)[0, 0, 0, 0] == -5000
    with pytest.raises(ConfigError, match="attention_mask has shape"):
        attention_bias_of_mask(torch.ones(3), torch.float32)


def test_gate_and_its_sparsity():
    weight = torch.tensor([[0.0], [2.0], [-2.0], [0.0]])
    gate = gate_matrix(weight, hard=False)
    assert gate.diagonal().tolist() == [1, 1]
    assert gate[0, 1].item() == pytest.approx(1 / (1 + np.exp(-2)))
    assert gate_matrix(weight, hard=True).tolist() == [[1, 1], [0, 1]]
    assert sparsity(weight).item() == pytest.approx(float(gate[0, 1] + gate[1, 0]) / 4)
