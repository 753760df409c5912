"""Movement through the layers, compared with transformers' states, attentions and head, and scikit-learn's distances."""

import json
import math

import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import paired_cosine_distances
from small_models import shaken, tiny_config
from torch.testing import assert_close

from albertkit.model import AlbertForMaskedLM, AlbertForSequenceClassification, AlbertModel
from albertkit.pipelines.layers import trace_layers
from albertkit.tokenizer import AlbertTokenizer

WORDS = "one layer run twelve times the states of a token move from pass to".split()
TEXTS = [
    "one layer, run twelve times",
    "the states of a token move from pass to pass",
    "one [MASK] of a token",
]
CONFIG = tiny_config(vocab_size=24, num_hidden_layers=4)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", *WORDS, ""])
    )
    return AlbertTokenizer.from_pretrained(folder)


def random_model(model_class, **changes):
    """Every parameter random, also those that start as 0 or 1."""
    torch.manual_seed(0)
    return shaken(model_class(CONFIG.replace(**changes)))


def theirs(model, folder, ids):
    """transformers' hidden states [L+1, S, H] and attentions [L, A, S, S] of the same weights."""
    model.save_pretrained(folder)
    peer = transformers.AlbertModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        output = peer(torch.tensor([ids]), output_hidden_states=True, output_attentions=True)
    states = torch.cat(output.hidden_states).double().numpy()
    return states, torch.cat(output.attentions).double().numpy()


SHARING = [
    {},
    {"num_hidden_groups": 2, "inner_group_num": 2},
    {"num_hidden_groups": 4, "parameter_sharing": "ffn"},
]


@pytest.mark.parametrize("changes", SHARING)
def test_one_text_token_by_token(tokenizer, tmp_path, changes):
    model = random_model(AlbertForMaskedLM, **changes)
    text = "one [MASK] of a [MASK], run"
    trace = trace_layers(model, tokenizer, text)
    json.dumps(trace, allow_nan=False)
    ids = tokenizer.encode(text, special_tokens=True, mask_literal=True)
    states, attention = theirs(model, tmp_path, ids)
    assert trace["tokens"] == "[CLS] one [MASK] of a [MASK] , run [SEP]".split()
    assert trace["passes"] == len(attention)
    assert trace["left_out"] == 0
    near = dict(atol=6e-5, rtol=0)  # rounded to 4 digits
    assert_allclose(trace["attention"], attention, **near)
    last = np.array([1 - paired_cosine_distances(state, states[-1]) for state in states[1:]])
    assert_allclose(trace["similarity"], last.T, **near)
    step = np.linalg.norm(np.diff(states, axis=0), axis=-1) / np.linalg.norm(states[:-1], axis=-1)
    assert_allclose(trace["step"], step.T, **near)
    pca = PCA(2).fit(states.reshape(-1, 64))
    points = np.stack([pca.transform(state) for state in states], 1)
    assert np.shape(trace["states_2d"]) == points.shape
    # An axis has no sign
    assert_allclose(np.abs(trace["states_2d"]), np.abs(points), atol=2e-4)
    assert_allclose(trace["variance"], pca.explained_variance_ratio_, **near)

    peer = transformers.AlbertForMaskedLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        shares = peer.predictions(torch.tensor(states[1:], dtype=torch.float32)).softmax(-1)
        logits = peer(torch.tensor([ids])).logits[0].softmax(-1)
    # After the last layer: the model's own answer
    assert_close(shares[-1], logits, atol=1e-6, rtol=0)
    assert [mask["position"] for mask in trace["predictions"]] == [2, 5]
    for mask in trace["predictions"]:
        for of_pass, expected in zip(
            mask["passes"], shares[:, mask["position"], : tokenizer.vocab_size], strict=True
        ):
            best = expected.topk(5)
            assert [guess["piece"] for guess in of_pass] == [
                tokenizer.id_to_piece(i) for i in best.indices.tolist()
            ]
            # The rows to spare have no piece, and no share in these.
            probabilities = torch.tensor([guess["probability"] for guess in of_pass])
            assert_close(probabilities, best.values / expected.sum(), atol=6e-5, rtol=0)


def test_every_part_of_a_text_sees_other_weights(tokenizer):
    model = random_model(AlbertForMaskedLM)
    before = trace_layers(model, tokenizer, TEXTS[2])
    with torch.no_grad():
        model.albert.encoder.albert_layer_groups[0].albert_layers[0].attention.key.weight += 0.3
    after = trace_layers(model, tokenizer, TEXTS[2])
    for part in ("attention", "similarity", "step", "states_2d", "variance"):
        assert not np.allclose(before[part], after[part], atol=2e-4), part
    assert before["predictions"] != after["predictions"]
    assert before["tokens"] == after["tokens"]


def test_a_long_text_is_cut_and_that_is_said(tokenizer):
    model = random_model(AlbertModel)
    long = " ".join(WORDS * 4)
    trace = trace_layers(model, tokenizer, long, max_tokens=9)
    assert len(trace["tokens"]) == 9
    assert trace["left_out"] == 56 - 7
    assert trace["tokens"][-1] == "[SEP]"
    assert trace["predictions"] is None  # no head
    assert len(trace_layers(model, tokenizer, long)["tokens"]) == 24  # what the model reads
    assert (
        trace_layers(random_model(AlbertForMaskedLM), tokenizer, "one layer")["predictions"] == []
    )


def test_dropout_is_off_and_the_model_is_left_as_it_was(tokenizer):
    model = random_model(
        AlbertForSequenceClassification, hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5
    )
    still = trace_layers(model, tokenizer, TEXTS[0])
    model.train()
    assert trace_layers(model, tokenizer, TEXTS[0]) == still
    assert model.training
    assert all(
        parameter.grad is None and parameter.requires_grad for parameter in model.parameters()
    )


def test_states_of_zero_have_no_direction_and_no_fault(tokenizer):
    model = random_model(AlbertModel)
    with torch.no_grad():
        for parameter in model.encoder.parameters():
            parameter.zero_()
    movement = trace_layers(model, tokenizer, TEXTS[0])
    assert {step for steps in movement["step"] for step in steps} == {0.0}
    json.dumps(movement, allow_nan=False)


def test_texts_and_models_without_states_are_refused(tokenizer, slug_of):
    model = random_model(AlbertModel)
    assert slug_of(trace_layers, model, tokenizer, "") == "bad-input"
    assert slug_of(trace_layers, model, tokenizer, "one", 2) == "bad-value"
    assert (
        slug_of(trace_layers, random_model(AlbertModel, vocab_size=18), tokenizer, "one")
        == "wrong-tokenizer"
    )
    with torch.no_grad():
        model.encoder.embedding_hidden_mapping_in.weight[0, 0] = math.nan
    assert slug_of(trace_layers, model, tokenizer, "one") == "not-finite"
