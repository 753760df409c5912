"""The places of a SwinBERT task script where BERT is named: its loader's import, the call, the model's folder, weight decay."""

import ast
import itertools
import tokenize

from albertkit.captioning.swinbert.evaluation import DEFAULT_FOLDER
from albertkit.captioning.swinbert.migration.source import Edit, PythonSource, replaced

TASK_SCRIPTS = ("src/tasks/run_caption_VidSwinBert.py", "src/tasks/run_caption_VidSwinBert_inference.py")
BERT_FOLDER = "bert-base-uncased"
_IMPORT = ("from", "src", ".", "modeling", ".", "load_{}", "import", "get_{}_model", "\n")
_IMPORTED = (
    "from",
    "src",
    ".",
    "modeling",
    ".",
    "load_albert",
    "import",
    "get_albert_folder",
    ",",
    "get_albert_model",
    "\n",
)
_CALL = ("=", "get_{}_model", "(", "args", ")")
_CHOSEN = ("get_albert_folder", "(", "args", ",", "train_args", ")")
_CHOSEN_BEFORE = (
    "args",
    ".",
    "model_name_or_path",
    "or",
)  # what an earlier albertkit wrote, and ALBERT's folder behind it
_NO_DECAY = ("no_decay", "=", "[", "'bias'", ",", "'LayerNorm.bias'", ",", "'LayerNorm.weight'")
_ALBERT_NORM = "'layer_norm.weight'"  # ALBERT's full_layer_layer_norm


def albert_edits(source: PythonSource) -> tuple[list[Edit], list[str]]:
    """What makes a task script load ALBERT.

    Of a script that has been edited before, by this or by hand, only what is left to do.

    Returns:
        The edits, and everything about the file that is not as in SwinBERT; empty where the script is known.
    """
    edits: list[Edit] = []
    unknown: list[str] = []
    seen: list[tokenize.TokenInfo] = []
    for what, pattern, done in (
        ("import of get_bert_model", _IMPORT, _IMPORTED),
        ("call `= get_bert_model(args)`", _CALL, None),
    ):
        old = source.find(*(part.format("bert") for part in pattern))
        before = source.find(*(part.format("albert") for part in pattern))
        new = source.find(*done) if done else []
        if len(old) + len(before) + len(new) != 1:
            unknown.append(f"the {what} is there {len(old) + len(before) + len(new)} times and not once")
        seen += [token for run in old for token in run]
        for run in old + (before if done else []):
            for token, part in zip(run, pattern, strict=True):
                text = part.format("albert")
                if done and part == "get_{}_model":
                    text = f"get_albert_folder, {text}"
                if text != token.string:
                    edits.append(replaced(token, text))
    if beyond := [run[0] for run in source.find("get_bert_model") if run[0] not in seen]:
        unknown.append(f"get_bert_model is used in line {beyond[0].start[0]} too")
    folders, done_folders = _model_folders(source)
    if len(folders) + done_folders != 1:
        unknown.append(f"the folder of {BERT_FOLDER} is assigned {len(folders) + done_folders} times and not once")
    return edits + folders, unknown


def decay_edits(source: PythonSource) -> tuple[list[Edit], list[str]]:
    """Return the edit that exempts ALBERT's norms from weight decay, as SwinBERT exempts those called LayerNorm.

    Returns:
        The edits, and a note where the script has no such list.
    """
    runs = source.find(*_NO_DECAY)
    if len(runs) != 1:
        return [], ["its list `no_decay` is not as in SwinBERT: ALBERT's full_layer_layer_norm is decayed"]
    after = source.tokens[source.tokens.index(runs[0][-1]) + 2]
    if after.string == _ALBERT_NORM:
        return [], []
    return [replaced(runs[0][-1], f"{runs[0][-1].string}, {_ALBERT_NORM}")], []


def _model_folders(source: PythonSource) -> tuple[list[Edit], int]:
    """Edits of assignments to `….model_name_or_path` of BERT's folder; how many such assignments ask for the run's own."""
    edits, done = [], 0
    for run in source.find(".", "model_name_or_path", "="):
        place = source.tokens.index(run[0])
        owner = source.tokens[place - 1].string
        value = list(itertools.takewhile(lambda token: token.string != "\n", source.tokens[place + len(run) :]))
        strings = tuple(token.string for token in value)
        chosen = tuple(owner if part == "train_args" else part for part in _CHOSEN)
        if strings == chosen:
            done += 1
        elif (len(value) == 1 and _last_part(value[0]) == BERT_FOLDER) or (
            strings[:-1] == _CHOSEN_BEFORE and _last_part(value[-1]) == _last_of(DEFAULT_FOLDER)
        ):
            edits.append(Edit(value[0].start, value[-1].end, "".join(chosen).replace(",", ", ")))
    return edits, done


def _last_part(token: tokenize.TokenInfo) -> str:
    """The last part of the path that a token spells, if it is a text."""
    value = ast.literal_eval(token.string) if token.type == tokenize.STRING else None
    return _last_of(value) if isinstance(value, str) else ""


def _last_of(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
