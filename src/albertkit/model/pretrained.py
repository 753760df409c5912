"""The base of all public classes (numeric settings, size of the vocabulary, loading and saving) and the encoder itself."""

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self, Unpack

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from albertkit.config import AlbertConfig
from albertkit.data.packing import PackedBatch
from albertkit.errors import ConfigError
from albertkit.model import forking  # noqa: F401
from albertkit.model.encoder import AlbertEmbeddings, AlbertEncoder, AlbertLayer
from albertkit.model.folder import WEIGHTS, read_tensors, write_tensors
from albertkit.model.heads import MaskedLMHead
from albertkit.model.keywords import check_saving, checked_changes, given_config, own_config, placing
from albertkit.model.matching import Matched, match, without_other_heads
from albertkit.model.outputs import BaseModelOutput, PackedOutput
from albertkit.model.padded import PaddedBatch, PaddedPass, PassOptions, Trace
from albertkit.model.projections import as_head_input, linear
from albertkit.model_folder import explain_hub, local_folder, open_hub

logger = logging.getLogger("albertkit")


class SkipInitialization(TorchFunctionMode):
    """Skip weight initialisation while a checkpoint is loaded; what the file lacks is initialised afterwards.

    Initialisation takes 1.5 of the 1.7 seconds that loading base would take, and 13 of 15 for xlarge.
    """

    active = False

    def __enter__(self) -> Self:
        SkipInitialization.active = True
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        SkipInitialization.active = False
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


