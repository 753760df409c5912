"""The table of names: complete, unambiguous, and the same in both directions."""

import re

import numpy as np
import pytest
import torch
from small_models import tiny_config

from albertkit import model as public
from albertkit.conversion import names
from albertkit.conversion.names import ROWS, TensorLayout
from albertkit.files import read_json

CONFIG = tiny_config(num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2)
CLASSES = [name for name in public.__all__ if name.startswith("Albert")]


@pytest.mark.parametrize("name", CLASSES)
def test_every_parameter_of_every_class_has_a_row(name):
    with torch.device("meta"):
        model = getattr(public, name)(CONFIG)
    for parameter in model.state_dict():
        full = parameter if name != "AlbertModel" else f"albert.{parameter}"
        variable = names.tf1_variable_name_and_layout(full)
        assert variable is not None, full
        assert names.parameter_name_and_layout(variable[0]) == (full, variable[1])


def test_no_name_stands_in_two_rows():
    variables = [variable for row in ROWS for variable in (row.tf1, *row.tf2)]
    assert len(set(variables)) == len(variables) > 0
    assert len({row.name for row in ROWS}) == len(ROWS) == 47


def test_googles_lists_are_covered(golden):
    """Every variable of eleven checkpoints is a row or an optimizer's, and every row is in one of them."""
    covered = set()
    for file in (golden / "tf1").glob("*/variables.json"):
        for variable, facts in read_json(file).items():
            slot = names.optimizer_slot(variable)
            parameter = names.parameter_name_and_layout(variable)
            assert (slot is None) != (parameter is None), variable
            if parameter:
                covered.add(re.sub(r"group_\d", "group_0", variable))
                assert names.has_rank_of_layout(tuple(facts["shape"]), parameter[1])
                assert names.num_heads_from_shape(tuple(facts["shape"]), parameter[1]) is None
    assert covered == {row.tf1.format(g=0, i=0) for row in ROWS}


def test_the_model_gardens_names_are_covered(golden):
    covered = set()
    for folder in sorted((golden / "tf2").iterdir()):
        if (folder / "weights_by_name.npz").exists():
            for variable, values in np.load(folder / "weights_by_name.npz").items():
                parameter = names.parameter_name_and_layout(variable)
                assert parameter is not None, variable
                assert names.has_rank_of_layout(values.shape, parameter[1])
                heads = names.num_heads_from_shape(values.shape, parameter[1])
                expected = read_json(folder / "albert_config.json")["num_attention_heads"]
                assert heads in (None, expected)
                assert (heads is not None) == (
                    parameter[1].name in ("TO_HEADS", "HEADS_BIAS", "FROM_HEADS")
                )
                covered.add(variable)
    assert {row.tf2[-1] for row in ROWS if row.name.startswith("albert.")} <= covered


def test_groups_and_inner_groups_are_carried_over():
    variable = (
        "bert/encoder/transformer/group_11/inner_group_3/ffn_1/intermediate/output/dense/kernel"
    )
    name = "albert.encoder.albert_layer_groups.11.albert_layers.3.ffn_output.weight"
    assert names.parameter_name_and_layout(variable) == (name, TensorLayout.TRANSPOSED)
    assert names.tf1_variable_name_and_layout(name) == (variable, TensorLayout.TRANSPOSED)


def test_the_scope_of_a_hub_module_is_no_part_of_a_name():
    for scope in ("module/", "module_1/"):
        assert names.parameter_name_and_layout(f"{scope}bert/pooler/dense/bias") == (
            "albert.pooler.bias",
            TensorLayout.AS_IS,
        )
    assert names.parameter_name_and_layout("my_module/bert/pooler/dense/bias") is None


@pytest.mark.parametrize(
    "variable",
    [
        "bert/embeddings/layer_normalization/beta",
        "bert/encoder/transformer/group_0_9/layer_9/inner_group_0/layer_normalization_19/gamma",
        "bert/encoder/layer_0/attention/self/query/kernel",
        "bert/embeddings/word_embeddings_2",
        "albert.pooler.bias",
        "bert/encoder/transformer/group_{g}/inner_group_{i}/LayerNorm/beta",
        "",
    ],
)
def test_other_names_are_not_guessed(variable):
    """The first two are of a port to Keras that gives every layer norms of its own (huggingface/transformers#10774)."""
    assert names.parameter_name_and_layout(variable) is None


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        ("bert/pooler/dense/kernel/adam_m", "adam_m"),
        ("bert/pooler/dense/kernel/Adam_1", "Adam_1"),
        ("global_step", "global_step"),
        ("save_counter/.ATTRIBUTES/VARIABLE_VALUE", "save_counter"),
        ("optimizer/iter/.ATTRIBUTES/VARIABLE_VALUE", "optimizer"),
        (
            "model/layer_with_weights-0/embeddings/.OPTIMIZER_SLOT/optimizer/m/.ATTRIBUTES/VARIABLE_VALUE",
            "optimizer",
        ),
        ("bert/pooler/dense/kernel", None),
        ("encoder/layer_with_weights-6/bias/.ATTRIBUTES/VARIABLE_VALUE", None),
    ],
)
def test_optimizer_slots(key, slot):
    assert names.optimizer_slot(key) == slot


@pytest.mark.parametrize("layout", list(TensorLayout))
def test_layouts_are_undone(layout):
    """TensorFlow 1's array, made torch's and back, has the same bytes; the Model Garden's split heads give the same tensor."""
    shape = (6,) if layout in (TensorLayout.AS_IS, TensorLayout.HEADS_BIAS) else (6, 6)
    stored = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    torchs = names.from_tensorflow(stored, layout)
    assert np.ascontiguousarray(names.to_tf1(torchs, layout)).tobytes() == stored.tobytes()
    split = {
        TensorLayout.TO_HEADS: (6, 2, 3),
        TensorLayout.HEADS_BIAS: (2, 3),
        TensorLayout.FROM_HEADS: (2, 3, 6),
    }.get(layout)
    if split:
        assert np.array_equal(names.from_tensorflow(stored.reshape(split), layout), torchs)
        assert names.num_heads_from_shape(split, layout) == 2
