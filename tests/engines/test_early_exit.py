"""Sequences that leave after different layers, against the states of every layer in transformers."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from albertkit.engines import load_engine
from albertkit.engines.early_exit import Exited, encode_until
from albertkit.model import AlbertModel, PackedBatch

MakeModel = Callable[..., AlbertModel]
PASSES = 4


def states_of_every_pass(model: AlbertModel, batch: PackedBatch, tmp_path) -> Tensor:
    """Of each sequence the first token's state after each pass, in transformers: [N, L+1, H]."""
    model.save_pretrained(tmp_path / "model")
    peer = transformers.AlbertModel.from_pretrained(tmp_path / "model").eval()
    found = []
    with torch.no_grad():
        for ids, types in zip(
            batch.input_ids.split(batch.lengths), batch.token_type_ids.split(batch.lengths), strict=True
        ):
            hidden = peer(ids[None], token_type_ids=types[None], output_hidden_states=True).hidden_states
            found.append(torch.stack([states[0, 0] for states in hidden]))
    return torch.stack(found)


def leave_after(wanted: Tensor, engine, batch: PackedBatch) -> Exited:
    return encode_until(engine, batch, PASSES, lambda passes, numbers, first: passes >= wanted[numbers])


@pytest.fixture
def many(batch: PackedBatch) -> PackedBatch:
    """Sequences enough for several pools, in no order of length."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(5, 300, length).tolist() for length in rng.integers(2, 64, 60)]
    return PackedBatch.from_sequences(rows)


@pytest.mark.parametrize("threads", [1, 2])
def test_each_has_the_state_of_its_own_pass(make_model: MakeModel, many: PackedBatch, tmp_path, threads: int) -> None:
    model = make_model()
    wanted = torch.randint(1, PASSES + 1, (many.num_sequences,), generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        exited = leave_after(wanted, load_engine(model, "fp32"), many)
    finally:
        torch.set_num_threads(before)
    assert exited.layers.tolist() == wanted.tolist()
    expected = states_of_every_pass(model, many, tmp_path)
    own = expected[torch.arange(len(wanted)), wanted]
    torch.testing.assert_close(exited.states, own, atol=2e-5, rtol=1e-4)
    another = expected[torch.arange(len(wanted)), wanted % PASSES + 1]
    assert (exited.states - another).abs().amax(1).min() > 1e-3  # the state of another pass would be noticed


def test_packed_weights(make_model: MakeModel, many: PackedBatch, tmp_path, precision: str) -> None:
    model = make_model()
    wanted = torch.arange(many.num_sequences) % PASSES + 1
    exited = leave_after(wanted, load_engine(model, precision), many)
    own = states_of_every_pass(model, many, tmp_path)[torch.arange(len(wanted)), wanted]
    assert F.cosine_similarity(exited.states, own, dim=1).min() > {"bf16": 0.9999, "int8": 0.999}[precision]


def test_nobody_leaves_early(make_model: MakeModel, many: PackedBatch, precision: str) -> None:
    engine = load_engine(make_model(), precision)
    exited = encode_until(engine, many, PASSES, lambda passes, *_: torch.zeros(len(passes), dtype=torch.bool))
    assert set(exited.layers.tolist()) == {PASSES}
    expected = engine.encode(many, positions=many.starts).hidden
    assert F.cosine_similarity(exited.states, expected, dim=1).min() > 0.9999


def test_a_sequence_longer_than_a_pool(make_model: MakeModel) -> None:
    model = make_model(max_position_embeddings=700)
    batch = PackedBatch.from_sequences([[7] * 600, [8] * 3, [9] * 600])
    exited = leave_after(torch.tensor([1, 4, 2]), load_engine(model, "fp32"), batch)
    assert exited.layers.tolist() == [1, 4, 2]