class PretrainedAlbert(nn.Module):
    """Base of the public classes.

    Attributes:
        config: The configuration the model was created from.
        compute_dtype: Dtype of activations and of the weights during a forward pass, or None for the parameters' own.
            With bfloat16 each weight is cast once per forward, parameters and their gradients stay as they are.
        tied: Names under which other programs' files may hold a second copy of a tensor, and the name it has here.
        accepts_loss_kwargs: Tells transformers' Trainer to pass `num_items_in_batch`.
    """

    tied: ClassVar[dict[str, str]] = {}
    accepts_loss_kwargs: ClassVar[bool] = True

    base_model_prefix: ClassVar[str] = "albert"  # this and the next two: other libraries ask
    main_input_name: ClassVar[str] = "input_ids"
    supports_gradient_checkpointing: ClassVar[bool] = True

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.config = own_config(config)

    @property
    def encoder_model(self) -> "AlbertModel":
        """The `AlbertModel` in this model."""
        return self.albert  # type: ignore[return-value]

    @property
    def base_model(self) -> "AlbertModel":
        """The same under transformers' name."""
        return self.encoder_model

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
        """Compile what can be fused in a layer: one small graph of `torch.compile`, made at first use, for all batches."""
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
        """Set `gradient_checkpointing`, as transformers' Trainer asks for it.

        Raises:
            ConfigError: bad-value for anything but every layer, on the device.
        """
        if every_n_layers != 1 or offload:
            asked = f"every_n_layers={every_n_layers}, offload={offload}"
            raise ConfigError("bad-value", f"{asked}: every layer is checkpointed, on the device", "leave both out")
        self.gradient_checkpointing_enable(activation_checkpointing_kwargs)

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the parameters; `compute_dtype` may be another."""
        return next(self.parameters()).dtype

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """Count the parameters, each shared one once.

        Args:
            only_trainable: Only those with `requires_grad`.
            exclude_embeddings: Without the tables of words, positions and segments. Trainer asks for its count of operations.
        """
        tables = {module.weight for module in self.modules() if exclude_embeddings and isinstance(module, nn.Embedding)}
        counted = (p for p in self.parameters() if (p.requires_grad or not only_trainable) and p not in tables)
        return sum(parameter.numel() for parameter in counted)

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the word embeddings."""
        return self.encoder_model.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the word embeddings; the masked-LM head shares the new ones."""
        self.encoder_model.embeddings.word_embeddings = value
        self.tie_weights()

    def tie_weights(self, **_: Any) -> None:
        """Let the masked-LM head share the word embeddings, as it does from the beginning."""
        if self.get_output_embeddings() is not None:
            self.predictions.tie(self.get_input_embeddings())  # type: ignore[union-attr, operator]

    def enable_input_require_grads(self) -> None:
        """Let gradients reach the word embeddings' output though they are frozen, which adapters with checkpointing need."""
        self._embeddings_hook = self.get_input_embeddings().register_forward_hook(
            lambda module, inputs, output: output.requires_grad_(True)
        )

    def disable_input_require_grads(self) -> None:
        """Undo `enable_input_require_grads`."""
        self._embeddings_hook.remove()

    @classmethod
    def can_generate(cls) -> bool:
        """Return False: an encoder does not generate text."""
        return False

    def get_output_embeddings(self) -> nn.Linear | None:
        """Return the masked-LM decoder, whose weight is the word embeddings'; None without that head."""
        return None

    def resize_token_embeddings(self, new_num_tokens: int | None = None) -> nn.Embedding:
        """Change the number of tokens: rows are initialised and added at the end, or cut off there.

        The masked-LM head keeps sharing the embeddings; its bias gets zeros. `config.vocab_size` follows. An optimizer created
        before this holds the old parameters.

        Args:
            new_num_tokens: Rows afterwards. Default: change nothing.

        Returns:
            The word embeddings.

        Raises:
            ConfigError: bad-value for less than 1.
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
        """Initialise as the original: normal(0, initializer_range) cut at two deviations, zero biases, plain norms.

        Args:
            ready: Parameters to leave as they are.

        Source: google-research/albert `modeling.create_initializer`; `nn.init` draws from torch's global generator.
        """
        if SkipInitialization.active:
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

    # --- files ------------------------------------------------------------------------------------------------------

    @classmethod
    def from_tensors(
        cls, config: AlbertConfig, tensors: Mapping[str, Tensor], allow_missing: Collection[str], source: str
    ) -> tuple[Self, Matched]:
        """Make a model of a file's tensors; only parameters that the file lacks are initialised.

        Args:
            config: What to build.
            tensors: From the file.
            allow_missing: First parts of parameter names that may be missing.
            source: The file, for messages.

        Returns:
            The model in evaluation mode, and what went where.
        """
        with torch.device("meta"):  # the shapes of a broken configuration may ask for more memory than there is
            matched = match(cls(config), cls.tied, tensors, allow_missing, source)
        with SkipInitialization():
            model = cls(config)
        parameters = model.state_dict(keep_vars=True)
        with torch.no_grad():
            for name, tensor in matched.tensors.items():
                parameters[name].copy_(tensor)
        model.initialize(ready=[parameters[name] for name in matched.tensors])
        return model.eval(), matched

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path | None = None,
        allow_missing: Collection[str] = (),
        revision: str | None = None,
        *,
        pretrained_model_name_or_path: str | Path | None = None,
        strict: bool = False,
        config: Any = None,
        dtype: torch.dtype | str | None = None,
        torch_dtype: torch.dtype | str | None = None,
        device_map: Any = None,
        ignore_mismatched_sizes: bool = False,
        **changes: Any,
    ) -> Self:
        """Load a checkpoint folder: `config.json` and `model.safetensors` (or `pytorch_model.bin`, without unpickling objects).

        A head that the folder lacks is initialised, with a warning in the log, as transformers does; so is one of
        another shape where `num_labels` or `id2label` is given. Everything else must fit name by name; heads that the class
        does not have are left out, and that is logged.

        Args:
            folder: The folder; a run, which stands for its `best/` or else `final/`; or a model of the Hugging Face hub as
                `org/name`, which is downloaded once.
            allow_missing: First parts of parameter names that may be missing although `strict`, without a warning.
            revision: Branch, tag or commit of a model of the hub. Default: its main branch.
            pretrained_model_name_or_path: transformers' name of `folder`.
            strict: Refuse a folder that lacks a head.
            config: Configuration to use in place of the folder's: ours, transformers', or a path.
            dtype: Of the parameters: a torch dtype or its name, or "auto" for that of the file. Default: float32.
            torch_dtype: Its older name.
            device_map: A device, or "auto" for the GPU if there is one. Default: the CPU.
            ignore_mismatched_sizes: Initialise heads of another shape.
            **changes: Configuration fields to set otherwise, for example `hidden_dropout_prob=0.1` or `num_labels=3`; and
                keywords of transformers that change nothing here, such as `low_cpu_mem_usage`.

        Returns:
            The model in evaluation mode.

        Raises:
            DataError: not-found or bad-file. ConfigError: as `AlbertConfig.from_pretrained`; bad-value for a keyword of
            transformers that cannot be honoured; no-device. CheckpointError: missing-file, corrupt or weights-mismatch.
            MachineError: unreachable.
        """
        place = placing(dtype, torch_dtype, device_map)
        changes = checked_changes(changes)
        path = local_folder(pretrained_model_name_or_path if folder is None else folder, revision)  # type: ignore[arg-type]
        made = given_config(config, path)
        if changes:
            made = made.with_changes(**changes)
        tensors = read_tensors(path)
        fresh: list[str] = []
        if not strict:
            other_labels = ignore_mismatched_sizes or not changes.keys().isdisjoint(("num_labels", "id2label"))
            with torch.device("meta"):
                wanted = cls(made).state_dict()
            tensors, fresh = without_other_heads(wanted, cls.tied, tensors, other_labels)
        model, matched = cls.from_tensors(made, tensors, (*allow_missing, *fresh), str(path))
        if matched.left_out:
            unused = ", ".join(matched.left_out)
            logger.info("%s has no use for these tensors of `%s`: %s", cls.__name__, path, unused)
        if new := ", ".join(name for name in matched.fresh if name in fresh):
            advice = "`%s` has no weights for %s: initialised afresh, train them before use: %s"
            logger.warning(advice, path, cls.__name__, new)
        if others := ", ".join(name for name in matched.fresh if name not in fresh):
            logger.info("not in `%s`, initialised afresh: %s", path, others)
        stored = next((tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), torch.float32)
        return model.to(place.device, place.dtype or stored)

    def save_pretrained(
        self,
        folder: str | Path,
        tokenizer: Any = None,
        *,
        state_dict: Mapping[str, Tensor] | None = None,
        max_shard_size: int | str | None = None,
        is_main_process: bool = True,
        **options: Any,
    ) -> None:
        """Write `config.json` and, in fp32, `model.safetensors`, each whole or not at all, as transformers reads them.

        With `parameter_sharing` attention or ffn, which transformers has no name for, what the layers share is stored for
        each of them, and that is logged; loading shares it again.

        Args:
            folder: Created if missing; files of other names in it are left alone.
            tokenizer: An `AlbertTokenizer` to save with the weights; `config.json` then names its special ids.
            state_dict: Tensors to write in place of the model's own, all of them.
            max_shard_size: Changes nothing: the weights are one file, of at most 1 GB for the published sizes.
            is_main_process: False writes nothing.
            **options: Keywords of transformers that ask for nothing else, such as `safe_serialization=True`.

        Raises:
            ConfigError: bad-value, unknown-name. CheckpointError: weights-mismatch for other names in `state_dict`.
        """
        check_saving(options)
        if not is_main_process:
            return
        own = self.state_dict()
        if state_dict is not None:
            own = dict(match(self, self.tied, state_dict, (), "state_dict").tensors)
        path, config = Path(folder), self.config
        if config.parameter_sharing in ("attention", "ffn"):
            advice = "`%s` holds the shared %s once for each of the %d layers, because transformers cannot share it"
            logger.info(advice, path, config.parameter_sharing, config.num_hidden_layers)
        tensors: dict[str, Tensor] = {}
        stored: set[int] = set()
        for name, tensor in own.items():
            tensor = tensor.detach().to("cpu", torch.float32).contiguous()
            tensors[name] = tensor.clone() if tensor.data_ptr() in stored else tensor
            stored.add(tensor.data_ptr())
        write_tensors(path / WEIGHTS, tensors)
        ids: dict[str, int] = {}
        if tokenizer is not None:
            tokenizer.save_pretrained(path)
            ids = dict(pad_token_id=tokenizer.pad_id, bos_token_id=tokenizer.cls_id, eos_token_id=tokenizer.sep_id)
        foreign = {key: value for key, value in config.foreign.items() if key != "torch_dtype"}
        foreign |= {"architectures": [type(self).__name__], "dtype": "float32"}
        config.replace(foreign=foreign, **ids).save_pretrained(path)

    def push_to_hub(
        self, repo_id: str, tokenizer: Any = None, private: bool | None = None, commit_message: str = "Upload model"
    ) -> str:
        """Upload what `save_pretrained` writes to the Hugging Face hub, as the account that `hf auth login` knows.

        Args:
            repo_id: `org/name`; created if there is none.
            tokenizer: An `AlbertTokenizer` to upload with the weights.
            private: Whether a new repository is private. Default: as the organisation says.
            commit_message: First line of the commit.

        Returns:
            The commit's address.

        Raises:
            DataError: not-found. MachineError: unreachable. MissingExtraError: without `huggingface_hub`.
        """
        hub = open_hub()
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, tokenizer)
            try:
                api = hub.HfApi()
                api.create_repo(repo_id, private=private, exist_ok=True)
                commit = api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=commit_message or None)
            except Exception as error:
                raise explain_hub(error, repo_id) from error
        return str(commit.commit_url)


def _with_rows(parameter: Tensor, rows: int, std: float = 0.0) -> nn.Parameter:
    """Return the first `rows` rows of a table or a bias, and new ones where it has fewer: truncated normal, or 0."""
    kept = parameter.detach()[:rows]
    new = parameter.new_zeros(rows - len(kept), *parameter.shape[1:], requires_grad=False)
    if std:
        nn.init.trunc_normal_(new, std=std, a=-2 * std, b=2 * std)
    return nn.Parameter(torch.cat([kept, new]), requires_grad=parameter.requires_grad)


class AlbertModel(PretrainedAlbert):
    """Embeddings, encoder and pooler.

    Args:
        config: What to build. Parameters start as the original's do.
        add_pooling_layer: Whether to have the pooler, a tanh layer on the first token.
    """

    def __init__(self, config: AlbertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        config = self.config
        self.embeddings = AlbertEmbeddings(config)
        self.encoder = AlbertEncoder(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if add_pooling_layer else None
        self._compute_dtype: torch.dtype | None = None
        self.initialize()

    @property
    def encoder_model(self) -> "AlbertModel":
        """This model itself."""
        return self

    def encode(
        self,
        batch: PackedBatch | PaddedBatch,
        trace: Trace | None = None,
        positions: Tensor | None = None,
        words: Tensor | None = None,
    ) -> PackedOutput:
        """Run a packed batch.

        Args:
            batch: T tokens of N sequences, on the model's device.
            trace: Collects hidden states and attentions.
            positions: int64 [Q] into the T tokens, when only these states are wanted; the last layer computes no others.
            words: [T, E] in place of the word embeddings of the batch's ids.

        Returns:
            hidden [T, H], or [Q, H], in `compute_dtype`; pooled [N, H] in fp32, as heads (see `as_head_input`).
        """
        starts = batch.starts
        rows = None if positions is None else torch.cat([starts, positions])
        embedded = self.embeddings(batch, words)
        embedded = embedded.to(self.compute_dtype or embedded.dtype)
        lists = (trace.hidden_states, trace.attentions) if trace else ()
        hidden = self.encoder(embedded, batch, rows, *lists)
        first = hidden.index_select(0, starts) if rows is None else hidden[: len(starts)]
        hidden = hidden if rows is None else hidden[len(starts) :]
        if self.pooler is None:
            return PackedOutput(hidden, None)
        first = as_head_input(first, self.pooler)
        return PackedOutput(hidden, torch.tanh(linear(first.dtype, self.pooler)(first)))

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **options: Unpack[PassOptions],
    ) -> BaseModelOutput:
        """Run padded input: arguments as `PaddedPass`, options as `PassOptions`.

        Raises:
            ConfigError: bad-value. DataError: empty, too-large or wrong-tokenizer.
        """
        run = PaddedPass(self, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **options)
        return run.output(BaseModelOutput, last_hidden_state=run.rows(run.hidden), pooler_output=run.pooled)
