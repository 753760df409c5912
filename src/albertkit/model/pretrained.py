"""The base of all public classes (numeric settings, size of the vocabulary, loading and saving) and the encoder itself."""

import dataclasses
import logging
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self, Unpack

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from albertkit.batches.packed import PackedBatch
from albertkit.config import FOREIGN_KEYS, AlbertConfig, make_config_with_notes
from albertkit.errors import ConfigError, first_line, suggest_name
from albertkit.model.files import (
    MatchedTensors,
    StateDict,
    check_decoder_is_tied,
    load_matching_tensors,
    read_tensors,
    tensors_to_load_and_missing_heads,
    write_shards,
)
from albertkit.model.heads import MaskedLMHead, TiedDecoder
from albertkit.model.layers import (
    AlbertEmbeddings,
    AlbertEncoder,
    AlbertLayer,
    apply_head,
)
from albertkit.model.padded import (
    BaseModelOutput,
    PackedOutput,
    PaddedBatch,
    PaddedPass,
    PassOptions,
    Trace,
)
from albertkit.model_paths import explain_hub_error, import_huggingface_hub, local_folder

logger = logging.getLogger("albertkit")

_TASKS = Path("/proc/self/task")  # the threads of this process, on Linux
_packing = threading.RLock()
_has_native_threads = False


@contextmanager
def without_torch_threads() -> Iterator[None]:
    """Let torch compute on the calling thread alone, for one caller at a time."""
    with _packing:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _record_native_threads() -> None:
    """Record before a fork whether there are threads that Python did not start: OpenMP's, or another library's."""
    global _has_native_threads
    _has_native_threads = not _TASKS.is_dir() or len(os.listdir(_TASKS)) > threading.active_count()


def _after_fork() -> None:
    global _packing
    _packing = threading.RLock()
    # The other threads of torch do not exist in the new process, and a parallel loop would wait for
    # them without end.
    if _has_native_threads:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_record_native_threads, after_in_child=_after_fork)


# Keywords that are accepted, and the values that change nothing here.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "attn_implementation": (
        "sdpa",
        "eager",
        None,
    ),  # one attention, with probabilities where they are asked for
    "low_cpu_mem_usage": (True, False, None),
    "trust_remote_code": (True, False, None),  # no code of a folder is ever run
    "weights_only": (True,),
    "output_loading_info": (False,),
    "from_tf": (False,),
    "from_flax": (False,),
    "force_download": (False,),
    "resume_download": (True, False, None),
    "_fast_init": (True, False),
}
# Keyword to the reason why it is refused, and what to do instead.
REFUSED = {
    "attn_implementation": (
        "attention has one implementation, which never computes padding",
        "leave it out",
    ),
    "weights_only": ("objects in a pickle are never made", "leave it out"),
    "output_loading_info": (
        "missing heads are logged as a warning",
        "use strict=True to make them an error",
    ),
    "from_tf": ("TensorFlow's files are converted first", "albertkit convert CHECKPOINT FOLDER"),
    "from_flax": (
        "Flax's files are not read",
        "save the model for PyTorch with transformers before version 5",
    ),
    "state_dict": (
        "weights come from the folder",
        "make the class from its config and call load_state_dict",
    ),
    "quantization_config": ("int8 and bf16 are engines", "albertkit.load_engine(model, 'int8')"),
    "load_in_8bit": ("int8 is an engine", "albertkit.load_engine(model, 'int8')"),
    "load_in_4bit": ("weights of 4 bits are not supported", "albertkit.load_engine(model, 'int8')"),
    "gguf_file": ("GGUF files are not read", "name a folder with model.safetensors"),
    "max_memory": ("a model lies on one device", "use device_map='cuda:0'"),
    "offload_folder": ("a model lies on one device", "use device_map='cuda:0'"),
    "offload_state_dict": ("a model lies on one device", "use device_map='cuda:0'"),
    "tp_plan": ("a model lies on one device", "use device_map='cuda:0'"),
    "subfolder": (
        "a folder is named whole",
        "put the subfolder into the path; of the hub: hf download NAME --local-dir DIR",
    ),
    "variant": ("weights have one name", "name a folder with model.safetensors"),
    "force_download": ("downloads are kept", "hf download NAME --force-download"),
    "cache_dir": ("downloads lie in the hub's cache", "set the environment variable HF_HOME"),
    "token": ("the account is that of the hub's own login", "run `hf auth login`, or set HF_TOKEN"),
    "use_auth_token": (
        "the account is that of the hub's own login",
        "run `hf auth login`, or set HF_TOKEN",
    ),
    "local_files_only": (
        "the hub's own switch decides",
        "set the environment variable HF_HUB_OFFLINE=1",
    ),
    "proxies": (
        "the network library's own variables decide",
        "set the environment variable HTTPS_PROXY",
    ),
    "mirror": ("the hub's own variables decide", "set the environment variable HF_ENDPOINT"),
}
# Keywords of `save_pretrained`, and the values that change nothing here.
_SAVING: dict[str, tuple[Any, ...]] = {
    "safe_serialization": (True,),
    "push_to_hub": (False,),
    "variant": (),
    "token": (),
    "save_peft_format": (True,),
    "save_original_format": (True,),
}
_OWN_KEYS = frozenset(field.name for field in dataclasses.fields(AlbertConfig)) - {"foreign"}
_TYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


