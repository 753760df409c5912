"""The files that the migration adds: modules that hand over albertkit's classes, configurations, and the guide."""

import json
from collections.abc import Mapping
from importlib.resources import files

from albertkit.captioning.swinbert.evaluation import DEFAULT_FOLDER
from albertkit.errors import DataError

CONFIGS = "src/configs/VidSwinBert"
GUIDE = "ALBERT.md"
_WRITTEN = "Written by `albertkit migrate swinbert`; the classes are albertkit's."
_HEADS = "MaskedLM MultipleChoice PreTraining QuestionAnswering SequenceClassification TokenClassification".split()
_MODEL_CLASSES = [f"AlbertFor{head}" for head in _HEADS]
# Module of `src/layers/albert` to what it is, and to names and the modules of albertkit that hold them.
_MODULES: dict[str, tuple[str, dict[str, str]]] = {
    "modeling_albert": ("ALBERT's classes, as `modeling_bert` has BERT's.", {
        "AlbertConfig": "captioning.swinbert.classes", "AlbertForImageCaptioning": "captioning.swinbert.classes",
        "AlbertImgModel": "captioning.model", "AlbertModel": "model",
    } | dict.fromkeys(_MODEL_CLASSES, "model")),
    "tokenization_albert": ("The tokenizer.", {"AlbertTokenizer": "captioning.swinbert.tokenizer"}),
    "tokenization_utils": ("The tokenizer's base.", {
        "PreTrainedTokenizer": "captioning.swinbert.tokenizer", "clean_up_tokenization": "captioning.swinbert.tokenizer",
    }),
    "modeling_utils": ("What all models share.", {
        "CONFIG_NAME": "captioning.swinbert.classes", "WEIGHTS_NAME": "captioning.swinbert.classes",
        "PretrainedConfig": "captioning.swinbert.classes", "PreTrainedModel": "model.pretrained",
    }),
    "file_utils": ("Where files are.", {"cached_path": "captioning.swinbert.classes"}),
}  # fmt: skip
_IN_ALBERTKIT = {
    "AlbertTokenizer": "SwinBertTokenizer", "PreTrainedTokenizer": "SwinBertTokenizer", "PretrainedConfig": "AlbertConfig",
    "PreTrainedModel": "PretrainedAlbert",
}  # fmt: skip
_LOADER = f'''"""`get_albert_model(args)`, in place of `get_bert_model`. {_WRITTEN}"""

from albertkit.captioning.swinbert.evaluation import get_albert_folder
from albertkit.captioning.swinbert.loading import get_albert_model

__all__ = ["get_albert_folder", "get_albert_model"]
'''
# What a machine without apex, deepspeed and fairscale trains with; see `optional_packages`.
_PORTABLE = {
    "mixed_precision_method": "apex", "amp_opt_level": 0, "deepspeed_fp16": False, "fairscale_fp16": False,
    "zero_opt_stage": -1, "use_checkpoint": False,
}  # fmt: skip


def added_files(configs: Mapping[str, bytes], portable: bool) -> dict[str, bytes]:
    """Paths, from the checkout's folder, and contents of the files to add."""
    guide = files("albertkit.captioning.swinbert.migration").joinpath("guide.md").read_text(encoding="utf-8")
    added = {**_layers(), "src/modeling/load_albert.py": _LOADER, GUIDE: guide}
    for name in sorted(configs):
        if name.endswith(".json") and "albert" not in name:
            path = f"{CONFIGS}/{_albert_name(name, configs)}"
            added[path] = _albert_config(configs[name], f"{CONFIGS}/{name}", portable)
    return {path: text.encode() for path, text in added.items()}


def _layers() -> dict[str, str]:
    """Return the package `src/layers/albert`: the modules of its BERT twin, thin, over albertkit."""
    folder, files = "src/layers/albert", {}
    for module, (what, names) in _MODULES.items():
        lines = [f'"""{what} {_WRITTEN}"""', ""]
        for name, place in names.items():
            own = _IN_ALBERTKIT.get(name, name)
            lines.append(f"from albertkit.{place} import {own if own == name else f'{own} as {name}'}")
        lines += ["", f"__all__ = {sorted(names)}".replace("'", '"')]
        files[f"{folder}/{module}.py"] = "\n".join(lines) + "\n"
    imports = [f"from .{module} import {', '.join(names)}" for module, (_, names) in _MODULES.items()]
    every = sorted({name for _, names in _MODULES.values() for name in names})
    lines = [f'"""ALBERT in BERT\'s place. {_WRITTEN}"""', "", *imports, "", f"__all__ = {every}".replace("'", '"')]
    return {f"{folder}/__init__.py": "\n".join(lines) + "\n", **files}


def _albert_name(name: str, configs: Mapping[str, bytes]) -> str:
    """`vatex_8frm_default.json`: `vatex_8frm_albert.json`, as the guide of 2024 has it."""
    stem = name.removesuffix(".json")
    short = stem.removesuffix("_default")
    return f"{stem if short != stem and f'{short}.json' in configs else short}_albert.json"


def _albert_config(content: bytes, path: str, portable: bool) -> str:
    try:
        values = json.loads(content.decode("utf-8-sig"))
    except ValueError as error:
        raise DataError("bad-file", f"`{path}` is not valid JSON: {error}", "correct it, or move it away") from None
    if not isinstance(values, dict):
        raise DataError("bad-file", f"`{path}` does not hold a JSON object", "correct it, or move it away")
    values["model_name_or_path"] = DEFAULT_FOLDER
    if values.get("output_dir"):
        values["output_dir"] = f"{str(values['output_dir']).rstrip('/')}_albert"
    return json.dumps(values | (_PORTABLE if portable else {}), indent=4, ensure_ascii=False) + "\n"
