"""Checkpoints and SavedModels of the TensorFlow Model Garden, converted, give the numbers that it printed."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from albertkit.conversion.convert import convert
from albertkit.model import AlbertForMaskedLM, AlbertModel

TOLERANCE = 2e-5
CASES = [
    "mg211_encoder", "mg211_model_e_eq_h", "mg211_converted_encoder", "mg211_converted_pretrainer", "mg211_saved_model",
    "mg23_model", "mg23_saved_model", "mg23_converted", "mg22_model", "mg22_converted",
]  # fmt: skip
WITH_MASKED_LM = ("mg211_converted_pretrainer", "mg211_saved_model")


def path_of(golden, name):
    folder = golden / "tf2" / name
    return folder / "saved_model.tar.gz" if (folder / "saved_model.tar.gz").exists() else folder


def differences(golden, name, folder):
    """Largest difference of everything that was printed, at real positions."""
    own_inputs = golden / "tf2" / name / "inputs.npz"
    inputs = np.load(own_inputs if own_inputs.exists() else golden / "tf1/pretrain_a/inputs.npz")
    keys = (
        ("input_word_ids", "input_mask", "input_type_ids")
        if own_inputs.exists()
        else ("input_ids", "input_mask", "segment_ids")
    )
    ids, real, segments = (torch.from_numpy(inputs[key]).long() for key in keys)
    expected = {
        key: torch.from_numpy(value)
        for key, value in np.load(golden / "tf2" / name / "outputs.npz").items()
    }
    at = real.bool()
    with torch.no_grad():
        output = AlbertModel.from_pretrained(folder)(ids, real, segments, output_hidden_states=True)
        largest = {
            "sequence_output": (output.last_hidden_state[at], expected["sequence_output"][at]),
            "pooled_output": (output.pooler_output, expected["pooled_output"]),
        }
        if "encoder_outputs" in expected:
            largest["encoder_outputs"] = (
                torch.stack(output.hidden_states[1:])[:, at],
                expected["encoder_outputs"][:, at],
            )
        if "mlm_logits" in expected:
            logits = AlbertForMaskedLM.from_pretrained(folder)(ids, real, segments).logits
            positions = (
                torch.from_numpy(inputs["masked_lm_positions"])
                .long()[..., None]
                .expand(-1, -1, logits.shape[-1])
            )
            largest["mlm_logits"] = (logits.gather(1, positions), expected["mlm_logits"])
    return {key: float((ours - theirs).abs().max()) for key, (ours, theirs) in largest.items()}


@pytest.mark.parametrize("name", CASES)
def test_outputs(golden, tmp_path, name):
    report = convert(path_of(golden, name), tmp_path / "out")
    assert report.model_class == ("AlbertForMaskedLM" if name in WITH_MASKED_LM else "AlbertModel")
    assert report.missing == []
    assert report.unused == []
    assert report.skipped == ({} if "saved_model" in name else {"save_counter": 1})
    largest = differences(golden, name, tmp_path / "out")
    assert ("mlm_logits" in largest) == (name in WITH_MASKED_LM)
    assert max(largest.values()) < TOLERANCE, largest


@pytest.mark.parametrize("name", ["mg211_converted_pretrainer", "mg22_converted", "mg23_converted"])
def test_what_google_converted_is_what_we_convert(golden, tmp_path, name):
    """Their converter and ours, from one TensorFlow 1 checkpoint: the same bits."""
    convert(golden / "tf1/pretrain_a", tmp_path / "tf1")
    convert(path_of(golden, name), tmp_path / "tf2")
    ours, theirs = (load_file(tmp_path / folder / "model.safetensors") for folder in ("tf1", "tf2"))
    prefix = "" if name in WITH_MASKED_LM else "albert."
    assert len(theirs) == (30 if name in WITH_MASKED_LM else 25)
    for key, tensor in theirs.items():
        assert torch.equal(tensor, ours[prefix + key]), key


def test_the_tokenizer_of_a_saved_model_comes_along(golden, tmp_path):
    from albertkit import AlbertTokenizer

    report = convert(path_of(golden, "mg211_saved_model"), tmp_path / "out")
    assert AlbertTokenizer.from_pretrained(tmp_path / "out").vocab_size == 211
    assert "tokenizer: 211 tokens" in report.notes