@dataclass(frozen=True)
class Placement:
    """Device and dtype that a model is loaded to.

    Attributes:
        dtype: Of its parameters; None for that of the file.
        device: Where they are.
    """

    dtype: torch.dtype | None
    device: torch.device


def resolve_placement(dtype: Any, torch_dtype: Any, device_map: Any) -> Placement:
    """Parse `dtype`, `torch_dtype` and `device_map` (a device, its number or name, "auto", {"": device}) as transformers does."""
    if (
        dtype is not None
        and torch_dtype is not None
        and _parse_dtype(dtype) != _parse_dtype(torch_dtype)
    ):
        raise ConfigError(
            "bad-value",
            f"dtype={dtype!r} and torch_dtype={torch_dtype!r} differ",
            "leave one of them out",
        )
    requested = dtype if dtype is not None else torch_dtype
    parsed_dtype = torch.float32 if requested is None else _parse_dtype(requested)
    if isinstance(device_map, dict):
        devices = set(map(str, device_map.values()))
        if len(devices) != 1:
            fact = f"device_map={device_map!r} names {len(devices)} devices, a model lies on one"
            raise ConfigError("bad-value", fact, "use device_map='cuda:0'")
        device_map = next(iter(device_map.values()))
    if device_map is None:
        return Placement(parsed_dtype, torch.device("cpu"))
    if device_map in ("auto", "balanced", "balanced_low_0", "sequential"):
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return Placement(parsed_dtype, device)
    try:
        device = torch.device(device_map)
        if device.type != "meta":
            torch.empty(0, device=device)  # raises if there is no such GPU
    except (RuntimeError, TypeError, AssertionError, ValueError) as error:
        reason = first_line(error)
        raise ConfigError(
            "no-device", f"device_map={device_map!r}: {reason}", "leave it out for the CPU"
        ) from None
    return Placement(parsed_dtype, device)


