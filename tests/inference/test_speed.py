"""`albertkit bench` on a tiny model: every rate is there, and shares are those of the machine's products."""

import pytest
import torch

from albertkit.inference import speed
from albertkit.model import AlbertForPreTraining


def test_rates_of_a_tiny_model(tiny_model_folder, run_command, monkeypatch):
    for name, value in {"ROUNDS": 1, "DOCUMENTS": 40, "PEAK_WIDTH": 256}.items():
        monkeypatch.setattr(speed, name, value)
    folder = tiny_model_folder(AlbertForPreTraining, max_position_embeddings=128)
    threads = torch.get_num_threads()
    ran = run_command("bench", folder, "--threads", 1, "--device", "cpu", "--json")
    assert torch.get_num_threads() == threads
    found = ran.json
    assert found["threads"] == 1
    assert found["tokenize_mb_per_second"] > 0
    assert {rate["work"] for rate in found["rates"]} == {"encode", "train"}
    assert "fp32" in {rate["precision"] for rate in found["rates"]}
    config = AlbertForPreTraining.from_pretrained(folder).config
    flop = config.train_flops_per_token(128.0, 0.0) / 3
    for rate in found["rates"]:
        assert rate["tokens_per_second"] > 0
        if rate["work"] == "encode":
            assert rate["milliseconds"] > 0
            if rate["share_of_peak"] is not None:
                share = rate["tokens_per_second"] * flop / rate["peak_gflops"] / 1e9
                assert rate["share_of_peak"] == pytest.approx(share)
    shown = run_command("bench", folder, "--threads", 1, "--device", "cpu").out
    assert "tokens/s" in shown
    assert "fp32" in shown
