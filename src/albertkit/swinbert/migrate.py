"""`migrate`: show, apply, check and take back what puts ALBERT into a SwinBERT checkout, by a patch of git."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, get_args

from albertkit.command import takes
from albertkit.errors import CheckpointError, ConfigError, DataError, MissingExtraError
from albertkit.files import atomic_file, remove_leftovers, write_file
from albertkit.output.render import print_sections
from albertkit.output.sections import FactList, Result
from albertkit.printable import escape_control_characters, print_note
from albertkit.swinbert.options import DEFAULT_FOLDER, MigrateOptions

# Only these two scripts, at three places: the ALBERT fork of 2024 replaced names in all of src by
# regular expressions, those of BERT's own classes, too.
TASK_SCRIPTS = (
    "src/tasks/run_caption_VidSwinBert.py",
    "src/tasks/run_caption_VidSwinBert_inference.py",
)
_VIDEO = "src/modeling/video_captioning_e2e_vid_swin_bert.py"
PORTABLE = (
    _VIDEO,
    "src/utils/load_save.py",
    "src/evalcap/utils_caption_evaluate.py",
    "src/configs/config.py",
)

# What is replaced in a task script: its name, a pattern that must be found once, and the text in
# its place.
_ALBERT = (
    (
        "the import of get_bert_model",
        rb"from src\.modeling\.load_bert import get_bert_model(?=\s*?$)",
        rb"from src.modeling.load_albert import get_albert_folder, get_albert_model",
    ),
    (
        "the call `= get_bert_model(args)`",
        rb"= get_bert_model\(args\)",
        rb"= get_albert_model(args)",
    ),
    (
        "the assignment of the folder of bert-base-uncased",
        rb"(\w+)\.model_name_or_path = '[^'\n]*bert-base-uncased/?'",
        rb"\1.model_name_or_path = get_albert_folder(args, \1)",
    ),
)
# SwinBERT exempts the norms called LayerNorm from weight decay; ALBERT's full_layer_layer_norm is
# another name.
_DECAY = (
    rb"(no_decay = \['bias', 'LayerNorm\.bias', 'LayerNorm\.weight')\]",
    rb"\1, 'layer_norm.weight']",
)

# SwinBERT without its container: on any device, and packages imported where they are used; see
# `optional_packages`.
_PACKAGE_IMPORT = re.compile(
    rb"^(?:import (?P<package>deepspeed)"
    rb"|from (?P<module>(?:apex|azureml|fairscale|\.coco_caption|\.cider)[\w.]*) import (?P<name>\w+)(?: as (?P<alias>\w+))?)",
    re.MULTILINE,
)
_ANY_DEVICE = rb"'cuda' if torch.cuda.is_available() else 'cpu'"
_DEVICE = (
    (
        rb"args\.device = torch\.device\(args\.device\)",
        rb"args.device = available_device(args.device)",
    ),
    (rb"(\"--device\", type=str, default=)'cuda'", rb"\1" + _ANY_DEVICE),
)


class Edited(NamedTuple):
    """Content of an edited script, and what in it was not as expected."""

    content: bytes
    unexpected: list[str]


def edit_to_load_albert(content: bytes) -> Edited:
    """Make a task script load ALBERT."""
    unknown = []
    for description, pattern, text in _ALBERT:
        content, count = re.subn(pattern, text, content, flags=re.MULTILINE)
        if count != 1:
            unknown.append(f"{description} is there {count} times and not once")
    if not unknown:
        for word in ("get_bert_model", "bert-base-uncased"):
            if word.encode() in content:
                unknown.append(f"`{word}` is used elsewhere, too")
    return Edited(content, unknown)


def edit_weight_decay(content: bytes) -> Edited:
    """Exempt ALBERT's norms from weight decay; the note says where the script has no such list."""
    content, count = re.subn(*_DECAY, content)
    note = "its list `no_decay` is not as in SwinBERT: ALBERT's full_layer_layer_norm is decayed"
    return Edited(content, [] if count == 1 else [note])


def edit_to_run_anywhere(content: bytes, path: str) -> bytes:
    """Make a file run on the devices that are there, and import optional packages only where they are used."""
    device = b"next(self.parameters()).device" if path == _VIDEO else _ANY_DEVICE
    content = content.replace(b".cuda()", b".to(" + device + b")")
    for pattern, text in _DEVICE:
        content = re.sub(pattern, text, content)
    names = b"available_device, optional" if b"available_device(" in content else b"optional"
    # A patch that changes line ends would touch every line
    newline = b"\r\n" if b"\r\n" in content else b"\n"
    first = _PACKAGE_IMPORT.search(content)
    if first is not None:
        line = b"from albertkit.swinbert.optional_packages import " + names + newline
        content = content[: first.start()] + line + content[first.start() :]
    return _PACKAGE_IMPORT.sub(_lazy_import_statement, content)


