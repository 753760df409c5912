"""Arguments of `from_pretrained`: transformers' keywords, where they mean something here, and configurations of any year."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from albertkit.config import FOREIGN_KEYS, AlbertConfig, make_config
from albertkit.errors import ConfigError, near_miss

# Accepted because what they ask for is so in any case: the values that change nothing.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "attn_implementation": ("sdpa", "eager", None),  # one attention, with probabilities where they are asked for
    "low_cpu_mem_usage": (True, False, None),
    "trust_remote_code": (True, False, None),  # no code of a folder is ever run
    "use_safetensors": (True, None),
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
    "attn_implementation": ("attention has one implementation, which never computes padding", "leave it out"),
    "use_safetensors": ("model.safetensors is read wherever it is there", "leave it out"),
    "weights_only": ("objects in a pickle are never made", "leave it out"),
    "output_loading_info": ("missing heads are logged as a warning", "use strict=True to make them an error"),
    "from_tf": ("TensorFlow's files are converted first", "albertkit convert CHECKPOINT FOLDER"),
    "from_flax": ("Flax's files are not read", "save the model for PyTorch with transformers before version 5"),
    "state_dict": ("weights come from the folder", "make the class from its config and call load_state_dict"),
    "quantization_config": ("int8 and bf16 are engines", "albertkit.load_engine(model, 'int8')"),
    "load_in_8bit": ("int8 is an engine", "albertkit.load_engine(model, 'int8')"),
    "load_in_4bit": ("weights of 4 bits are not supported", "albertkit.load_engine(model, 'int8')"),
    "gguf_file": ("GGUF files are not read", "name a folder with model.safetensors"),
    "max_memory": ("a model lies on one device", "use device_map='cuda:0'"),
    "offload_folder": ("a model lies on one device", "use device_map='cuda:0'"),
    "offload_state_dict": ("a model lies on one device", "use device_map='cuda:0'"),
    "tp_plan": ("a model lies on one device", "use device_map='cuda:0'"),
    "subfolder": ("a folder is named whole", "put the subfolder into the path; of the hub: hf download NAME --local-dir DIR"),
    "variant": ("weights have one name", "name a folder with model.safetensors"),
    "force_download": ("downloads are kept", "hf download NAME --force-download"),
    "cache_dir": ("downloads lie in the hub's cache", "set the environment variable HF_HOME"),
    "token": ("the account is that of the hub's own login", "run `hf auth login`, or set HF_TOKEN"),
    "use_auth_token": ("the account is that of the hub's own login", "run `hf auth login`, or set HF_TOKEN"),
    "local_files_only": ("the hub's own switch decides", "set the environment variable HF_HUB_OFFLINE=1"),
    "proxies": ("the network library's own variables decide", "set the environment variable HTTPS_PROXY"),
    "mirror": ("the hub's own variables decide", "set the environment variable HF_ENDPOINT"),
}  # fmt: skip
# Keywords of `save_pretrained`, and the values that ask for what is written anyhow.
_SAVING: dict[str, tuple[Any, ...]] = {
    "safe_serialization": (True,), "push_to_hub": (False,), "variant": (), "token": (), "save_peft_format": (True,),
    "save_original_format": (True,),
}  # fmt: skip
_OWN_KEYS = frozenset(field.name for field in dataclasses.fields(AlbertConfig)) - {"foreign"}
_TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True)
class Placing:
    """Device and dtype that a model is loaded to.

    Attributes:
        dtype: Of its parameters; None for that of the file.
        device: Where they are.
    """

    dtype: torch.dtype | None
    device: torch.device


def placing(dtype: Any, torch_dtype: Any, device_map: Any) -> Placing:
    """Read `dtype`, `torch_dtype` and `device_map` (a device, its number or name, "auto", {"": device}) as transformers does."""
    if dtype is not None and torch_dtype is not None and _dtype(dtype) != _dtype(torch_dtype):
        raise ConfigError(
            "bad-value", f"dtype={dtype!r} and torch_dtype={torch_dtype!r} differ", "leave one of them out"
        )
    wanted = dtype if dtype is not None else torch_dtype
    return Placing(torch.float32 if wanted is None else _dtype(wanted), _device(device_map))


def checked_changes(keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration fields among the keywords of `from_pretrained`; what changes nothing is dropped."""
    changes = {}
    for name, value in keywords.items():
        harmless = HARMLESS.get(name, ())
        if any(value is one or value == one for one in harmless):
            continue
        if name in REFUSED and value is not None:
            reason, hint = REFUSED[name]
            raise ConfigError("bad-value", f"from_pretrained({name}={value!r}): {reason}", hint)
        if name in REFUSED:
            continue
        changes[name] = value
    if unknown := [name for name in changes if name not in _OWN_KEYS | FOREIGN_KEYS]:
        own = {"num_labels", "dtype", "device_map", "config", "strict", "revision", "allow_missing"}
        fact = f"from_pretrained has no keyword `{unknown[0]}`, and configurations no such field"
        raise ConfigError("unknown-name", fact, near_miss(unknown[0], _OWN_KEYS | own | set(HARMLESS)))
    return changes


def own_config(config: Any) -> AlbertConfig:
    """Return a configuration of ours: the one given, or transformers' read as ours."""
    if isinstance(config, AlbertConfig):
        return config
    if not callable(getattr(config, "to_dict", None)):
        hint = "albertkit.AlbertConfig.from_pretrained"
        raise ConfigError("bad-value", f"config={config!r} is not a configuration", hint)
    return make_config(config.to_dict(), Path("config"))[0]


def given_config(config: Any, folder: Path) -> AlbertConfig:
    """Return the configuration given to `from_pretrained(config=…)`: ours, transformers', or a path; None: the folder's."""
    if config is None:
        return AlbertConfig.from_pretrained(folder)
    if isinstance(config, str | Path):
        return AlbertConfig.from_pretrained(config)
    return own_config(config)


def check_saving(options: dict[str, Any]) -> None:
    """Refuse keywords of transformers' `save_pretrained` that ask for something else than one safetensors file."""
    for name, value in options.items():
        if name not in _SAVING:
            raise ConfigError("unknown-name", f"save_pretrained has no keyword `{name}`", near_miss(name, _SAVING))
        if value not in (None, *_SAVING[name]):
            fact = f"save_pretrained({name}={value!r}): the weights are written to one model.safetensors"
            raise ConfigError("bad-value", fact, "leave it out")


def _dtype(wanted: Any) -> torch.dtype | None:
    if wanted == "auto":
        return None
    found = wanted if isinstance(wanted, torch.dtype) else _TYPES.get(str(wanted).removeprefix("torch."))
    if found not in _TYPES.values():
        raise ConfigError("bad-value", f"dtype={wanted!r}", near_miss(str(wanted), [*_TYPES, "auto"]))
    return found


def _device(wanted: Any) -> torch.device:
    if isinstance(wanted, dict):
        places = set(map(str, wanted.values()))
        if len(places) != 1:
            fact = f"device_map={wanted!r} names {len(places)} devices, a model lies on one"
            raise ConfigError("bad-value", fact, "use device_map='cuda:0'")
        wanted = next(iter(wanted.values()))
    if wanted is None:
        return torch.device("cpu")
    if wanted in ("auto", "balanced", "balanced_low_0", "sequential"):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        if device.type != "meta":
            torch.empty(0, device=device)  # a GPU that is not there is said now
    except (RuntimeError, TypeError, AssertionError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError("no-device", f"device_map={wanted!r}: {reason}", "leave it out for the CPU") from None
    return device
