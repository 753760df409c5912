"""Hold the served models as the front needs them: tokenizers and tasks, no weights."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from albertkit.captioning.folder import is_captioner_folder
from albertkit.engines.onnx_model import is_onnx_folder
from albertkit.errors import AlbertKitError, CheckpointError, ConfigError
from albertkit.inference.caption import CaptionPipeline
from albertkit.inference.loading import load_pipelines
from albertkit.inference.pipeline import Pipeline
from albertkit.model_folder import local_folder
from albertkit.serve.protocol import Facts
from albertkit.serve.refusals import ServiceError
from albertkit.tasks.early_exit import EXITS
from albertkit.tokenizer import SentencePieceTokenizer, WordPieceTokenizer

PASSES = "passes"  # a look inside; any model of text can be looked into


def named_folders(models: Sequence[str]) -> dict[str, str]:
    """Return name to folder, from `FOLDER` or `NAME=FOLDER`; without a name the folder's own."""
    found: dict[str, str] = {}
    for model in models:
        name, equals, folder = model.partition("=")
        if not equals or Path(model).exists():
            name, folder = Path(model).resolve().name, model
        if not name or not folder:
            raise ConfigError("bad-value", f"`{model}` is no model", "write FOLDER or NAME=FOLDER")
        if name in found:
            raise ConfigError("bad-value", f"two models are named `{name}`", f"name one yourself: {name}-2={folder}")
        found[name] = folder
    if not found:
        raise ConfigError("bad-value", "there is no model to serve", "name a folder: albertkit serve FOLDER")
    return found


class Models:
    """Pipelines of every model, by name and kind."""

    def __init__(self, folders: dict[str, str], exits: str | None = None) -> None:
        self.folders = {name: str(local_folder(folder)) for name, folder in folders.items()}
        self._without_exits: set[str] = set()
        if exits is not None:
            self._without_exits = {name for name, one in self.folders.items() if not (Path(one) / EXITS).exists()}
            if len(self._without_exits) == len(folders):
                fact = f"{', '.join(f'`{folder}`' for folder in folders.values())}: trained without exits"
                hint = "leave out --exits, or train with them: albertkit finetune … --exits"
                raise CheckpointError("wrong-model", fact, hint)
        self._pipelines: dict[str, dict[str, Pipeline | None]] = {}
        for name, folder in self.folders.items():
            if is_captioner_folder(Path(folder)):
                self._pipelines[name] = {CaptionPipeline.kind: None}
            else:
                pipelines = load_pipelines(folder, device="meta")
                tokenizer = next(iter(pipelines.values())).tokenizer
                if isinstance(tokenizer, SentencePieceTokenizer | WordPieceTokenizer):
                    tokenizer.start_engine()  # now, not after ten million characters, when all requests would wait for it
                for pipeline in pipelines.values():
                    with suppress(AlbertKitError):  # now, too: what tokenizes is compiled when it is first called
                        pipeline.features([pipeline.parse(pipeline.example)])
                exported = is_onnx_folder(Path(folder))  # it runs as a whole: it shows no states
                self._pipelines[name] = {**pipelines, **({} if exported else {PASSES: None})}

    def find(self, kind: str, name: str | None) -> tuple[str, Any]:
        """Find the model of that name, or the first one that has a kind, and its pipeline, None for calls."""
        name = self._chosen(self.names(kind), kind, name)
        return name, self._pipelines[name][kind]

    def _chosen(self, able: list[str], kind: str, name: str | None) -> str:
        if name is None and able:
            return able[0]
        if name is not None and name in able:
            return name
        fact = f"no model here can {kind}" if name is None else f"there is no model `{name[:80]}` that can {kind}"
        listed = ", ".join(able) if able else f"none; models here: {', '.join(self.folders)}"
        raise ServiceError("unknown-name", fact, f"these can: {listed}", status=404)

    def tokenizer(self, name: str | None) -> tuple[str, Any]:
        """Find the model of that name, or the first one that reads text, and its tokenizer."""
        found = {name: [one for one in pipelines.values() if one] for name, pipelines in self._pipelines.items()}
        name = self._chosen([name for name, pipelines in found.items() if pipelines], "tokenize", name)
        return name, found[name][0].tokenizer

    def names(self, kind: str) -> list[str]:
        """Return the names of the models that have a kind."""
        return [name for name, pipelines in self._pipelines.items() if kind in pipelines]

    def _notes(self, name: str, facts: Mapping[str, Facts]) -> list[str]:
        own = ["trained without exits: all layers are run"] if name in self._without_exits else []
        return [*(facts[name].notes if name in facts else ()), *own]

    def listing(self, facts: Mapping[str, Facts]) -> list[dict[str, Any]]:
        """Return what `/models` answers of each model. `precision` is None while it is being loaded."""
        return [
            {
                "name": name,
                "kinds": list(pipelines),
                "precision": facts[name].precision if name in facts else None,
                "notes": self._notes(name, facts),
                "examples": {kind: one.example for kind, one in pipelines.items() if one is not None},
            }
            for name, pipelines in self._pipelines.items()
        ]
