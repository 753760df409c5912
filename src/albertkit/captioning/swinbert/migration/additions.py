"""The files that the migration adds: two modules that hand over albertkit's classes, configurations, and the guide."""

import json
from collections.abc import Mapping
from importlib.resources import files

from albertkit.captioning.swinbert.migration.task_scripts import MODEL_FOLDER
from albertkit.errors import DataError

CONFIGS = "src/configs/VidSwinBert"
GUIDE = "ALBERT.md"
_LAYERS = '''"""ALBERT in BERT's place. Written by `albertkit migrate swinbert`; the classes are albertkit's."""

from albertkit.captioning.model import AlbertForImageCaptioning, AlbertImgModel
from albertkit.captioning.swinbert.tokenizer import SwinBertTokenizer as AlbertTokenizer
from albertkit.config import AlbertConfig

__all__ = ["AlbertConfig", "AlbertForImageCaptioning", "AlbertImgModel", "AlbertTokenizer"]
'''
_LOADER = '''"""`get_albert_model(args)`, in place of `get_bert_model`. Written by `albertkit migrate swinbert`."""

from albertkit.captioning.swinbert.loading import get_albert_model

__all__ = ["get_albert_model"]
'''
# What a machine without apex, deepspeed and fairscale trains with; see `optional_packages`.
_PORTABLE = {
    "mixed_precision_method": "apex", "amp_opt_level": 0, "deepspeed_fp16": False, "fairscale_fp16": False,
    "zero_opt_stage": -1, "use_checkpoint": False,
}  # fmt: skip


def added_files(configs: Mapping[str, bytes], portable: bool) -> dict[str, bytes]:
    """Paths, from the checkout's folder, and contents of the files to add.

    Args:
        configs: Names and contents of the files in `src/configs/VidSwinBert`.
        portable: Whether the configurations shall do without apex, deepspeed and fairscale.

    Raises:
        DataError: broken-json for a configuration that is none.
    """
    guide = files("albertkit.captioning.swinbert.migration").joinpath("guide.md").read_text(encoding="utf-8")
    added = {"src/layers/albert/__init__.py": _LAYERS, "src/modeling/load_albert.py": _LOADER, GUIDE: guide}
    for name in sorted(configs):
        if name.endswith(".json") and "albert" not in name:
            path = f"{CONFIGS}/{_albert_name(name, configs)}"
            added[path] = _albert_config(configs[name], f"{CONFIGS}/{name}", portable)
    return {path: text.encode() for path, text in added.items()}


def _albert_name(name: str, configs: Mapping[str, bytes]) -> str:
    """`vatex_8frm_default.json`: `vatex_8frm_albert.json`, as the guide of 2024 has it."""
    stem = name.removesuffix(".json")
    short = stem.removesuffix("_default")
    return f"{stem if short != stem and f'{short}.json' in configs else short}_albert.json"


def _albert_config(content: bytes, path: str, portable: bool) -> str:
    try:
        values = json.loads(content.decode("utf-8-sig"))
    except ValueError as error:
        raise DataError("broken-json", f"`{path}` is not valid JSON: {error}", "correct it, or move it away") from None
    if not isinstance(values, dict):
        raise DataError("broken-json", f"`{path}` does not hold a JSON object", "correct it, or move it away")
    values["model_name_or_path"] = MODEL_FOLDER
    if values.get("output_dir"):
        values["output_dir"] = f"{str(values['output_dir']).rstrip('/')}_albert"
    return json.dumps(values | (_PORTABLE if portable else {}), indent=4, ensure_ascii=False) + "\n"
