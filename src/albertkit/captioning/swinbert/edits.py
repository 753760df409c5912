"""The places of SwinBERT's sources that the migration changes, to the byte, and the files that it adds."""

import json
import re
import warnings
from collections.abc import Mapping
from importlib.resources import files

from albertkit.captioning.swinbert.options import DEFAULT_FOLDER
from albertkit.errors import DataError

TASK_SCRIPTS = ("src/tasks/run_caption_VidSwinBert.py", "src/tasks/run_caption_VidSwinBert_inference.py")
_VIDEO = "src/modeling/video_captioning_e2e_vid_swin_bert.py"
PORTABLE = (_VIDEO, "src/utils/load_save.py", "src/evalcap/utils_caption_evaluate.py", "src/configs/config.py")

# What is replaced in a task script: its name, a pattern that must be found once, and the text in its place.
_ALBERT = (
    (
        "the import of get_bert_model",
        rb"from src\.modeling\.load_bert import get_bert_model(?=\s*?$)",
        rb"from src.modeling.load_albert import get_albert_folder, get_albert_model",
    ),
    ("the call `= get_bert_model(args)`", rb"= get_bert_model\(args\)", rb"= get_albert_model(args)"),
    (
        "the assignment of the folder of bert-base-uncased",
        rb"(\w+)\.model_name_or_path = '[^'\n]*bert-base-uncased/?'",
        rb"\1.model_name_or_path = get_albert_folder(args, \1)",
    ),
)
# SwinBERT exempts the norms called LayerNorm from weight decay; ALBERT's full_layer_layer_norm is another name.
_DECAY = (rb"(no_decay = \['bias', 'LayerNorm\.bias', 'LayerNorm\.weight')\]", rb"\1, 'layer_norm.weight']")

# SwinBERT without its container: on any device, and packages imported where they are used; see `optional_packages`.
_PACKAGE_IMPORT = re.compile(
    rb"^(?:import (?P<package>deepspeed)"
    rb"|from (?P<module>(?:apex|azureml|fairscale|\.coco_caption|\.cider)[\w.]*) import (?P<name>\w+)(?: as (?P<alias>\w+))?)",
    re.MULTILINE,
)
_ANY_DEVICE = rb"'cuda' if torch.cuda.is_available() else 'cpu'"
_DEVICE = (
    (rb"args\.device = torch\.device\(args\.device\)", rb"args.device = available_device(args.device)"),
    (rb"(\"--device\", type=str, default=)'cuda'", rb"\1" + _ANY_DEVICE),
)


def albert_edits(content: bytes) -> tuple[bytes, list[str]]:
    """Make a task script load ALBERT."""
    unknown = []
    for what, pattern, text in _ALBERT:
        content, count = re.subn(pattern, text, content, flags=re.MULTILINE)
        if count != 1:
            unknown.append(f"{what} is there {count} times and not once")
    unknown += [
        f"`{word}` is used elsewhere, too"
        for word in ("get_bert_model", "bert-base-uncased")
        if word.encode() in content and not unknown
    ]
    return content, unknown


def decay_edits(content: bytes) -> tuple[bytes, list[str]]:
    """Exempt ALBERT's norms from weight decay; the note says where the script has no such list."""
    content, count = re.subn(*_DECAY, content)
    note = "its list `no_decay` is not as in SwinBERT: ALBERT's full_layer_layer_norm is decayed"
    return content, [] if count == 1 else [note]


def portable_edits(content: bytes, path: str) -> bytes:
    """Make a file run on the devices that are there, and import optional packages only where they are used."""
    device = b"next(self.parameters()).device" if path == _VIDEO else _ANY_DEVICE
    content = content.replace(b".cuda()", b".to(" + device + b")")
    for pattern, text in _DEVICE:
        content = re.sub(pattern, text, content)
    names = b"available_device, optional" if b"available_device(" in content else b"optional"
    newline = b"\r\n" if b"\r\n" in content else b"\n"
    first = _PACKAGE_IMPORT.search(content)
    if first is not None:
        line = b"from albertkit.captioning.swinbert.optional_packages import " + names + newline
        content = content[: first.start()] + line + content[first.start() :]
    return _PACKAGE_IMPORT.sub(_assignment, content)


def check_python(content: bytes, path: str) -> None:
    """Refuse a source that this version of Python cannot read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old sources write "\\d" and the like
            compile(content, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise DataError("unsupported", f"`{path}` cannot be read as Python: {error}", "restore it") from None


def _assignment(found: re.Match[bytes]) -> bytes:
    """Return the assignment in an import's place."""
    if found["package"]:
        return b'%b = optional("%b")' % (found["package"], found["package"])
    module = b"src.evalcap" + found["module"] if found["module"].startswith(b".") else found["module"]
    return b'%b = optional("%b", "%b")' % (found["alias"] or found["name"], module, found["name"])


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

from albertkit.captioning.swinbert.loading import get_albert_folder, get_albert_model

__all__ = ["get_albert_folder", "get_albert_model"]
'''
# What a machine without apex, deepspeed and fairscale trains with; see `optional_packages`.
_PORTABLE = {
    "mixed_precision_method": "apex", "amp_opt_level": 0, "deepspeed_fp16": False, "fairscale_fp16": False,
    "zero_opt_stage": -1, "use_checkpoint": False,
}  # fmt: skip


def added_files(configs: Mapping[str, bytes], portable: bool) -> dict[str, bytes]:
    """Return the paths, from the checkout's folder, and the contents of the files to add."""
    guide = files("albertkit.captioning.swinbert").joinpath("guide.md").read_text(encoding="utf-8")
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
    """Return `vatex_8frm_albert.json` for `vatex_8frm_default.json`, as the guide of 2024 has it."""
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
