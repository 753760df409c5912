"""What all public classes have in common: initialisation, numeric settings, vocabulary size, loading and saving by name."""

from collections.abc import Collection, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.model.encoder import AlbertLayer

if TYPE_CHECKING:
    from albertkit.model.albert import AlbertModel
    from albertkit.model.heads import MaskedLMHead


class Unfilled(TorchFunctionMode):
    """Within it, models are made without drawing their weights, for a reader that fills them and draws the rest.

    Drawing takes 1.5 of the 1.7 seconds that loading base would take, and 13 of 15 for xlarge.
    """

    active = False

    def __enter__(self) -> Self:
        Unfilled.active = True
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        Unfilled.active = False
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


class PretrainedAlbert(nn.Module):
    """Base of the public classes.

    Attributes:
        config: The configuration the model was made from.
        compute_dtype: Dtype of activations and of the weights during a forward pass, or None for the parameters' own.
            With bfloat16 each weight is cast once per forward, parameters and their gradients stay as they are.
        tied: Names under which other programs' files may hold a second copy of a tensor, and the name it has here.
        accepts_loss_kwargs: Tells transformers' Trainer to pass `num_items_in_batch`.
    """

    tied: ClassVar[dict[str, str]] = {}
    accepts_loss_kwargs: ClassVar[bool] = True

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def encoder_model(self) -> "AlbertModel":
        """The `AlbertModel` in this model."""
        return self.albert  # type: ignore[return-value]

    @property
    def compute_dtype(self) -> torch.dtype | None:
        """Dtype to compute in; None: the parameters' own."""
        return self.encoder_model._compute_dtype

    @compute_dtype.setter
    def compute_dtype(self, dtype: torch.dtype | None) -> None:
        self.encoder_model._compute_dtype = dtype

    @property
    def gradient_checkpointing(self) -> bool:
        """Keep only the input of each block for the backward pass and compute the rest again: a third slower."""
        return self.encoder_model.encoder.gradient_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, on: bool) -> None:
        self.encoder_model.encoder.gradient_checkpointing = on

    @property
    def compiled(self) -> bool:
        """What can be fused in a pass goes through `torch.compile`: one small graph, made at first use, for all batches."""
        return any(module.compiled for module in self.modules() if isinstance(module, AlbertLayer))

    @compiled.setter
    def compiled(self, on: bool) -> None:
        for module in self.modules():
            if isinstance(module, AlbertLayer):
                module.compiled = on

    @property
    def is_gradient_checkpointing(self) -> bool:
        """The same under transformers' name; PEFT asks."""
        return self.gradient_checkpointing

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Mapping[str, Any] | None = None) -> None:
        """Set `gradient_checkpointing`. Options of `torch.utils.checkpoint` change nothing: it is never reentrant."""
        self.gradient_checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        """Keep all activations again."""
        self.gradient_checkpointing = False

    def activation_checkpointing_enable(
        self,
        activation_checkpointing_kwargs: Mapping[str, Any] | None = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        """What transformers' Trainer calls for `gradient_checkpointing=True`.

        Raises:
            ConfigError: bad-checkpointing for anything but every layer, on the device.
        """
        if every_n_layers != 1 or offload:
            asked = f"every_n_layers={every_n_layers}, offload={offload}"
            raise ConfigError(
                "bad-checkpointing", f"{asked}: every pass is checkpointed, on the device", "leave both out"
            )
        self.gradient_checkpointing_enable(activation_checkpointing_kwargs)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters; `compute_dtype` may be another."""
        return next(self.parameters()).dtype

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """Parameters, each shared one counted once.

        Args:
            only_trainable: Only those with `requires_grad`.
            exclude_embeddings: Without the tables of words, positions and segments. Trainer asks for its count of operations.
        """
        tables = {module.weight for module in self.modules() if exclude_embeddings and isinstance(module, nn.Embedding)}
        counted = (p for p in self.parameters() if (p.requires_grad or not only_trainable) and p not in tables)
        return sum(parameter.numel() for parameter in counted)

    def get_input_embeddings(self) -> nn.Embedding:
        """The word embeddings."""
        return self.encoder_model.embeddings.word_embeddings

    def get_output_embeddings(self) -> nn.Linear | None:
        """The masked-LM decoder, whose weight is the word embeddings'; None without that head."""
        return None

    def resize_token_embeddings(self, new_num_tokens: int | None = None) -> nn.Embedding:
        """Change the number of pieces: rows are added at the end, as initialisation makes them, or cut off there.

        The masked-LM head keeps sharing the embeddings; its bias gets zeros. `config.vocab_size` follows. An optimizer made
        before this holds the old parameters.

        Args:
            new_num_tokens: Rows afterwards. Default: change nothing.

        Returns:
            The word embeddings.

        Raises:
            ConfigError: bad-config for less than 1.
        """
        words = self.get_input_embeddings()
        if new_num_tokens is None or new_num_tokens == words.num_embeddings:
            return words
        config = self.config.replace(vocab_size=new_num_tokens)
        words.weight = _with_rows(words.weight, new_num_tokens, config.initializer_range)
        words.num_embeddings = new_num_tokens
        if self.get_output_embeddings() is not None:
            head: MaskedLMHead = self.predictions  # type: ignore[assignment]
            head.bias = _with_rows(head.bias, new_num_tokens)
            head.tie(words)
        for module in self.modules():
            if isinstance(module, PretrainedAlbert):
                module.config = config
        return words

    def initialize(self, ready: Iterable[nn.Parameter] = ()) -> None:
        """Start afresh, as the original: normal(0, initializer_range) cut at two deviations, zero biases, plain norms.

        Args:
            ready: Parameters to leave as they are.

        Source: google-research/albert `modeling.create_initializer`; `nn.init` draws from torch's global generator.
        """
        if Unfilled.active:
            return
        std = self.config.initializer_range
        done = set(ready)
        for module in self.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter in done:
                    continue
                done.add(parameter)
                if name == "bias":
                    nn.init.zeros_(parameter)
                elif isinstance(module, nn.LayerNorm):
                    nn.init.ones_(parameter)
                else:
                    nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)

    # --- files: the work is done by `albertkit.checkpoints`, the room below -------------------------------------
    # The model knows no files. These methods belong to the class for its users' sake and reach the room by name, at
    # call time, so that importing and running a model never needs it.

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        allow_missing: Collection[str] = (),
        revision: str | None = None,
        *,
        strict: bool = False,
        config: Any = None,
        dtype: torch.dtype | str | None = None,
        torch_dtype: torch.dtype | str | None = None,
        device_map: Any = None,
        ignore_mismatched_sizes: bool = False,
        **changes: Any,
    ) -> Self:
        """Load a checkpoint folder: `config.json` and `model.safetensors` (or `pytorch_model.bin`).

        A head that the folder lacks is initialised afresh, with a warning in the log, as transformers does; so is one of
        another shape where `num_labels` or `id2label` is given. Everything else must fit name by name.

        Args:
            folder: The folder; a run, which stands for its `best/` or else `final/`; or a model of the Hugging Face hub as
                `org/name`, which is downloaded once.
            allow_missing: First parts of parameter names that may be missing although `strict`, without a warning.
            revision: Branch, tag or commit of a model of the hub. Default: its main branch.
            strict: Refuse a folder that lacks a head.
            config: Configuration to use in place of the folder's: ours, transformers', or a path.
            dtype: Of the parameters: a torch dtype or its name, or "auto" for that of the file. Default: float32.
            torch_dtype: Its older name.
            device_map: A device, or "auto" for the GPU if there is one. Default: the CPU.
            ignore_mismatched_sizes: Initialise heads of another shape afresh.
            **changes: Configuration fields to set otherwise, for example `hidden_dropout_prob=0.1` or `num_labels=3`; and
                keywords of transformers that change nothing here, such as `low_cpu_mem_usage`.

        Returns:
            The model in evaluation mode.

        Raises:
            DataError: not-found or broken-json. ConfigError: as `AlbertConfig.from_pretrained`; bad-argument for a keyword of
            transformers that cannot be honoured; bad-device. CheckpointError: no-weights, broken-weights or weights-mismatch.
            MachineError: hub-unreachable.
        """
        return import_module("albertkit.checkpoints").load_checkpoint(
            folder, cls, allow_missing, revision, strict=strict, config=config, dtype=dtype, torch_dtype=torch_dtype,
            device_map=device_map, ignore_mismatched_sizes=ignore_mismatched_sizes, **changes,
        )  # fmt: skip

    def save_pretrained(self, folder: str | Path, tokenizer: Any = None) -> None:
        """Write `config.json` and `model.safetensors`, each whole or not at all, as transformers reads them.

        Args:
            folder: Made if missing.
            tokenizer: An `AlbertTokenizer` to save beside the weights.
        """
        import_module("albertkit.checkpoints").save_checkpoint(folder, self, tokenizer)

    def push_to_hub(
        self, repo_id: str, tokenizer: Any = None, private: bool | None = None, commit_message: str = "Upload model"
    ) -> str:
        """Upload what `save_pretrained` writes to the Hugging Face hub, as the account that `hf auth login` knows.

        Args:
            repo_id: `org/name`; made if there is none.
            tokenizer: An `AlbertTokenizer` to upload beside the weights.
            private: Whether a new repository is private. Default: as the organisation says.
            commit_message: First line of the commit.

        Returns:
            The commit's address.

        Raises:
            DataError: not-found. MachineError: hub-unreachable. MissingExtraError: without `huggingface_hub`.
        """
        push = import_module("albertkit.checkpoints").push_checkpoint
        return push(repo_id, self, tokenizer, private, commit_message)


def _with_rows(parameter: Tensor, rows: int, std: float = 0.0) -> nn.Parameter:
    """The first `rows` rows of a table or a bias, and new ones where it has fewer: truncated normal, or 0."""
    kept = parameter.detach()[:rows]
    new = parameter.new_zeros(rows - len(kept), *parameter.shape[1:], requires_grad=False)
    if std:
        nn.init.trunc_normal_(new, std=std, a=-2 * std, b=2 * std)
    return nn.Parameter(torch.cat([kept, new]), requires_grad=parameter.requires_grad)
