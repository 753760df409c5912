"""Fixtures that the tests of captioning and of SwinBERT's replacement share: its numbers, and an empty ALBERT."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from albertkit.captioning.layers import gate_matrix
from albertkit.captioning.model import AlbertForImageCaptioning
from albertkit.conversion.initial import init_model
from albertkit.swinbert.checkpoints import load_swinbert
from benchmarks.learn_shapes import SHELL
from benchmarks.moving_shapes import WORDS

FOLDERS = (
    "untied_seq2seq",
    "tied_text_b_smoothing_dropworst",
    "learned_mask_soft_initlike",
    "learned_mask_soft_near_one",
    "learned_mask_hard",
)


@dataclass
class Original:
    """A folder of numbers that SwinBERT printed, and its weights in our classes."""

    folder: Path
    model: AlbertForImageCaptioning

    def arrays(self, name):
        """`train` or `generate_inputs`; visual tokens are `img_feats` [B, M, F] whatever the folder calls them."""
        arrays = dict(np.load(self.folder / f"{name}.npz"))
        if "swin_features" in arrays:
            features = arrays["swin_features"]
            arrays["img_feats"] = features.reshape(len(features), -1, features.shape[-1])
        return arrays

    def inputs(self, name):
        """Arguments of the model; a learned gate stands in the mask, where SwinBERT's VideoTransformer puts it."""
        arrays = self.arrays(name)
        dtype = self.model.dtype
        mask = torch.tensor(arrays["attention_mask"]).to(dtype)
        if self.model.caption.has_learned_gate:
            text = arrays["input_ids"].shape[1]
            mask[:, text:, text:] = gate_matrix(
                self.model.albert.video_gate.detach(), self.model.caption.hard_gate
            )
        return {
            "input_ids": torch.tensor(arrays["input_ids"]).long(),
            "img_feats": torch.tensor(arrays["img_feats"]).to(dtype),
            "attention_mask": mask,
            "token_type_ids": torch.tensor(arrays["token_type_ids"]).long(),
        }

    @property
    def outputs(self):
        """Of generation, by setting."""
        return json.loads((self.folder / "generate_outputs.json").read_text())


@pytest.fixture(params=FOLDERS)
def original(request, golden):
    folder = golden / "captioning" / request.param
    return Original(folder, load_swinbert(folder)[0].eval())


@pytest.fixture(params=FOLDERS)
def exact(request, golden):
    """The same in double precision."""
    folder = golden / "captioning" / request.param
    return Original(folder, load_swinbert(folder)[0].double().eval())


@pytest.fixture(scope="session")
def shell(tmp_path_factory):
    """An empty narrow ALBERT whose vocabulary is the words of the moving shapes."""
    folder = tmp_path_factory.mktemp("shell")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer/vocab.txt").write_text("\n".join(words) + "\n")
    init_model(folder / "model", folder / "tokenizer", size="tiny", **SHELL)
    return folder / "model"
