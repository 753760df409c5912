"""albertkit: one layer, run twelve times. Train, adapt, measure and serve ALBERT.

Public names are loaded when first used, so that importing albertkit does not import torch.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def lazy_names(package: str, modules: dict[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose names are loaded when first used; `modules` says of which."""

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return load


_WHERE = {
    "AlbertConfig": "albertkit.config",
    "AlbertKitError": "albertkit.errors",
    "AlbertTokenizer": "albertkit.tokenizer",
    "train_tokenizer": "albertkit.tokenizer",
    "fix_tokenizer": "albertkit.tokenizer.check",
    "TokenStore": "albertkit.corpus",
    "build_store": "albertkit.corpus",
    "AlbertModel": "albertkit.model",
    "AlbertForPreTraining": "albertkit.model",
    "AlbertForMaskedLM": "albertkit.model",
    "AlbertForSequenceClassification": "albertkit.model",
    "AlbertForTokenClassification": "albertkit.model",
    "AlbertForQuestionAnswering": "albertkit.model",
    "AlbertForBeamQuestionAnswering": "albertkit.model",
    "AlbertForMultipleChoice": "albertkit.model",
    "PackedBatch": "albertkit.model",
    "convert": "albertkit.conversion.convert",
    "init_model": "albertkit.conversion.initial",
    "train_vocabulary": "albertkit.vocabulary",
    "extend_vocabulary": "albertkit.vocabulary",
    "repair_vocabulary": "albertkit.vocabulary",
    "trim_vocabulary": "albertkit.vocabulary",
    "PretrainSettings": "albertkit.pretraining",
    "pretrain": "albertkit.pretraining",
    "evaluate": "albertkit.pretraining",
    "FinetuneSettings": "albertkit.tasks.settings",
    "Columns": "albertkit.tables.columns",
    "finetune": "albertkit.tasks.finetune",
    "find_task": "albertkit.tasks.registry",
    "register_task": "albertkit.tasks.registry",
    "predict": "albertkit.pipelines.predict",
    "evaluate_task": "albertkit.tasks.evaluate",
    "score_file": "albertkit.tasks.evaluate",
    "SentenceEncoder": "albertkit.embeddings.encoder",
    "EmbedSettings": "albertkit.embeddings.settings",
    "DistillSettings": "albertkit.embeddings.settings",
    "train_embeddings": "albertkit.embeddings",
    "distill_embeddings": "albertkit.embeddings",
    "evaluate_embeddings": "albertkit.embeddings",
    "encode_file": "albertkit.embeddings",
    "load_engine": "albertkit.engines",
    "accelerate": "albertkit.pipelines.accelerate",
    "restore": "albertkit.pipelines.accelerate",
    "load_pipeline": "albertkit.pipelines.load",
    "AlbertForImageCaptioning": "albertkit.captioning.model",
    "AlbertImgModel": "albertkit.captioning.model",
    "VideoCaptioner": "albertkit.captioning.captioner",
    "GenerationSettings": "albertkit.captioning.settings",
    "register_backbone": "albertkit.captioning.backbones",
    "CaptionSettings": "albertkit.captioning.settings",
    "train_captioner": "albertkit.captioning.train",
    "score_captions": "albertkit.captioning.metrics",
    "get_albert_model": "albertkit.swinbert.scripts",
    "export_onnx": "albertkit.export.onnx",
    "load_onnx": "albertkit.engines.onnx",
    "compare_precision": "albertkit.pipelines.compare_precision",
    "exit_curve": "albertkit.tasks.early_exit",
    "quickstart": "albertkit.first_run",
}

__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    if name == "AlbertTokenizerFast":
        raise AttributeError(
            "albertkit has no AlbertTokenizerFast; use albertkit.AlbertTokenizer, which has offsets, too"
        )
    return lazy_names("albertkit", _WHERE)(name)


def __dir__() -> list[str]:
    return sorted(__all__)
