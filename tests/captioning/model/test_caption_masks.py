"""SwinBERT's tables of who sees whom, and what a mask adds to scores."""

import json

import numpy as np
import pytest
import torch

from albertkit.captioning.model.masks import caption_mask, gate_values, score_bias, sparsity
from albertkit.errors import ConfigError


def _real(count, length):
    return (torch.arange(count) < length)[None]


def _tables(golden):
    """Of captions without a second text, and with one: arguments and table."""
    folder = golden / "captioning"
    arrays = np.load(folder / "attention_masks.npz")
    for entry in json.loads((folder / "attention_masks_index.json").read_text()):
        if entry["attn_mask_type"] == "seq2seq" and entry["is_train"]:
            yield entry, torch.tensor(arrays[entry["key"]]).bool()


def _ours(entry, **changes):
    first, longest, seen = entry["max_seq_a_length"], entry["max_seq_length"], entry["max_img_seq_length"]
    caption = _real(first, entry["seq_a_len"])
    second = _real(longest - first, entry["seq_len"] - first) if longest > first else None
    return caption_mask(caption, _real(seen, seen), second, **changes)[0, 0]


def test_tables_equal_swinberts(golden):
    compared = [torch.equal(_ours(entry), table) for entry, table in _tables(golden)]
    assert len(compared) >= 14
    assert all(compared)


def test_another_rule_is_noticed(golden):
    assert not all(torch.equal(_ours(entry, diagonal=True), table) for entry, table in _tables(golden))


def test_padding_sees_nothing_and_is_seen_by_nothing():
    table = caption_mask(_real(4, 3), _real(3, 2))[0, 0]
    for padding in (3, 6):
        assert not table[padding].any()
        assert not table[:, padding].any()


def test_diagonal_leaves_each_visual_token_itself():
    table = caption_mask(_real(2, 2), _real(3, 3), diagonal=True)[0, 0]
    assert torch.equal(table[2:, 2:], torch.eye(3, dtype=torch.bool))
    assert table[:2, 2:].all()


def test_bias_of_masks_of_two_three_and_four_dimensions():
    keys = torch.tensor([[1, 0]])
    assert torch.equal(score_bias(keys, torch.float32), torch.tensor([[[[0.0, -10000.0]]]]))
    assert score_bias(keys[:, None].expand(1, 2, 2), torch.float32).shape == (1, 1, 2, 2)
    assert score_bias(torch.full((1, 1, 2, 2), 0.5), torch.float64)[0, 0, 0, 0] == -5000
    with pytest.raises(ConfigError, match="attention_mask has shape"):
        score_bias(torch.ones(3), torch.float32)


def test_gate_and_its_sparsity():
    weight = torch.tensor([[0.0], [2.0], [-2.0], [0.0]])
    gate = gate_values(weight, hard=False)
    assert gate.diagonal().tolist() == [1, 1]
    assert gate[0, 1].item() == pytest.approx(1 / (1 + np.exp(-2)))
    assert gate_values(weight, hard=True).tolist() == [[1, 1], [0, 1]]
    assert sparsity(weight).item() == pytest.approx(float(gate[0, 1] + gate[1, 0]) / 4)