def check_python(content: bytes, path: str) -> None:
    """Refuse a source that this version of Python cannot read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old sources write "\\d" and the like
            compile(content, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise DataError(
            "unsupported",
            f"`{path}` cannot be read as Python: {error}",
            "restore it",
        ) from None


def _lazy_import_statement(match: re.Match[bytes]) -> bytes:
    """Return the assignment in an import's place."""
    if match["package"]:
        return b'%b = optional("%b")' % (match["package"], match["package"])
    module = (
        b"src.evalcap" + match["module"] if match["module"].startswith(b".") else match["module"]
    )
    return b'%b = optional("%b", "%b")' % (match["alias"] or match["name"], module, match["name"])


CONFIGS = "src/configs/VidSwinBert"
GUIDE = "ALBERT.md"
_WRITTEN = "Written by `albertkit migrate swinbert`; the classes are albertkit's."
_HEADS = "MaskedLM MultipleChoice PreTraining QuestionAnswering SequenceClassification TokenClassification".split()
_MODEL_CLASSES = [f"AlbertFor{head}" for head in _HEADS]
# Module of `src/layers/albert` to what it is, and to names and the modules of albertkit that hold
# them.
_MODULES: dict[str, tuple[str, dict[str, str]]] = {
    "modeling_albert": (
        "ALBERT's classes, as `modeling_bert` has BERT's.",
        {
            "AlbertConfig": "swinbert.classes",
            "AlbertForImageCaptioning": "swinbert.classes",
            "AlbertImgModel": "captioning.model",
            "AlbertModel": "model",
        }
        | dict.fromkeys(_MODEL_CLASSES, "model"),
    ),
    "tokenization_albert": ("The tokenizer.", {"AlbertTokenizer": "swinbert.classes"}),
    "tokenization_utils": (
        "The tokenizer's base.",
        {
            "PreTrainedTokenizer": "swinbert.classes",
            "clean_up_tokenization": "swinbert.classes",
        },
    ),
    "modeling_utils": (
        "What all models share.",
        {
            "CONFIG_NAME": "swinbert.classes",
            "WEIGHTS_NAME": "swinbert.classes",
            "PretrainedConfig": "swinbert.classes",
            "PreTrainedModel": "model.pretrained",
        },
    ),
    "file_utils": ("Where files are.", {"cached_path": "swinbert.classes"}),
}
_IN_ALBERTKIT = {
    "AlbertTokenizer": "SwinBertTokenizer",
    "PreTrainedTokenizer": "SwinBertTokenizer",
    "PretrainedConfig": "AlbertConfig",
    "PreTrainedModel": "PretrainedAlbert",
}
_LOADER = f'''"""`get_albert_model(args)`, in place of `get_bert_model`. {_WRITTEN}"""

from albertkit.swinbert.scripts import get_albert_folder, get_albert_model

__all__ = ["get_albert_folder", "get_albert_model"]
'''
# What a machine without apex, deepspeed and fairscale trains with; see `optional_packages`.
_PORTABLE = {
    "mixed_precision_method": "apex",
    "amp_opt_level": 0,
    "deepspeed_fp16": False,
    "fairscale_fp16": False,
    "zero_opt_stage": -1,
    "use_checkpoint": False,
}


def added_files(configs: Mapping[str, bytes], portable: bool) -> dict[str, bytes]:
    """Return the paths, from the checkout's folder, and the contents of the files to add."""
    guide = files("albertkit.swinbert").joinpath("guide.md").read_text(encoding="utf-8")
    # The package `src/layers/albert`: the modules of its BERT twin, thin, over albertkit.
    modules = {}
    imports = []
    every: set[str] = set()
    for module, (description, names) in _MODULES.items():
        lines = [f'"""{description} {_WRITTEN}"""', ""]
        for name, module_path in names.items():
            class_name = _IN_ALBERTKIT.get(name, name)
            renamed = "" if class_name == name else f" as {name}"
            lines.append(f"from albertkit.{module_path} import {class_name}{renamed}")
        lines += ["", f"__all__ = {sorted(names)}".replace("'", '"')]
        modules[f"src/layers/albert/{module}.py"] = "\n".join(lines) + "\n"
        imports.append(f"from .{module} import {', '.join(names)}")
        every.update(names)
    lines = [f'"""ALBERT in BERT\'s place. {_WRITTEN}"""', "", *imports, ""]
    lines.append(f"__all__ = {sorted(every)}".replace("'", '"'))
    added = {
        "src/layers/albert/__init__.py": "\n".join(lines) + "\n",
        **modules,
        "src/modeling/load_albert.py": _LOADER,
        GUIDE: guide,
    }
    for name in sorted(configs):
        if name.endswith(".json") and "albert" not in name:
            # `vatex_8frm_albert.json` for `vatex_8frm_default.json`, as the guide of 2024 has it
            stem = name.removesuffix(".json")
            short = stem.removesuffix("_default")
            if short != stem and f"{short}.json" in configs:
                short = stem
            path = f"{CONFIGS}/{short}_albert.json"
            added[path] = _albert_config_json(configs[name], f"{CONFIGS}/{name}", portable)
    return {path: text.encode() for path, text in added.items()}


