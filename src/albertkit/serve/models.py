"""Hold the served models as the front needs them: tokenizers and tasks, no weights."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from albertkit.engines.onnx_model import is_onnx_folder
from albertkit.errors import AlbertKitError, CheckpointError
from albertkit.inference.caption import CaptionPipeline
from albertkit.inference.loading import load_pipelines
from albertkit.inference.pipeline import Pipeline
from albertkit.model_folder import is_captioner_folder, loading_digest
from albertkit.serve.protocol import Facts
from albertkit.serve.refusals import ServiceError
from albertkit.tasks.early_exit import EXITS

PASSES = "passes"  # a look inside; any model of text can be looked into


class Models:
    """Pipelines of every model, by name and kind.

    Attributes:
        folders: Folder of each model, by name.
        digests: Digest of the files that were loaded, by name of the model; without captioners, which the front does not load.
    """

    def __init__(self, folders: dict[str, str], exits: str | None = None) -> None:
        self.folders = folders
        self._without_exits: set[str] = set()
        if exits is not None:
            self._without_exits = {name for name, one in self.folders.items() if not (Path(one) / EXITS).exists()}
            if len(self._without_exits) == len(folders):
                fact = f"{', '.join(f'`{folder}`' for folder in folders.values())}: trained without exits"
                hint = "leave out --exits, or train with them: albertkit finetune … --exits"
                raise CheckpointError("wrong-model", fact, hint)
        self._pipelines: dict[str, dict[str, Pipeline | None]] = {}
        self.digests: dict[str, str] = {}
        for name, folder in self.folders.items():
            if is_captioner_folder(folder):
                self._pipelines[name] = {CaptionPipeline.kind: None}
            else:
                with loading_digest(folder) as self.digests[name]:
                    pipelines = load_pipelines(folder, device="meta")
                exported = is_onnx_folder(Path(folder))  # it runs as a whole: it shows no states
                self._pipelines[name] = {**pipelines, **({} if exported else {PASSES: None})}

    def warm_up(self) -> None:
        """Load what tokenizes: loops are compiled when they are first called, engines loaded after ten million characters."""
        for pipelines in self._pipelines.values():
            for pipeline in filter(None, pipelines.values()):
                pipeline.tokenizer.start_engine()
                with suppress(AlbertKitError):
                    pipeline.features([pipeline.parse(pipeline.example)])

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

    def description(self, name: str, facts: Mapping[str, Facts]) -> dict[str, Any]:
        """Return what `/info` answers of a model, in the words of text-embeddings-inference."""
        pipelines: dict[str, Any] = {kind: one for kind, one in self._pipelines[name].items() if one is not None}
        model_type: dict[str, Any] = {}
        length = None
        if (embed := pipelines.get("embed")) is not None:
            model_type, length = {"embedding": {"pooling": embed.encoder.pooling}}, embed.encoder.max_length
        for kind, their_kind in (("classify", "classifier"), ("score", "reranker")):
            if (pipeline := pipelines.get(kind)) is not None:
                labels = pipeline.model.config.id2label
                model_type = {their_kind: {"id2label": labels, "label2id": {label: i for i, label in labels.items()}}}
                length = pipeline.task.length
        precision = facts[name].precision if name in facts else None
        return {"model_id": name, "model_type": model_type, "model_dtype": precision, "max_input_length": length}

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
