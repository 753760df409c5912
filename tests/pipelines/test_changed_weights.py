"""Whatever writes a model's weights, the next answer is computed with the new ones."""

import copy
import os
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.testing import assert_close

import albertkit
from albertkit.embeddings import SentenceEncoder
from albertkit.engines import load_engine
from albertkit.errors import ConfigError
from albertkit.model import (
    AlbertForMaskedLM,
    AlbertForSequenceClassification,
    AlbertModel,
    PackedBatch,
)

IDS = torch.tensor([[2, 17, 5, 44, 3], [2, 60, 61, 17, 3]])


def make_model(**changes):
    torch.manual_seed(1)
    sizes = dict(
        vocab_size=90, embedding_size=16, hidden_size=64, num_hidden_layers=3, num_attention_heads=2
    )
    config = transformers.AlbertConfig(
        **sizes, intermediate_size=128, initializer_range=0.2, **changes
    )
    return transformers.AlbertModel(config).eval()


def layer(model):
    return model.encoder.albert_layer_groups[0].albert_layers[0]


def data_add(model):
    layer(model).attention.query.weight.data += 0.3


def one_number(model):
    layer(model).ffn.weight.data[3, 5] += 3


def numpy_view(model):
    layer(model).attention.dense.weight.detach().numpy()[1] *= -4


def signs(model):
    layer(model).ffn_output.weight.data.neg_()


def rows_exchanged(model):
    weight = layer(model).attention.value.weight.data
    weight[[0, 8]] = weight[[8, 0]].clone()


def average(model):
    for parameter in model.parameters():
        parameter.data.copy_(0.9 * parameter.data + 0.02)


def replaced_parameter(model):
    layer(model).ffn.weight = nn.Parameter(layer(model).ffn.weight.detach() * 2)


def replaced_module(model):
    torch.manual_seed(2)
    layer(model).ffn = nn.Linear(64, 128)


def replaced_data(model):
    layer(model).ffn.bias.data = torch.ones(128)


def other_storage(model):
    with torch.no_grad():
        layer(model).ffn.bias.set_(torch.ones(128))


def transposed_storage(model):
    weight = layer(model).attention.dense.weight
    weight.data = (weight.data * 2).t().contiguous().t()


def word_row(model):
    model.embeddings.word_embeddings.weight.data[17, ::2] += 1


def position(model):
    model.embeddings.position_embeddings.weight.data[2, ::3] -= 1


def norm_bias(model):
    layer(model).attention.LayerNorm.bias.data[7] = 3


def epsilon(model):
    layer(model).full_layer_layer_norm.eps = 0.5


def pooler_bias(model):
    model.pooler.bias.data[0] = 2


def mapping(model):
    model.encoder.embedding_hidden_mapping_in.weight.data.mul_(1.5)


def buffer_of_types(model):
    model.embeddings.token_type_ids.fill_(1)


def parametrization(model):
    torch.nn.utils.parametrizations.weight_norm(layer(model).ffn)
    layer(model).ffn.parametrizations.weight.original0.data.mul_(2)


def activation(model):
    layer(model).activation = nn.ReLU()


def forward_of_a_part(model):
    part = layer(model).ffn
    part.forward = lambda hidden: 2 * nn.functional.linear(hidden, part.weight, part.bias)


def lower_precision(model):
    model.half().float()
    model.bfloat16().float()


def adapters_merged(model):
    import peft

    config = peft.LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        adapted(IDS)
    adapted.merge_and_unload()


def layers_left_out(model):
    model.config.num_hidden_layers = 2


def scale(model):
    layer(model).attention.scaling = 0.5


def attention_of_a_user(model):
    def average(module, query, key, value, mask, **options):
        return value.mean(2, keepdim=True).expand_as(value).transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("average", average)
    model.set_attn_implementation("average")


def bias_left_out(model):
    layer(model).ffn.bias = None
    layer(model).attention.LayerNorm.bias = None
    layer(model).attention.LayerNorm.weight.data.mul_(2)