def _albert_config_json(content: bytes, path: str, portable: bool) -> str:
    try:
        values = json.loads(content.decode("utf-8-sig"))
    except ValueError as error:
        raise DataError(
            "bad-file",
            f"`{path}` is not valid JSON: {error}",
            "correct it, or move it away",
        ) from None
    if not isinstance(values, dict):
        raise DataError(
            "bad-file",
            f"`{path}` does not hold a JSON object",
            "correct it, or move it away",
        )
    values["model_name_or_path"] = DEFAULT_FOLDER
    if values.get("output_dir"):
        values["output_dir"] = f"{str(values['output_dir']).rstrip('/')}_albert"
    return json.dumps(values | (_PORTABLE if portable else {}), indent=4, ensure_ascii=False) + "\n"


PATCH = ".albertkit-migration.patch"
Contents = Mapping[str, bytes | None]  # path to content; None: no such file
Action = Literal["diff", "apply", "revert", "check"]


@dataclass(frozen=True)
class FileChange:
    """A file of the checkout, and its contents; None: no such file."""

    path: str
    # Before the migration, with the edits that were made since in other places
    original: bytes | None
    current: bytes | None
    target: bytes | None


@dataclass(frozen=True)
class MigrationReport(Result):
    """The changes that were, or would be, made.

    Attributes:
        checkout: The folder.
        action: The action.
        migrated: Whether the checkout has ALBERT in BERT's place now.
        portable: Whether the changes of `--portable` are, or would be, among them.
        changed: Files whose content was, or would be, replaced.
        added: Files that were, or would be, created.
        removed: Files that were deleted.
        notes: Places that are not as in SwinBERT.
        diff: The same as a unified diff, that `patch -p1` and `git apply` understand.
    """

    checkout: Path
    action: Action
    migrated: bool
    portable: bool
    changed: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    notes: tuple[str, ...]
    diff: str

    @property
    def exit_status(self) -> int:
        """Return 1 where `--check` finds anything left to apply."""
        return int(self.action == "check" and not self.migrated)

    @property
    def readable_diff(self) -> str:
        """Return the diff with a sign in the place of bytes that are no UTF-8."""
        return self.diff.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return super().to_dict() | {"diff": self.readable_diff}


