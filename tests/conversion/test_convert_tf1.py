"""Checkpoints of google-research/albert, converted, give the numbers that its TensorFlow 1 code printed."""

import numpy as np
import pytest
import torch

from albertkit.conversion.convert import convert
from albertkit.model import (
    AlbertForBeamQuestionAnswering,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    PackedBatch,
)

# Folder and tolerance. pretrain_e: outputs of the order of 1e-3, where the epsilon of layer norm
# shows.
PRETRAINED = [
    ("pretrain_a", 1e-5),
    ("pretrain_b", 1e-5),
    ("pretrain_c", 1e-5),
    ("pretrain_d", 1e-5),
    ("pretrain_e", 1e-6),
]
FINE_TUNED = [
    ("classifier_mnli", None, AlbertForSequenceClassification),
    ("regression_stsb", "regression", AlbertForSequenceClassification),
    ("race", "multiple-choice", AlbertForMultipleChoice),
    ("squad_v1", None, AlbertForQuestionAnswering),
    ("squad_v2", None, AlbertForBeamQuestionAnswering),
]


@pytest.fixture(scope="module")
def converted(golden, tmp_path_factory):
    """`converted(name, head)`: the folder made of a golden checkpoint, made once."""
    folders = {}

    def make(name, head=None, source=None, config=None):
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("converted") / name.replace("/", "_")
            report = convert(
                source or golden / "tf1" / name, folders[name], head=head, config=config
            )
            assert report.missing == []
            assert report.unused == []
        return folders[name]

    return make


def arrays(golden, name):
    """Inputs and outputs of a golden folder."""
    folder = golden / "tf1" / name
    inputs = folder if (folder / "inputs.npz").exists() else folder.parent
    pair = np.load(inputs / "inputs.npz"), np.load(folder / "outputs.npz")
    return tuple({key: torch.from_numpy(value) for key, value in loaded.items()} for loaded in pair)  # type: ignore[return-value]


def difference(computed, expected):
    assert computed.shape == expected.shape
    return float((computed - expected).abs().max())


def pretraining_differences(folder, inputs, expected):
    """Largest difference of everything that the original printed of a pretraining model."""
    model = AlbertForPreTraining.from_pretrained(folder)
    ids, real, segments = (
        inputs[name].long() for name in ("input_ids", "input_mask", "segment_ids")
    )
    batch = PackedBatch.from_padded(ids, real, segments)
    embeddings = model.albert.embeddings
    with torch.no_grad():
        words = embeddings.word_embeddings(ids)
        embedded = batch.unpack(embeddings(batch))
        states = model.albert(ids, real, segments, output_hidden_states=True)
        output = model(ids, real, segments)
    at = real.bool()
    positions = (
        inputs["masked_lm_positions"]
        .long()[..., None]
        .expand(-1, -1, output.prediction_logits.shape[-1])
    )
    log_probs = output.prediction_logits.gather(1, positions).log_softmax(-1).flatten(0, 1)
    masked_loss = -log_probs.gather(1, inputs["masked_lm_ids"].long().view(-1, 1)).squeeze(1)
    weights = inputs["masked_lm_weights"].flatten()
    order_log_probs = output.sop_logits.log_softmax(-1)
    order_loss = -order_log_probs.gather(1, inputs["next_sentence_labels"].long()).squeeze(1)
    losses = (weights * masked_loss).sum() / (weights.sum() + 1e-5), order_loss.mean()
    computed = {
        "word_embedding_output": words,
        "embedding_output": embedded[at],
        "all_encoder_layers": torch.stack(states.hidden_states[1:])[:, at],
        "sequence_output": states.last_hidden_state[at],
        "pooled_output": states.pooler_output,
        "masked_lm_log_probs": log_probs,
        "masked_lm_example_loss": masked_loss,
        "masked_lm_loss": losses[0],
        "sentence_order_log_probs": order_log_probs,
        "sentence_order_example_loss": order_loss,
        "sentence_order_loss": losses[1],
        "total_loss": losses[0] + losses[1],
    }
    cut = {
        "embedding_output": lambda t: t[at],
        "all_encoder_layers": lambda t: t[:, at],
        "sequence_output": lambda t: t[at],
    }
    return {
        name: difference(t, cut.get(name, lambda t: t)(expected[name]))
        for name, t in computed.items()
    }