def dropout_replaced(model):
    model.embeddings.dropout = nn.Tanh()
    layer(model).attention.output_dropout = nn.Tanh()


def largest_length(model):
    model.embeddings.word_embeddings.max_norm = 0.1


def activation_of_the_pooler(model):
    model.pooler_activation = nn.Identity()


def weight_as_a_buffer(model):
    linear = layer(model).ffn
    weight = linear.weight.detach()
    del linear.weight
    linear.register_buffer("weight", weight)
    model(IDS)
    linear.weight.mul_(-2)


THEIR_WRITERS = [
    layers_left_out, scale, attention_of_a_user, bias_left_out, dropout_replaced, largest_length, activation_of_the_pooler,
    weight_as_a_buffer,
]  # fmt: skip
WRITERS = [
    data_add, one_number, numpy_view, signs, rows_exchanged, average, replaced_parameter, replaced_module,
    replaced_data, other_storage, transposed_storage, word_row, position, norm_bias, epsilon, pooler_bias, mapping,
    buffer_of_types, parametrization, activation, forward_of_a_part, lower_precision, adapters_merged, *THEIR_WRITERS,
]  # fmt: skip


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_accelerated_model_answers_with_the_weights_of_now(write):
    model = albertkit.accelerate(make_model(), "fp32")
    before = model(IDS)
    write(model)
    after = model(IDS)
    expected = albertkit.restore(model)(IDS)
    changed = max(
        float((new - old).abs().max())
        for new, old in zip(expected.to_tuple(), before.to_tuple(), strict=True)
    )
    assert changed > 1e-3
    for actual, right in zip(after.to_tuple(), expected.to_tuple(), strict=True):
        assert_close(actual, right, atol=5e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_model_that_was_changed_before_is_computed_as_it_is_or_refused(write):
    model = make_model()
    write(model)
    expected = model(IDS)
    refused = (activation, scale, attention_of_a_user, dropout_replaced, activation_of_the_pooler)
    words = "other layers than transformers' own"
    with pytest.raises(ConfigError, match=words) if write in refused else nullcontext():
        albertkit.accelerate(model, "fp32")
    for actual, right in zip(model(IDS).to_tuple(), expected.to_tuple(), strict=True):
        assert_close(actual, right, atol=5e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
def test_functions_and_hooks_for_all_modules_are_used(monkeypatch):
    model = albertkit.accelerate(make_model(), "fp32")
    plain = albertkit.restore(copy.deepcopy(model))
    linear = nn.Linear.forward
    with monkeypatch.context() as patch:
        patch.setattr(nn.Linear, "forward", lambda self, values: 1.5 * linear(self, values))
        assert_close(model(IDS)[0], plain(IDS)[0], atol=5e-5, rtol=1e-4)

    def double(module, inputs, output):
        return 2 * output if isinstance(module, nn.Linear) else None

    hook = nn.modules.module.register_module_forward_hook(double)
    try:
        assert_close(model(IDS)[0], plain(IDS)[0], atol=5e-5, rtol=1e-4)
    finally:
        hook.remove()


def test_class_with_a_forward_of_its_own_is_refused():
    class Doubled(transformers.AlbertModel):
        def forward(self, *inputs, **options):
            output = super().forward(*inputs, **options)
            output.last_hidden_state *= 2
            return output

    with pytest.raises(ConfigError, match="other layers than transformers' own: `Doubled`"):
        albertkit.accelerate(Doubled(make_model().config), "fp32")
    model = make_model()
    model.forward = Doubled(model.config).forward
    with pytest.raises(ConfigError, match="its forward was replaced"):
        albertkit.accelerate(model, "fp32")


OWN_WRITERS = [
    write
    for write in WRITERS
    if write
    not in (buffer_of_types, activation, forward_of_a_part, adapters_merged, *THEIR_WRITERS)
]


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("write", OWN_WRITERS, ids=lambda write: write.__name__)
def test_engine_computes_with_the_weights_of_now(tmp_path, write):
    make_model().save_pretrained(tmp_path)
    model = AlbertModel.from_pretrained(tmp_path).eval()
    batch = PackedBatch.from_padded(IDS)
    engine = load_engine(model, "fp32")
    before = engine.encode(batch)
    write(model)
    after = engine.encode(batch)
    expected = model.encode(batch)
    assert (
        max(float((new - old).abs().max()) for new, old in zip(expected, before, strict=True))
        > 1e-3
    )
    for actual, right in zip(after, expected, strict=True):
        assert_close(actual, right, atol=5e-5, rtol=1e-4)


@torch.no_grad()
def test_pipelines_and_sentence_encoders_follow(tiny_model_folder, tiny_texts):
    texts = [text[:60] for text in tiny_texts[:3]]
    classifier = albertkit.load_pipeline(
        tiny_model_folder(AlbertForSequenceClassification), precision="fp32"
    )
    encoder = SentenceEncoder.from_pretrained(tiny_model_folder(AlbertModel))
    results = classifier(texts)
    vectors = encoder.encode(texts, precision="fp32")
    for albert in (classifier.model.albert, encoder.albert):
        layer(albert).ffn_output.weight.data.mul_(-3)
    assert classifier(texts) != results
    changed = encoder.encode(texts, precision="fp32")
    assert not np.allclose(vectors, changed, atol=1e-3)
    encoder._engine = None
    assert np.allclose(encoder.encode(texts, precision="fp32"), changed, atol=1e-6)


def test_weights_that_become_infinite_are_the_models_own():
    model = albertkit.accelerate(make_model(), "fp32")
    plain = copy.deepcopy(albertkit.restore(make_model()))
    with torch.no_grad():
        model(IDS)
        for changed in (model, plain):
            layer(changed).ffn.weight.data[0, 0] = float("nan")
        with pytest.warns(
            UserWarning, match="computed by the model itself: weights that are not finite"
        ):
            output = model(IDS)
        assert torch.equal(output[0].isnan(), plain(IDS)[0].isnan())


FORKED = """
import os, sys, signal, torch
import albertkit, transformers
from albertkit.embeddings import SentenceEncoder
from albertkit.engines.cpu.engine import TEAM
from albertkit.model import AlbertForMaskedLM
folder = sys.argv[1]
torch.set_num_threads(2)
ids = torch.randint(5, 50, (16, 24), generator=torch.Generator().manual_seed(0))
theirs = albertkit.accelerate(transformers.AlbertForMaskedLM.from_pretrained(folder), "fp32")
ours = AlbertForMaskedLM.from_pretrained(folder)
encoder = SentenceEncoder.from_pretrained(folder)
encoder.engine("fp32")
def answer():
    with torch.no_grad():
        answers = theirs(ids)[0], ours(ids).logits, encoder.encode(["a fox"] * 40, precision="fp32")
    return *(float(abs(values).sum()) for values in answers), torch.get_num_threads()
for _ in range(2):
    TEAM._helpers.free.acquire()  # as by another thread that is in a call
    child = os.fork()
    if not child:
        signal.alarm(60)
        is_free = TEAM._helpers.free.acquire(blocking=False)
        TEAM._helpers.free.release()
        print(*answer(), int(is_free), flush=True)
        os._exit(0)
    TEAM._helpers.free.release()
    status = os.waitpid(child, 0)[1]
    print(*answer(), status, flush=True)
    torch.rand(512, 512) @ torch.rand(512, 512)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_forked_process_answers(tiny_model_folder):
    """Before and after the parent has computed with torch's threads, which the second fork would wait for."""
    folder = tiny_model_folder(
        AlbertForMaskedLM, hidden_size=512, num_attention_heads=8, intermediate_size=1024
    )
    process = subprocess.run(
        [sys.executable, "-c", FORKED, folder],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        check=True,
    )
    lines = [[float(value) for value in line.split()] for line in process.stdout.splitlines()]
    for child, parent in (lines[:2], lines[2:]):
        assert parent[4] == 0
        assert child[4] == 1
        assert child[:3] == pytest.approx(parent[:3], rel=1e-5)
    assert lines[2][3] == 1  # the child of a parent with threads has one
