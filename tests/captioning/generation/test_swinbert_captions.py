"""SwinBERT's greedy and beam outputs from its own weights, and an independent decoder that encodes everything again."""

import pytest
import torch


def test_captions_and_log_probabilities(original):
    """With the arguments that the original's evaluation gives."""
    inputs = original.inputs("generate_inputs")
    names = ("num_keep_best", "num_beams", "length_penalty", "repetition_penalty", "max_length", "add_od_labels",
             "od_labels_start_posid")  # fmt: skip
    compared = 0
    for name, output in original.outputs.items():
        setting = output["settings"]
        ids, scores = original.model(
            **inputs,
            is_decode=True,
            masked_pos=None,
            do_sample=False,
            num_return_sequences=1,
            bos_token_id=setting["bos"],
            eos_token_ids=[setting["eos"]],
            pad_token_id=setting["pad"],
            mask_token_id=setting["mask"],
            **{key: setting[key] for key in names},
        )
        assert torch.equal(ids, torch.tensor(output["ids"])), name
        torch.testing.assert_close(scores, torch.tensor(output["logprobs"]), atol=1e-5, rtol=0)
        compared += 1
    assert compared == 7


def test_names_of_swinbert(original):
    assert original.model.bert is original.model.albert
    assert not any(name.startswith("bert.") for name in original.model.state_dict())


def test_refused_arguments(original):
    from albertkit.errors import ConfigError

    inputs = original.inputs("generate_inputs")
    arguments = dict(
        bos_token_id=2,
        eos_token_ids=3,
        pad_token_id=0,
        mask_token_id=4,
        max_length=10,
        is_decode=True,
    )
    with pytest.raises(ConfigError, match="use_cbs"):
        original.model(**inputs, **arguments, use_cbs=True)
    with pytest.raises(ConfigError, match="num_beam:"):
        original.model(**inputs, **arguments, num_beam=3)
