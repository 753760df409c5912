"""METEOR and SPICE, which are Java programs: run through the package pycocoevalcap where it and Java are there, else named."""

import contextlib
import io
import shutil
import subprocess
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

_JAVA = "no `java` on the path"
_PACKAGE = "the package `pycocoevalcap` is not installed (pip install pycocoevalcap; 104 MB)"
_MODELS = "it wants Stanford CoreNLP 3.6.0, which `python -m pycocoevalcap.spice.get_stanford_models` fetches"

Score = tuple[float, list[float]]  # of the corpus, and of each item


def java_scores(
    candidates: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[dict[str, Score], dict[str, str]]:
    """Compute METEOR 1.5 and SPICE. Java is started here; nothing is fetched from the network."""
    candidates = [_line(caption) for caption in candidates]
    references = [[_line(caption) for caption in group] for group in references]
    found: dict[str, Score] = {}
    absent: dict[str, str] = {}
    for name, scorer, missing in (("METEOR", _meteor, _missing_for_meteor), ("SPICE", _spice, _missing_for_spice)):
        reason = missing()
        if not reason:
            try:
                found[name] = scorer(candidates, references)
                continue
            except (ImportError, OSError, ValueError, subprocess.SubprocessError) as error:
                reason = f"it failed: {type(error).__name__}: {error}"
        absent[name] = reason
    return found, absent


def _line(caption: str) -> str:
    """Return a caption as a line of the programs' input, in which `|||` parts captions."""
    return " ".join(caption.replace("|||", " ").split())


def _missing_for_meteor() -> str:
    return _JAVA if shutil.which("java") is None else _PACKAGE if find_spec("pycocoevalcap") is None else ""


def _missing_for_spice() -> str:
    if missing := _missing_for_meteor():
        return missing
    package = find_spec("pycocoevalcap.spice")
    folders = [] if package is None else list(package.submodule_search_locations or ())
    models = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
    return "" if folders and all((Path(folders[0]) / "lib" / name).exists() for name in models) else _MODELS


def _meteor(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    from pycocoevalcap.meteor.meteor import Meteor

    score, each = _run(Meteor().compute_score, candidates, references)
    return float(score), [float(value) for value in each]


def _spice(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    from pycocoevalcap.spice.spice import Spice

    score, each = _run(Spice().compute_score, candidates, references)
    return float(score), [float(value["All"]["f"]) for value in each]


def _run(score: Callable, candidates: Sequence[str], references: Sequence[Sequence[str]]) -> tuple:
    """Return what a scorer of the package returns; what it prints is dropped, because stdout belongs to our result."""
    names = [f"{number:09}" for number in range(len(candidates))]  # SPICE sorts them
    with contextlib.redirect_stdout(io.StringIO()):
        return score(
            dict(zip(names, map(list, references), strict=True)),
            dict(zip(names, ([caption] for caption in candidates), strict=True)),
        )