@takes(MigrateOptions)
def migrate_checkout(options: MigrateOptions) -> MigrationReport:
    """Put ALBERT into BERT's place in a checkout of SwinBERT, or take that back.

    A few places of the two task scripts are replaced, and files are added; `src/layers/bert` is
    never touched. Applying twice is the same as once. Killed at any moment, the same call or
    `revert` goes on. The patch that leads back lies in `.albertkit-migration.patch` of the
    checkout; edits made since in other places stay.
    """
    actions: list[Action] = [action for action in get_args(Action) if getattr(options, action)]
    if len(actions) > 1:
        raise ConfigError(
            "bad-value",
            f"--{' and --'.join(actions)} cannot be combined",
            "choose one of them",
        )
    action: Action = actions[0] if actions else "diff"
    checkout = Path(options.checkout)
    if not (checkout / "src" / "tasks").is_dir():
        raise DataError(
            "not-found",
            f"no `src/tasks` in `{checkout}`",
            "name the folder of a checkout of SwinBERT",
        )
    patch = StoredPatch(checkout)
    portable = options.portable or patch.is_portable
    notes: list[str] = []
    originals = _read_originals(checkout, patch, action, options.force, notes)
    targets: Contents = {}
    if action != "revert":
        targets = _migrate_files(originals, portable, options.force, notes)
    files = []
    for path in (*targets, *(path for path in originals if path not in targets)):
        current = _read_bytes(checkout / path)
        original = originals.get(path, current)
        files.append(FileChange(path, original, current, targets.get(path, original)))
    if action != "revert":
        _check_additions(files, options.force)
    changes = [file for file in files if file.current != file.target]
    if action in ("apply", "revert"):
        for folder in {checkout, *((checkout / file.path).resolve().parent for file in files)}:
            remove_leftovers(folder)
    if action == "apply" and changes:
        if patch.paths:  # one patch leads back: that of before is taken back first
            # Files that others import come first, so they go last.
            for file in reversed(files):
                _write_or_delete(checkout / file.path, file.original)
        way_back = unified_diff(
            {file.path: file.original for file in files},
            {file.path: file.target for file in files},
        )
        patch.store(way_back, portable)
        for file in files:
            _write_or_delete(checkout / file.path, file.target)
    if action == "revert":
        for file in files:
            _write_or_delete(checkout / file.path, file.target)
        for path in patch.paths:
            folder = (checkout / path).parent
            if folder.is_dir() and all(entry.name == "__pycache__" for entry in folder.iterdir()):
                shutil.rmtree(folder)  # it was added, and Python compiled its modules since
        if not patch.paths:
            notes.append("there is no patch of a migration here: nothing to take back")
        patch.remove()
    diff = unified_diff(
        {file.path: file.current for file in changes}, {file.path: file.target for file in changes}
    )
    return MigrationReport(
        checkout=checkout,
        action=action,
        migrated=action == "apply" or (action != "revert" and not changes),
        portable=portable,
        changed=tuple(
            file.path for file in changes if file.current is not None and file.target is not None
        ),
        added=tuple(file.path for file in changes if file.current is None),
        removed=tuple(file.path for file in changes if file.target is None),
        notes=tuple(notes),
        diff=diff.decode("utf-8", "surrogateescape"),
    )


def _read_originals(
    checkout: Path,
    patch: "StoredPatch",
    action: Action,
    force: bool,
    notes: list[str],
) -> dict[str, bytes | None]:
    """Return the files that a migration changes or reads, as they were before it."""
    paths = patch.paths
    if action != "revert":
        configs = [
            file.relative_to(checkout).as_posix() for file in (checkout / CONFIGS).glob("*.json")
        ]
        portable_files = [path for path in PORTABLE if (checkout / path).exists()]
        paths = [
            *TASK_SCRIPTS,
            *sorted({*portable_files, *configs, *patch.paths} - {*TASK_SCRIPTS}),
        ]
    originals: dict[str, bytes | None] = {}
    for path in paths:
        content = _read_bytes(checkout / path)
        if content is None and path in TASK_SCRIPTS:
            raise DataError(
                "not-found",
                f"no `{checkout / path}`",
                "name the folder of a checkout of SwinBERT",
            )
        try:
            originals[path] = patch.original(path, content)
        except CheckpointError:
            if action == "revert" or (not force and path in (*TASK_SCRIPTS, *PORTABLE)):
                raise
            notes.append(f"left as it was edited: {path}")
    return originals


def _migrate_files(
    before: Contents,
    portable: bool,
    force: bool,
    notes: list[str],
) -> dict[str, bytes | None]:
    """Return the files as they shall be, those first that others import."""
    # Nothing is written before all is known to work.
    configs = {
        path.rpartition("/")[2]: content
        for path, content in before.items()
        if path.startswith(CONFIGS)
    }
    added = added_files(
        {name: content for name, content in configs.items() if content is not None}, portable
    )
    skipped_paths = {note.removeprefix("left as it was edited: ") for note in notes}
    after: dict[str, bytes | None] = {
        path: content for path, content in added.items() if path not in skipped_paths
    }
    for path in (*PORTABLE, *TASK_SCRIPTS):
        content = before.get(path)
        unknown = list[str]()
        if content is None:
            continue
        if path in TASK_SCRIPTS:
            content, unknown = edit_to_load_albert(content)
            if unknown and not force:
                raise DataError(
                    "unsupported",
                    f"`{path}` is not as in SwinBERT: {'; '.join(unknown)}",
                    "look at --force --diff, which shows the edits that can be made all the same",
                )
        if path == TASK_SCRIPTS[0]:
            content, facts = edit_weight_decay(content)
            unknown += facts
        notes += [f"{path}: {fact}" for fact in unknown]
        content = edit_to_run_anywhere(content, path) if portable else content
        check_python(content, path)
        after[path] = content
    return after


def _check_additions(files: list[FileChange], force: bool) -> None:
    """Refuse to write over files that were there before the migration."""
    for file in files:
        is_added = file.path not in (*TASK_SCRIPTS, *PORTABLE)
        if is_added and file.original not in (None, file.target) and not force:
            raise CheckpointError(
                "exists",
                f"`{file.path}` is there already, with another content",
                "move it away, or write over it with --force; --revert brings it back",
            )


