"""Training few parameters: a frozen encoder, or LoRA's low-rank adapters in it.

H hidden, I feed-forward, r the rank of an adapter.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from albertkit.errors import ConfigError, MissingExtraError
from albertkit.model.pretrained import PretrainedAlbert

# The linear layers of the shared block, all of them: query and value alone did not reach full fine-tuning's quality at any rank
# (Dettmers et al. 2023, QLoRA, section 4). Heads have layers named `dense` too, so the path is given.
_ADAPTED = r".*\.albert_layer_groups\..*\.(query|key|value|dense|ffn|ffn_output)"


def freeze_encoder(model: PretrainedAlbert) -> None:
    """Let only the head be trained, with the pooler under it where there is one.

    Nothing below needs a gradient any more, so torch records nothing there and keeps no activations: of a training step with
    base only the forward pass remains. The pooler stays free because pretraining fits it to sentence order alone; of base's
    11,685,122 parameters 592,130 are then trained for two classes, without a pooler 1,538.
    """
    model.encoder_model.embeddings.requires_grad_(False)
    model.encoder_model.encoder.requires_grad_(False)


def merge_lora(model: PretrainedAlbert) -> PretrainedAlbert:
    """Return a plain copy in evaluation mode, the adapters added to the weights: to be saved, and faster to predict with."""
    from peft.tuners.lora import LoraLayer

    merged = copy.deepcopy(model)
    for parent in list(merged.modules()):
        for name, layer in parent._modules.items():
            if isinstance(layer, LoraLayer):
                if not layer.merged:  # one that groups share is met in each
                    layer.merge()
                setattr(parent, name, layer.get_base_layer())
    vars(merged).pop("peft_config", None)
    return merged.requires_grad_(True).eval()


def add_lora(model: PretrainedAlbert, rank: int = 8) -> PretrainedAlbert:
    """Put adapters into every linear layer of the encoder's block and freeze all else but the head and the pooler.

    The model is changed and returned. The training loop trains and saves only what requires a gradient: to resume, load the
    original weights and add adapters of the same rank first.

    A layer W becomes W + BA with A [r, in] and B [out, r]; B starts at 0, so the model starts as it was. ALBERT's layers are
    one, applied 12 times, and so are its adapters: one set of r·(8H + 2(H + I)) parameters, for base 110,592 at rank 8, where
    BERT-base would have 12 sets, 1,327,104. A correction of one layer alone cannot be learned. As in the
    paper's experiments on GLUE the update is not scaled (alpha = rank); its learning rates are about ten times as large as
    those of full fine-tuning.

    Source: Hu et al. 2021, LoRA, section 4.1 and table 9; the library peft.
    """
    if not 1 <= rank <= model.config.hidden_size:
        raise ConfigError(
            "bad-value",
            f"LoRA's rank is {rank}, the model's hidden size {model.config.hidden_size}",
            "choose 1 up to the hidden size, usually 4 to 64",
        )
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingExtraError.of("peft", "lora", "LoRA") from error
    with _same_places(model):
        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules=_ADAPTED), model)
    trained = {parameter for parameter in model.parameters() if parameter.requires_grad}
    model.requires_grad_(True)
    freeze_encoder(model)
    for parameter in trained:
        parameter.requires_grad_(True)
    return model


@contextmanager
def _same_places(model: nn.Module) -> Iterator[None]:
    """Keep modules that stand in several places (`parameter_sharing` ffn) there, when one of them is exchanged inside."""
    places: dict[nn.Module, list[tuple[nn.Module, str]]] = {}
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is not None:
                places.setdefault(child, []).append((parent, name))
    yield
    for (parent, name), *others in places.values():
        for other, its_name in others:
            setattr(other, its_name, getattr(parent, name))
