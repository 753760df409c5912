"""The places of SwinBERT's sources that the migration changes. Every other byte stays: line ends, encoding, spacing."""

import re
import warnings

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
