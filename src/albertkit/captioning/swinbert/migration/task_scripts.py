"""The three places of a SwinBERT task script where BERT is named: its loader's import, the call, the hard-coded model folder."""

import ast
import itertools
import tokenize

from albertkit.captioning.swinbert.migration.source import Edit, PythonSource, replaced

TASK_SCRIPTS = ("src/tasks/run_caption_VidSwinBert.py", "src/tasks/run_caption_VidSwinBert_inference.py")
BERT_FOLDER, ALBERT_FOLDER = "bert-base-uncased", "albert-base-v2"
MODEL_FOLDER = f"models/captioning/{ALBERT_FOLDER}/"
_IMPORT = ("from", "src", ".", "modeling", ".", "load_{}", "import", "get_{}_model", "\n")
_OTHERWISE = ["args", ".", "model_name_or_path", "or"]
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
    folders, done = [], 0
    for run in source.find(".", "model_name_or_path", "="):
        first = source.tokens.index(run[-1]) + 1
        value = list(itertools.takewhile(lambda token: token.string != "\n", source.tokens[first:]))
        if len(value) == 1 and _last_part(value[0]) == BERT_FOLDER:
            folders += value
        elif [token.string for token in value[:-1]] == _OTHERWISE and _last_part(value[-1]) == ALBERT_FOLDER:
            done += 1
    return folders, done


def _last_part(token: tokenize.TokenInfo) -> str:
    """Of the path that a token spells, if it is a text."""
    value = ast.literal_eval(token.string) if token.type == tokenize.STRING else None
    return value.rstrip("/").rpartition("/")[2] if isinstance(value, str) else ""


def _chosen_folder(token: tokenize.TokenInfo) -> str:
    """The folder of the command line, which the original ignores, else ALBERT's beside where BERT's was."""
    return f"args.model_name_or_path or {token.string.replace(BERT_FOLDER, ALBERT_FOLDER)}"
