"""The three places of a SwinBERT task script where BERT is named: its loader's import, the call, the hard-coded model folder."""

import ast
import tokenize

from albertkit.captioning.swinbert.migration.source import Edit, PythonSource, replaced

TASK_SCRIPTS = ("src/tasks/run_caption_VidSwinBert.py", "src/tasks/run_caption_VidSwinBert_inference.py")
BERT_FOLDER, ALBERT_FOLDER = "bert-base-uncased", "albert-base-v2"
MODEL_FOLDER = f"models/captioning/{ALBERT_FOLDER}/"
_IMPORT = ("from", "src", ".", "modeling", ".", "load_{}", "import", "get_{}_model")
_CALL = ("=", "get_{}_model", "(", "args", ")")


def albert_edits(source: PythonSource) -> tuple[list[Edit], list[str]]:
    """What makes a task script load ALBERT.

    Of a script that has been edited before, by this or by hand, only what is left to do.

    Returns:
        The edits, and everything about the file that is not as in SwinBERT; empty where the script is known.
    """
    tokens: list[tokenize.TokenInfo] = []
    unknown: list[str] = []
    for what, pattern in (("import of get_bert_model", _IMPORT), ("call `= get_bert_model(args)`", _CALL)):
        old, new = (source.find(*(part.format(model) for part in pattern)) for model in ("bert", "albert"))
        if len(old) + len(new) != 1:
            unknown.append(f"the {what} is there {len(old) + len(new)} times and not once")
        tokens += [token for run in old for token in run if "bert" in token.string]
    if beyond := [run[0] for run in source.find("get_bert_model") if run[0] not in tokens]:
        unknown.append(f"get_bert_model is used in line {beyond[0].start[0]} too")
    folders, done = _model_folders(source)
    if len(folders) + done != 1:
        unknown.append(f"the folder of {BERT_FOLDER} is assigned {len(folders) + done} times and not once")
    names = [replaced(token, token.string.replace("bert", "albert")) for token in tokens]
    return names + [replaced(token, _chosen_folder(token)) for token in folders], unknown


def _model_folders(source: PythonSource) -> tuple[list[tokenize.TokenInfo], int]:
    """Texts assigned to `….model_name_or_path` that name BERT's folder; how many such assignments choose ALBERT's."""
    folders = []
    for *_, token in _assignments(source, 3):
        if token.type == tokenize.STRING and _last_part(token) == BERT_FOLDER:
            folders.append(token)
    done = [run for run in _assignments(source, 7) if run[-2].string == "or" and run[-1].type == tokenize.STRING]
    return folders, sum(_last_part(run[-1]) == ALBERT_FOLDER for run in done)


def _assignments(source: PythonSource, length: int) -> list[list[tokenize.TokenInfo]]:
    """Runs of tokens that begin with `model_name_or_path =`, after a dot."""
    starts = [n for n in range(1, len(source.tokens)) if source.tokens[n - 1].string == "."]
    runs = [source.tokens[n : n + length] for n in starts]
    return [run for run in runs if len(run) == length and [t.string for t in run[:2]] == ["model_name_or_path", "="]]


def _last_part(token: tokenize.TokenInfo) -> str:
    value = ast.literal_eval(token.string)
    return value.rstrip("/").rpartition("/")[2] if isinstance(value, str) else ""


def _chosen_folder(token: tokenize.TokenInfo) -> str:
    """The folder of the command line, which the original ignores, else ALBERT's beside where BERT's was."""
    return f"args.model_name_or_path or {token.string.replace(BERT_FOLDER, ALBERT_FOLDER)}"