def _read_bytes(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


def _write_or_delete(file: Path, content: bytes | None) -> None:
    """Write a file, whole and with the permissions it had; or delete it. One that has the content is left as it is."""
    target = file.resolve()  # a link stays a link
    if _read_bytes(target) == content:
        return
    if content is None:
        target.unlink()
        return
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    with atomic_file(target) as stream:
        stream.write(content)
        # Before the file gets its name: a script stays executable.
        if mode is not None:
            os.chmod(stream.name, mode)


def show_migration(report: MigrationReport) -> None:
    """Print a `MigrationReport`: the diff in colours on a terminal, elsewhere to the byte, for `git apply`."""
    for note in report.notes:
        print_note(note)
    if report.action != "diff":
        hidden = ("diff", "notes")
        print_sections(
            [
                FactList(
                    {name: value for name, value in report.to_dict().items() if name not in hidden}
                )
            ]
        )
    elif report.migrated:
        print_note("nothing left to change")
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.syntax import Syntax

        text = escape_control_characters(report.readable_diff)
        Console().print(Syntax(text, "diff", theme="ansi_dark", background_color="default"))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(report.diff.encode("utf-8", "surrogateescape"))


def unified_diff(before: Contents, after: Contents) -> bytes:
    """Return a diff that `git apply` and `patch -p1` understand."""
    with TemporaryDirectory() as folder:
        for side, contents in (("a", before), ("b", after)):
            (Path(folder) / side).mkdir()
            for path, content in contents.items():
                _write_with_parents(Path(folder) / side / path, content)
        return _run_git(
            folder,
            "diff",
            "--no-index",
            "--no-prefix",
            "--no-color",
            "--text",
            "a",
            "b",
        ).stdout


class StoredPatch:
    """The patch of a checkout's migration, which leads from the original files to the migrated ones.

    It is stored before the first file is changed, so that a killed process leaves nothing that
    cannot be taken back.
    """

    def __init__(self, checkout: Path) -> None:
        self._file = checkout / PATCH
        self.paths: list[str] = []
        self.is_portable = False
        if not self._file.exists():
            return
        self.is_portable = b"--portable" in self._file.read_bytes().partition(b"\n")[0]
        # -z: paths come as they are, whatever signs are in them.
        numbers = _run_git(checkout, "apply", "--numstat", "-z", PATCH)
        self.paths = [
            entry.split("\t")[2] for entry in numbers.stdout.decode().split("\0") if entry
        ]
        outside = any(
            PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts
            for path in self.paths
        )
        if numbers.returncode or outside:
            raise CheckpointError(
                "corrupt",
                f"`{PATCH}` is damaged",
                "restore the files with your version control, then delete the patch",
            )

    def store(self, diff: bytes, portable: bool) -> None:
        """Write the patch; git passes over its first line."""
        command = b"albertkit migrate swinbert --apply" + (b" --portable" if portable else b"")
        write_file(self._file, command + b"\n" + diff)

    def remove(self) -> None:
        """Delete the patch."""
        self._file.unlink(missing_ok=True)

    def original(self, path: str, content: bytes | None) -> bytes | None:
        """Return the content of a file before the migration, with the edits that were made since in other places."""
        if path not in self.paths:
            return content
        with TemporaryDirectory() as folder:
            file = Path(folder) / path
            command = ("apply", f"--include={path}", str(self._file.absolute()))
            _write_with_parents(file, content)
            if _run_git(folder, *command, "-R").returncode == 0:
                return _read_bytes(file)
            # A killed process had not come to this file
            if _run_git(folder, *command, "--check").returncode == 0:
                return content
        raise CheckpointError(
            "exists",
            f"`{path}` was edited since the migration, in the places that it changed",
            "keep a copy of your edits, and restore the file with your version control; or move away one that was added",
        )


def _write_with_parents(file: Path, content: bytes | None) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if content is not None:
        file.write_bytes(content)


def _run_git(folder: str | Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder, without the settings of the user and of a repository around it."""
    folder = Path(folder).absolute()
    settings = {
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
        "GIT_CONFIG_NOSYSTEM": "1",
        "HOME": str(folder),
    }
    # git reads settings from all of these, and speaks the language of the user.
    settings |= {"XDG_CONFIG_HOME": str(folder), "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("GIT_")
    } | settings
    try:
        return subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise MissingExtraError(
            "not-installed",
            "git is not installed",
            "install it: the migration uses it",
        ) from None
