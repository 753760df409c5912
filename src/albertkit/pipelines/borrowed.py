"""Our encoder over the modules of transformers' `AlbertModel`, for inference and for training.

The modules themselves are shared, not their parameters: what replaces them later (adapters, a
larger vocabulary, pruned or parametrized layers) is seen at the next call, and is called as a
module where it is no plain layer.
"""

from pathlib import Path
from typing import Any

from torch import nn

from albertkit.errors import ConfigError
from albertkit.model.layers import AlbertLayer
from albertkit.model.pretrained import AlbertModel, resolve_config, shapes_only


class BorrowedModel(AlbertModel):
    """An `AlbertModel` that has the linear layers, norms, tables and dropout of transformers' one.

    Args:
        theirs: transformers' `AlbertModel`.

    Raises:
        ConfigError: wrong-model if it is put together otherwise than transformers does.
    """

    def __init__(self, theirs: Any) -> None:
        config = resolve_config(theirs.config, Path("config.json"))
        with shapes_only():
            super().__init__(config, add_pooling_layer=theirs.pooler is not None)
        modules = dict(self.named_modules())
        self._leaves = [name for name, module in modules.items() if not module._modules]
        self._containers = [name for name, module in modules.items() if module._modules]
        self._blocks = {
            name: module for name, module in modules.items() if isinstance(module, AlbertLayer)
        }
        for block in self._blocks.values():
            # transformers has none behind the feed-forward layer, Google has
            block.ffn_dropout = 0.0
        self.training = False  # of this module alone: those it borrows are in their model's mode
        try:
            structure = self.structure_of(theirs)
        except AttributeError as error:
            self._refuse(str(error))
        for name, kind, has_own_forward in structure:
            if name in self._containers and kind.__module__.partition(".")[0] not in (
                "transformers",
                "torch",
            ):
                self._refuse(f"`{name}` is a {kind.__name__}")
            if has_own_forward:
                self._refuse(f"the forward of `{name}` was replaced")
        leaves = tuple(f"{name}." for name in self._leaves)
        for name, _ in theirs.named_parameters():
            if not name.startswith(leaves):
                self._refuse(f"it has `{name}`")
        self.follow(theirs)

    @staticmethod
    def _refuse(reason: str) -> None:
        hint = (
            "accelerate a model of transformers' own ALBERT classes, before its layers are replaced"
        )
        raise ConfigError(
            "wrong-model", f"this ALBERT has other layers than transformers' own: {reason}", hint
        )

    def structure_of(self, theirs: nn.Module) -> list[tuple]:
        """Return what is not borrowed of their model: how its layers are put together."""
        structure: list[tuple] = []
        for name in self._containers:
            part = theirs.get_submodule(name)
            prefix = f"{name}." if name else ""
            for child, module in part._modules.items():  # such as activations
                if module is not None:
                    is_borrowed = prefix + child in self._leaves
                    kind = None if is_borrowed else type(module)
                    structure.append(
                        (prefix + child, kind, not is_borrowed and "forward" in vars(module))
                    )
        heads = [
            theirs.get_submodule(f"{name}.attention").num_attention_heads for name in self._blocks
        ]
        return [*structure, ("heads", tuple(heads), False)]  # transformers 4 prunes them

    def follow(self, theirs: nn.Module) -> None:
        """Take the modules, and the rates of dropout, that their model has now."""
        for name in self._leaves:
            container, _, leaf = name.rpartition(".")
            self.get_submodule(container)._modules[leaf] = theirs.get_submodule(name)
        for name, block in self._blocks.items():
            attention: Any = theirs.get_submodule(f"{name}.attention")
            block.training = attention.training
            # transformers 4 reads the number with torch's attention, and the module with its own.
            block.attention_dropout = getattr(
                attention, "dropout_prob", attention.attention_dropout.p
            )
            block.hidden_dropout = attention.output_dropout.p
        self.gradient_checkpointing = getattr(theirs, "gradient_checkpointing", False)