@pytest.mark.parametrize(("name", "tolerance"), PRETRAINED)
def test_pretrained(golden, converted, name, tolerance):
    inputs, expected = arrays(golden, name)
    differences = pretraining_differences(converted(name), inputs, expected)
    # Log-probabilities and losses of pretrain_e are of the order of 1, not of 1e-3 as its states.
    too_large = {
        key: difference
        for key, difference in differences.items()
        if difference > (1e-5 if "log_probs" in key or "loss" in key else tolerance)
    }
    assert not too_large


def test_before_training(golden, converted):
    """A prefix and a configuration elsewhere; `start` has no file of inputs of its own."""
    parent = golden / "tf1/pretrain_a"
    folder = converted(
        "start", source=parent / "start/model.ckpt-0", config=parent / "albert_config.json"
    )
    inputs, expected = arrays(golden, "pretrain_a/start")
    assert max(pretraining_differences(folder, inputs, expected).values()) < 1e-5


def fine_tuned_differences(folder, model_class, inputs, expected):
    model = model_class.from_pretrained(folder)
    padded = [inputs[name].long() for name in ("input_ids", "input_mask", "segment_ids")]
    with torch.no_grad():
        if model_class is AlbertForSequenceClassification:
            output = model(*padded, labels=inputs["label_ids"])
            values = {"logits": output.logits.squeeze(-1), "loss": output.loss}
        elif model_class is AlbertForMultipleChoice:
            output = model(*(t.view(2, 4, -1) for t in padded), labels=inputs["label_ids"].long())
            values = {
                "logits": output.logits,
                "loss": output.loss,
                "probabilities": output.logits.softmax(-1),
            }
        elif model_class is AlbertForQuestionAnswering:
            output = model(*padded)
            values = {"start_logits": output.start_logits, "end_logits": output.end_logits}
        else:
            beams = model(*padded, p_mask=inputs["p_mask"])
            labels = {
                name: inputs[name].long()
                for name in ("start_positions", "end_positions", "is_impossible")
            }
            trained = model(*padded, p_mask=inputs["p_mask"], **labels)
            values = {
                name: beams[name]
                for name in ("start_top_log_probs", "end_top_log_probs", "cls_logits")
            }
            values |= {name: beams[name] for name in ("start_top_index", "end_top_index")}
            # Fewer places are allowed than there are starts: the ends of a start that is none
            # depend on padding.
            impossible = (expected["start_top_log_probs"] < -1e29).repeat_interleave(5, 1)
            for name in ("end_top_log_probs", "end_top_index"):
                values[name] = torch.where(impossible, expected[name], values[name])
            values |= {
                "train_start_log_probs": trained.start_log_probs,
                "train_end_log_probs": trained.end_log_probs,
                "train_cls_logits": trained.cls_logits,
                "total_loss": trained.loss,
            }
    return {name: difference(tensor, expected[name]) for name, tensor in values.items()}


@pytest.mark.parametrize(("name", "head", "model_class"), FINE_TUNED)
def test_fine_tuned(golden, converted, name, head, model_class):
    inputs, expected = arrays(golden, name)
    differences = fine_tuned_differences(converted(name, head), model_class, inputs, expected)
    assert max(differences.values()) < 1e-5, differences


def test_transformers_computes_the_same_of_it(golden, converted):
    import transformers

    for name, _ in PRETRAINED:
        inputs, expected = arrays(golden, name)
        theirs = transformers.AlbertForPreTraining.from_pretrained(converted(name)).eval()
        padded = [inputs[key].long() for key in ("input_ids", "input_mask", "segment_ids")]
        with torch.no_grad():
            output = theirs(*padded, output_hidden_states=True)
        at = padded[1].bool()
        assert difference(output.hidden_states[-1][at], expected["sequence_output"][at]) < 1e-5
        assert (
            difference(output.sop_logits.log_softmax(-1), expected["sentence_order_log_probs"])
            < 1e-5
        )
    for name, head, model_class in FINE_TUNED[:4]:
        inputs, expected = arrays(golden, name)
        theirs = (
            getattr(transformers, model_class.__name__)
            .from_pretrained(converted(name, head))
            .eval()
        )
        padded = [inputs[key].long() for key in ("input_ids", "input_mask", "segment_ids")]
        padded = [t.view(2, 4, -1) for t in padded] if head == "multiple-choice" else padded
        with torch.no_grad():
            output = theirs(*padded)
        if name == "squad_v1":
            assert difference(output.start_logits, expected["start_logits"]) < 1e-5
        else:
            assert difference(output.logits.squeeze(-1), expected["logits"]) < 1e-5
