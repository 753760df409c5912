"""Google's SQuAD 2 model against what google-research/albert printed (golden `tf1/squad_v2`)."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from albertkit.config import AlbertConfig
from albertkit.conversion.tensorflow.bundle import TensorBundle
from albertkit.model import AlbertForBeamQuestionAnswering, PackedBatch

BLOCK = "albert.encoder.albert_layer_groups.0.albert_layers.0."
SCOPES = {  # ours to theirs, where they differ by more than dots and slashes
    "albert.embeddings.": "bert/embeddings/",
    "albert.encoder.embedding_hidden_mapping_in.": "bert/encoder/embedding_hidden_mapping_in/",
    BLOCK + "attention.LayerNorm.": "LayerNorm/",
    BLOCK + "attention.dense.": "attention_1/output/dense/",
    BLOCK + "attention.": "attention_1/self/",
    BLOCK + "full_layer_layer_norm.": "LayerNorm_1/",
    BLOCK + "ffn.": "ffn_1/intermediate/dense/",
    BLOCK + "ffn_output.": "ffn_1/intermediate/output/dense/",
}


def their_name(name):
    prefix = next((ours for ours in SCOPES if name.startswith(ours)), "")
    scope_prefix = (
        "bert/encoder/transformer/group_0/inner_group_0/" if prefix.startswith(BLOCK) else ""
    )
    scope, leaf = (
        scope_prefix + SCOPES.get(prefix, "") + name.removeprefix(prefix).replace(".", "/")
    ).rsplit("/", 1)
    if scope.endswith("_embeddings"):
        return scope
    normed = {"weight": "gamma", "bias": "beta"}
    return f"{scope}/{(normed if 'LayerNorm' in scope else {'weight': 'kernel', 'bias': 'bias'})[leaf]}"


@pytest.fixture(scope="module")
def model(golden):
    folder = golden / "tf1/squad_v2"
    loaded = AlbertForBeamQuestionAnswering(AlbertConfig.from_pretrained(folder)).eval()
    bundle = TensorBundle.open(folder / "model.ckpt-3")
    state = {}
    used = set()
    for name, parameter in loaded.state_dict().items():
        tensor = torch.from_numpy(bundle.read(their_name(name)).copy())
        used.add(their_name(name))
        state[name] = tensor.T if their_name(name).endswith("kernel") else tensor
        assert state[name].shape == parameter.shape, name
    loaded.load_state_dict(state)
    unused = {name for name in bundle.names if "adam_" not in name} - used
    # The heads use no pooler
    assert unused == {"bert/pooler/dense/kernel", "bert/pooler/dense/bias", "global_step"}
    return loaded


@pytest.fixture(scope="module")
def arrays(golden):
    folder = golden / "tf1/squad_v2"
    inputs, outputs = (
        {name: torch.from_numpy(array) for name, array in np.load(folder / file).items()}
        for file in ("inputs.npz", "outputs.npz")
    )
    return {name: tensor.long() for name, tensor in inputs.items()}, outputs


def arguments(inputs):
    names = {"attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    return {
        name: inputs[names.get(name, name)]
        for name in ("input_ids", "attention_mask", "token_type_ids", "p_mask")
    }


def assert_beams(outputs, expected, tolerance=1e-5):
    """Equal log-probabilities and places, as far as a start may be one: fewer places than beams leave beams without meaning."""
    is_start = expected["start_top_log_probs"] > -1e29
    assert is_start[:, 0].all()
    assert not is_start.all()
    assert_close(
        outputs["start_top_log_probs"],
        expected["start_top_log_probs"],
        atol=tolerance,
        rtol=tolerance,
    )
    assert torch.equal(
        outputs["start_top_index"][is_start], expected["start_top_index"][is_start].long()
    )
    for kind in ("end_top_log_probs", "end_top_index"):
        ours, theirs = (
            tensors[kind].unflatten(1, (5, 5))[is_start] for tensors in (outputs, expected)
        )
        is_end = expected["end_top_log_probs"].unflatten(1, (5, 5))[is_start] > -1e29
        assert_close(ours[is_end], theirs[is_end].to(ours.dtype), atol=tolerance, rtol=tolerance)
    assert_close(outputs["cls_logits"], expected["cls_logits"], atol=tolerance, rtol=tolerance)


def test_beams(model, arrays):
    inputs, expected = arrays
    assert_beams(model(**arguments(inputs)), expected)


def test_beams_of_a_packed_batch(model, arrays):
    inputs, expected = arrays
    mask = inputs["input_mask"] == 1
    batch = PackedBatch.from_padded(inputs["input_ids"], mask, inputs["segment_ids"])
    assert_beams(model.packed_beams(batch, inputs["p_mask"][mask]), expected)


def test_training_loss_and_ends_given_the_start(model, arrays):
    inputs, expected = arrays
    labels = {name: inputs[name] for name in ("start_positions", "end_positions", "is_impossible")}
    output = model(**arguments(inputs), **labels)
    assert_close(output.loss, expected["total_loss"].reshape(()), atol=1e-5, rtol=0)
    for ours, theirs in (
        ("start_log_probs", "train_start_log_probs"),
        ("end_log_probs", "train_end_log_probs"),
        ("cls_logits", "train_cls_logits"),
    ):
        assert_close(output[ours], expected[theirs], atol=1e-5, rtol=1e-5)
    without = {name: labels[name] for name in ("start_positions", "end_positions")}
    spans = -sum(
        expected[f"train_{kind}_log_probs"].gather(1, inputs[f"{kind}_positions"][:, None]).mean()
        for kind in ("start", "end")
    )
    assert_close(model(**arguments(inputs), **without).loss, spans / 2, atol=1e-5, rtol=0)


def test_a_forbidden_position_is_never_predicted(model, arrays):
    inputs, _ = arrays
    inputs_with_mask = arguments(inputs)
    best = model(**inputs_with_mask).start_top_index[:, 0]
    inputs_with_mask["p_mask"] = inputs_with_mask["p_mask"].scatter(1, best[:, None], 1)
    assert (model(**inputs_with_mask).start_top_index[:, 0] != best).all()
    real = inputs["input_mask"].sum(1)
    num_starts = (model(**{**inputs_with_mask, "p_mask": None}).start_top_log_probs > -1e29).sum(1)
    # Without p_mask every real place may be one
    assert num_starts.tolist() == real.clamp(max=5).tolist()
