"""Tiny random models of every type, as transformers writes them."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

_WIDTH = dict(hidden_size=24, num_attention_heads=2)
_SIZES = dict(**_WIDTH, num_hidden_layers=2, intermediate_size=32)
_IMAGE = dict(image_size=32, patch_size=8)
_TEXT = dict(**_SIZES, vocab_size=50, bos_token_id=1, eos_token_id=2)
_DINO = dict(**_WIDTH, num_hidden_layers=2, mlp_ratio=2)

_PREDICTOR = dict(pred_hidden_size=24, pred_num_attention_heads=2, pred_num_hidden_layers=1)
_DECODER = dict(decoder_hidden_size=24, decoder_num_attention_heads=2, decoder_num_hidden_layers=1)
_POSITIONS = dict(use_absolute_position_embeddings=True, use_relative_position_bias=True)
_SWIN = dict(
    image_size=32, patch_size=4, embed_dim=12, depths=[1, 1], num_heads=[2, 2], window_size=4
)
_PRISM = dict(
    **_WIDTH,
    intermediate_size=32,
    num_spatial_layers=2,
    num_temporal_layers=1,
    tubelet_size=[1, 8, 8],
)
_JEPA = dict(**_WIDTH, num_hidden_layers=2, crop_size=32, patch_size=8, frames_per_clip=4)
_TOWERS = dict(vision_config={**_SIZES, **_IMAGE}, text_config=_TEXT)

# model_type: transformers' configuration, its arguments, and the model that a checkpoint of this
# type usually holds
_MODELS = {
    "videomae": (
        "VideoMAEConfig",
        {**_SIZES, **_IMAGE, "num_frames": 4, **_DECODER},
        "VideoMAEForPreTraining",
    ),
    "timesformer": (
        "TimesformerConfig",
        {**_SIZES, **_IMAGE, "num_frames": 4},
        "TimesformerForVideoClassification",
    ),
    "vivit": (
        "VivitConfig",
        {**_SIZES, "image_size": 32, "tubelet_size": [2, 8, 8], "num_frames": 4},
        "VivitForVideoClassification",
    ),
    "vjepa2": ("VJEPA2Config", {**_JEPA, **_PREDICTOR}, "VJEPA2Model"),
    "videoprism_vision_model": (
        "VideoPrismVisionConfig",
        {**_PRISM, "image_size": 32, "num_frames": 4},
        "VideoPrismVisionModel",
    ),
    "siglip": ("SiglipConfig", _TOWERS, "SiglipModel"),
    "clip": ("CLIPConfig", _TOWERS, "CLIPModel"),
    "dinov2": ("Dinov2Config", {**_DINO, **_IMAGE}, "Dinov2Model"),
    "dinov2_with_registers": (
        "Dinov2WithRegistersConfig",
        {**_DINO, **_IMAGE},
        "Dinov2WithRegistersModel",
    ),
    "dinov3_vit": (
        "DINOv3ViTConfig",
        {**_SIZES, **_IMAGE, "num_register_tokens": 3},
        "DINOv3ViTModel",
    ),
    "swin": ("SwinConfig", _SWIN, "SwinForImageClassification"),
    "vit": ("ViTConfig", {**_SIZES, **_IMAGE}, "ViTForImageClassification"),
    "beit": ("BeitConfig", {**_SIZES, **_IMAGE, **_POSITIONS}, "BeitForImageClassification"),
}


class Tiny(NamedTuple):
    """A folder, and transformers' model that was saved in it."""

    folder: Path
    model: Any


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Make a tiny model of a type, every number of it random; `changes` of its configuration make another one."""
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    saved_models = {}

    def make(model_type, **changes):
        key = f"{model_type} {changes}"
        if key not in saved_models:
            config, values, model_class = _MODELS[model_type]
            model = getattr(transformers, model_class)(
                getattr(transformers, config)(**{**values, **changes})
            ).eval()
            generator = torch.Generator().manual_seed(7)
            # Zeros and ones of a new model would hide tokens in the wrong place
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    noise = 0.05 * torch.randn(parameter.shape, generator=generator)
                    parameter.copy_(parameter + noise if "norm" in name.lower() else noise)
            folder = tmp_path_factory.mktemp(model_type)
            model.save_pretrained(folder)
            saved_models[key] = Tiny(folder, model)
        return saved_models[key]

    return make