def config_changes_among(keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration fields among the keywords of `from_pretrained`, without harmless keywords."""
    changes = {}
    for name, value in keywords.items():
        harmless = HARMLESS.get(name, ())
        if any(value is harmless_value or value == harmless_value for harmless_value in harmless):
            continue
        if name in REFUSED and value is not None:
            reason, hint = REFUSED[name]
            raise ConfigError("bad-value", f"from_pretrained({name}={value!r}): {reason}", hint)
        if name in REFUSED:
            continue
        changes[name] = value
    if unknown := [name for name in changes if name not in _OWN_KEYS | FOREIGN_KEYS]:
        arguments = {
            "dtype",
            "device_map",
            "config",
            "strict",
            "revision",
            "allow_missing",
            "ignore_mismatched_sizes",
            "use_safetensors",
        }
        fact = f"from_pretrained has no keyword `{unknown[0]}`, and configurations no such field"
        raise ConfigError(
            "unknown-name",
            fact,
            suggest_name(unknown[0], _OWN_KEYS | FOREIGN_KEYS | arguments | set(HARMLESS)),
        )
    return changes


def to_own_config(config: Any) -> AlbertConfig:
    """Return an albertkit configuration; one of transformers is converted."""
    if isinstance(config, AlbertConfig):
        return config
    if not callable(getattr(config, "to_dict", None)):
        hint = "albertkit.AlbertConfig.from_pretrained"
        raise ConfigError("bad-value", f"config={config!r} is not a configuration", hint)
    return make_config_with_notes(config.to_dict(), Path("config"))[0]


def resolve_config(config: Any, folder: Path) -> AlbertConfig:
    """Return the configuration for `from_pretrained(config=…)`: ours, transformers', or a path; None: the folder's."""
    if config is None:
        return AlbertConfig.from_pretrained(folder)
    if isinstance(config, str | Path):
        return AlbertConfig.from_pretrained(config)
    return to_own_config(config)


def check_saving_options(options: dict[str, Any]) -> None:
    """Raise an error for keywords of `save_pretrained` that contradict safetensors files of transformers' names."""
    for name, value in options.items():
        if name not in _SAVING:
            raise ConfigError(
                "unknown-name",
                f"save_pretrained has no keyword `{name}`",
                suggest_name(name, _SAVING),
            )
        if value not in (None, *_SAVING[name]):
            fact = f"save_pretrained({name}={value!r}): the weights are written as safetensors under transformers' names"
            raise ConfigError("bad-value", fact, "leave it out")


def save_config_of_fp32(
    folder: Path, config: AlbertConfig, model_class: type["PretrainedAlbert"], **ids: int
) -> None:
    """Write the `config.json` of weights that are written in fp32 and tied, whatever the file was from which they were read."""
    foreign = {
        key: value
        for key, value in config.foreign.items()
        if key not in ("torch_dtype", "tie_word_embeddings")
    }
    foreign |= {"architectures": [model_class.__name__], "dtype": "float32"}
    config.replace(foreign=foreign, **ids).save_pretrained(folder)


def _parse_dtype(name: Any) -> torch.dtype | None:
    if name == "auto":
        return None
    dtype = name if isinstance(name, torch.dtype) else _TYPES.get(str(name).removeprefix("torch."))
    if dtype not in _TYPES.values():
        raise ConfigError(
            "bad-value", f"dtype={name!r}", suggest_name(str(name), [*_TYPES, "auto"])
        )
    return dtype


class SkipInitialization(TorchFunctionMode):
    """Skip weight initialisation while a checkpoint is loaded; what the file lacks is initialised afterwards."""

    # Initialisation takes 1.5 of the 1.7 seconds that loading base would take, and 13 of 15 for
    # xlarge.
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


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Let modules be made without memory: the shapes of a broken configuration may ask for more than there is.

    Initialisation is skipped: on this device torch imports its compiler for it, half of the 3 s
    until the first answer.
    """
    with torch.device("meta"), SkipInitialization():
        yield


def tie_after_loading(model: "PretrainedAlbert", _: Any) -> None:
    """Tie a decoder again, which no state has: `load_state_dict(assign=True)` gives the model other word embeddings."""
    if isinstance(model.get_output_embeddings(), TiedDecoder):
        model.tie_weights()


class PretrainedAlbert(nn.Module):
    """Base of the public classes.

    Attributes:
        config: The configuration the model was created from.
        compute_dtype: Dtype of activations and of the weights during a forward pass, or None for
            the parameters' own. With bfloat16 each weight is cast once per forward, parameters and
            their gradients stay as they are.
        tied: Names under which other programs' files may hold a second copy of a tensor, and the
            name it has here.
        accepts_loss_kwargs: Tells transformers' Trainer to pass `num_items_in_batch`.
    """

    tied: ClassVar[dict[str, str]] = {}
    accepts_loss_kwargs: ClassVar[bool] = True

    base_model_prefix: ClassVar[str] = "albert"  # this and the next two: other libraries ask
    main_input_name: ClassVar[str] = "input_ids"
    supports_gradient_checkpointing: ClassVar[bool] = True

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.config = to_own_config(config)
        self.register_load_state_dict_post_hook(tie_after_loading)

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
        """Compile the fusible part of a layer: one small graph of `torch.compile`, made at first use, for all batches."""
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

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Set `gradient_checkpointing`. Options of `torch.utils.checkpoint` change nothing: it is never reentrant."""
        self.gradient_checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        """Unset `gradient_checkpointing`."""
        self.gradient_checkpointing = False

    def activation_checkpointing_enable(
        self,
        activation_checkpointing_kwargs: Mapping[str, Any] | None = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        """Set `gradient_checkpointing`, under the name that transformers' Trainer calls.

        Raises:
            ConfigError: bad-value for anything but every layer, on the device.
        """
        if every_n_layers != 1 or offload:
            arguments = f"every_n_layers={every_n_layers}, offload={offload}"
            raise ConfigError(
                "bad-value",
                f"{arguments}: every layer is checkpointed, on the device",
                "leave both out",
            )
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
            exclude_embeddings: Without the tables of words, positions and segments. Trainer asks
                for its count of operations.
        """
        tables = {
            module.weight
            for module in self.modules()
            if exclude_embeddings and isinstance(module, nn.Embedding)
        }
        counted = (
            p
            for p in self.parameters()
            if (p.requires_grad or not only_trainable) and p not in tables
        )
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

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None
    ) -> nn.Embedding:
        """Change the number of tokens: rows are initialised and added at the end, or cut off there.

        The masked-LM head keeps sharing the embeddings; its bias gets zeros. `config.vocab_size`
        follows. An optimizer created before this holds the old parameters.

        Args:
            new_num_tokens: Rows afterwards. Default: as many as there are.
            pad_to_multiple_of: Rows are added up to the next multiple of this.

        Returns:
            The word embeddings.

        Raises:
            ConfigError: bad-value for less than 1.
        """
        words = self.get_input_embeddings()
        if new_num_tokens is None:
            new_num_tokens = words.num_embeddings
        new_num_tokens += -new_num_tokens % (pad_to_multiple_of or 1)
        if new_num_tokens == words.num_embeddings:
            return words
        config = self.config.replace(vocab_size=new_num_tokens)
        words.weight = _resize_rows(words.weight, new_num_tokens, config.initializer_range)
        words.num_embeddings = new_num_tokens
        if self.get_output_embeddings() is not None:
            head: MaskedLMHead = self.predictions  # type: ignore[assignment]
            head.bias = _resize_rows(head.bias, new_num_tokens)
            head.tie(words)
        for module in self.modules():
            if isinstance(module, PretrainedAlbert):
                # The encoder inside knows the size of its vocabulary, too.
                module.config = config
        return words

    def initialize(self, ready: Iterable[nn.Parameter] = ()) -> None:
        """Initialise as the original: normal(0, initializer_range) cut at two deviations, zero biases, plain norms.

        Args:
            ready: Parameters to leave as they are.

        Source: google-research/albert `modeling.create_initializer`; `nn.init` draws from torch's
        global generator.
        """
        if SkipInitialization.active:
            return
        std = self.config.initializer_range
        skipped = set(ready)
        for module in self.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter in skipped:
                    continue
                # A shared one is drawn once: every draw moves the generator.
                skipped.add(parameter)
                if name == "bias":
                    nn.init.zeros_(parameter)
                elif isinstance(module, nn.LayerNorm):
                    nn.init.ones_(parameter)
                else:
                    nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)

    # --- files ------------------------------------------------------------------------------------

    @classmethod
    def from_tensors(
        cls, config: AlbertConfig, tensors: StateDict, allow_missing: Collection[str], source: str
    ) -> tuple[Self, MatchedTensors]:
        """Create a model from a file's tensors; only parameters missing in the file are initialised.

        Args:
            config: What to build.
            tensors: From the file.
            allow_missing: First parts of parameter names that may be missing.
            source: The file, for messages.

        Returns:
            The model in evaluation mode, and the matched tensors.
        """
        with on_meta_device():
            # Names and shapes are compared before memory is taken.
            matched = load_matching_tensors(cls(config), cls.tied, tensors, allow_missing, source)
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
        use_safetensors: bool | None = None,
        **changes: Any,
    ) -> Self:
        """Load a checkpoint folder: `config.json` and `model.safetensors` (or `pytorch_model.bin`, without unpickling objects).

        A head that the folder lacks is initialised, with a warning in the log, as transformers
        does; so is one of another shape with `ignore_mismatched_sizes`. Everything else must fit
        name by name; heads that the class does not have are left out, and that is logged.

        Args:
            folder: The folder; a run, which stands for its `best/` or else `final/`; or a model of
                the Hugging Face hub as `org/name`, which is downloaded once.
            allow_missing: First parts of parameter names that may be missing although `strict`,
                without a warning.
            revision: Branch, tag or commit of a model of the hub. Default: its main branch.
            pretrained_model_name_or_path: transformers' name of `folder`.
            strict: Refuse a folder that lacks a head.
            config: Configuration to use in place of the folder's: ours, transformers', or a path.
            dtype: Of the parameters: a torch dtype or its name, or "auto" for that of the file.
                Default: float32.
            torch_dtype: Its older name.
            device_map: A device, or "auto" for the GPU if there is one. Default: the CPU.
            ignore_mismatched_sizes: Initialise heads of another shape.
            use_safetensors: True for safetensors alone, False for `pytorch_model.bin` alone.
                Default: safetensors first.
            **changes: Configuration fields to set otherwise, for example `hidden_dropout_prob=0.1`
                or `num_labels=3`; and keywords of transformers that change nothing here, such as
                `low_cpu_mem_usage`.

        Returns:
            The model in evaluation mode.

        Raises:
            DataError: not-found or bad-file. ConfigError: as `AlbertConfig.from_pretrained`;
                bad-value for a keyword of transformers that cannot be honoured; no-device.
            CheckpointError: missing-file, corrupt or weights-mismatch.
            MachineError: unreachable.
        """
        placement = resolve_placement(dtype, torch_dtype, device_map)
        changes = config_changes_among(changes)
        folder = pretrained_model_name_or_path if folder is None else folder
        path = local_folder(folder, revision, use_safetensors=use_safetensors)  # type: ignore[arg-type]
        model_config = resolve_config(config, path)
        if changes:
            model_config = model_config.with_changes(**changes)
        tensors = read_tensors(path, use_safetensors)
        if cls.tied:
            check_decoder_is_tied(
                tensors, model_config.foreign.get("tie_word_embeddings"), str(path)
            )
        fresh: list[str] = []
        if not strict:
            with on_meta_device():
                # For names and shapes alone
                parameters = cls(model_config).state_dict()
            tensors, fresh = tensors_to_load_and_missing_heads(
                parameters, cls.tied, tensors, ignore_mismatched_sizes
            )
        model, matched = cls.from_tensors(
            model_config, tensors, (*allow_missing, *fresh), str(path)
        )
        if matched.left_out:
            unused = ", ".join(matched.left_out)
            logger.info("%s has no use for these tensors of `%s`: %s", cls.__name__, path, unused)
        if new := ", ".join(name for name in matched.fresh if name in fresh):
            advice = "`%s` has no weights for %s: initialised afresh, train them before use: %s"
            logger.warning(advice, path, cls.__name__, new)
        if allowed := ", ".join(name for name in matched.fresh if name not in fresh):
            logger.info("not in `%s`, initialised afresh: %s", path, allowed)
        stored = next(
            (tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()),
            torch.float32,
        )
        return model.to(placement.device, placement.dtype or stored)

    def save_pretrained(
        self,
        folder: str | Path,
        tokenizer: Any = None,
        *,
        state_dict: StateDict | None = None,
        max_shard_size: int | str | None = None,
        is_main_process: bool = True,
        **options: Any,
    ) -> None:
        """Write `config.json` and, in fp32, `model.safetensors`, each whole or not at all, as transformers reads them.

        With `parameter_sharing` attention or ffn, which transformers has no name for, what the
        layers share is stored for each of them, and that is logged; loading shares it again.

        Args:
            folder: Created if missing; files of other names in it are left alone.
            tokenizer: An `AlbertTokenizer` to save with the weights; `config.json` then names its
                special ids.
            state_dict: Tensors to write in place of the model's own, all of them.
            max_shard_size: Bytes of a file at most, or a text such as "2GB": larger weights are
                several files with an index. Default: one file, of at most 1 GB for the published
                sizes.
            is_main_process: False writes nothing.
            **options: Keywords of transformers that ask for nothing else, such as
                `safe_serialization=True`.

        Raises:
            ConfigError: bad-value, unknown-name. CheckpointError: weights-mismatch for other names
                in `state_dict`.
        """
        check_saving_options(options)
        if not is_main_process:
            return
        parameters = self.state_dict()
        if state_dict is not None:
            parameters = dict(
                load_matching_tensors(self, self.tied, state_dict, (), "state_dict").tensors
            )
        path, config = Path(folder), self.config
        if config.parameter_sharing in ("attention", "ffn"):
            advice = "`%s` holds the shared %s once for each of the %d layers, because transformers cannot share it"
            logger.info(advice, path, config.parameter_sharing, config.num_hidden_layers)
        tensors: dict[str, Tensor] = {}
        stored: set[int] = set()
        for name, tensor in parameters.items():
            tensor = tensor.detach().to("cpu", torch.float32).contiguous()
            # safetensors refuses tensors that share memory.
            tensors[name] = tensor.clone() if tensor.data_ptr() in stored else tensor
            stored.add(tensor.data_ptr())
        write_shards(path, tensors, max_shard_size)
        ids: dict[str, int] = {}
        if tokenizer is not None:
            tokenizer.save_pretrained(path)
            ids = dict(
                pad_token_id=tokenizer.pad_id,
                bos_token_id=tokenizer.cls_id,
                eos_token_id=tokenizer.sep_id,
            )
        save_config_of_fp32(path, config, type(self), **ids)

    def push_to_hub(
        self,
        repo_id: str,
        tokenizer: Any = None,
        private: bool | None = None,
        commit_message: str = "Upload model",
    ) -> str:
        """Upload the model to the Hugging Face hub, as the account that `hf auth login` knows.

        Args:
            repo_id: `org/name`; created if there is none.
            tokenizer: An `AlbertTokenizer` to upload with the weights.
            private: Whether a new repository is private. Default: as the organisation says.
            commit_message: First line of the commit.

        Returns:
            The commit's address.

        Raises:
            DataError: not-found. MachineError: unreachable. MissingExtraError: without
                `huggingface_hub`.
        """
        hub = import_huggingface_hub()
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, tokenizer)
            try:
                api = hub.HfApi()
                api.create_repo(repo_id, private=private, exist_ok=True)
                commit = api.upload_folder(
                    repo_id=repo_id, folder_path=folder, commit_message=commit_message or None
                )
            # huggingface_hub's errors, and those of the network below it, have no base of their
            # own.
            except Exception as error:
                raise explain_hub_error(error, repo_id) from error
        return str(commit.commit_url)


def _resize_rows(parameter: Tensor, rows: int, std: float = 0.0) -> nn.Parameter:
    """Return the first `rows` rows of a table or a bias, and new ones where it has fewer: truncated normal, or 0."""
    old_rows = parameter.detach()[:rows]
    new_rows = parameter.new_zeros(rows - len(old_rows), *parameter.shape[1:], requires_grad=False)
    if std:
        nn.init.trunc_normal_(new_rows, std=std, a=-2 * std, b=2 * std)
    return nn.Parameter(torch.cat([old_rows, new_rows]), requires_grad=parameter.requires_grad)


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
        self.pooler = (
            nn.Linear(config.hidden_size, config.hidden_size) if add_pooling_layer else None
        )
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
            positions: int64 [Q] into the T tokens, if only these states are needed; the last layer
                computes no others.
            words: [T, E] in place of the word embeddings of the batch's ids.

        Returns:
            hidden [T, H], or [Q, H], in `compute_dtype`; pooled [N, H] in fp32, as heads (see
            `widen_to_head_dtype`).
        """
        starts = batch.starts
        # First tokens are computed in any case, for the pooler. With six layers, a last one at
        # masked positions alone makes a training step 10 % faster.
        rows = None if positions is None else torch.cat([starts, positions])
        embedded = self.embeddings(batch, words)
        embedded = embedded.to(self.compute_dtype or embedded.dtype)
        lists = (trace.hidden_states, trace.attentions) if trace else ()
        hidden = self.encoder(embedded, batch, rows, *lists)
        first = hidden.index_select(0, starts) if rows is None else hidden[: len(starts)]
        hidden = hidden if rows is None else hidden[len(starts) :]
        if self.pooler is None:
            return PackedOutput(hidden, None)
        return PackedOutput(hidden, torch.tanh(apply_head(self.pooler, first)))

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
        run = PaddedPass(
            self, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **options
        )
        return run.output(
            BaseModelOutput, last_hidden_state=run.rows(run.hidden), pooler_output=run.pooled
        )
