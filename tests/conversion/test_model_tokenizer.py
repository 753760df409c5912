"""A tokenizer that is not the model's own is refused, or said, by everything that reads both."""

import numpy as np
import pytest

from albertkit.config import AlbertConfig
from albertkit.embeddings.encoder import SentenceEncoder
from albertkit.errors import CheckpointError
from albertkit.files import write_checksums
from albertkit.model import AlbertForPreTraining, AlbertForSequenceClassification
from albertkit.pipelines.load import load_pipeline, load_pipelines
from albertkit.pretraining.preparation import initialise_from_checkpoint
from albertkit.pretraining.settings import PretrainSettings
from albertkit.tables.columns import Columns
from albertkit.tasks.models import load_encoder, load_task_model, save_task_model
from albertkit.tasks.registry import find_task
from albertkit.tokenizer import train_tokenizer

TASK = find_task("classify", Columns(text="text", label="label")).with_changes(
    labels=("a", "b"), length=32
)
LOADERS = {
    "pipeline": lambda path, _: load_pipeline(path),
    "pipelines": lambda path, _: load_pipelines(path, device="meta"),
    "embeddings": lambda path, _: SentenceEncoder.from_pretrained(path),
    "fine-tuned": lambda path, _: load_task_model(path),
    "fine-tuning": lambda path, _: load_encoder(path, TASK),
    "pretraining": lambda path, own: initialise_from_checkpoint(
        path, own, PretrainSettings(length=32)
    ),
}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """One of 300 pieces, and one of fewer from other text."""
    rng = np.random.default_rng(1)
    words = ["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), 5)) for _ in range(400)]
    folder = tmp_path_factory.mktemp("tokenizers")
    texts = [" ".join(rng.choice(words, 9)) for _ in range(400)]
    return train_tokenizer(texts, folder / "own", 300), train_tokenizer(
        texts[:60], folder / "other", 60
    )


@pytest.fixture
def folder(tmp_path, tokenizers):
    """A model of the kind that a loader reads, with so many rows."""

    def make(loader, rows):
        config = AlbertConfig(
            vocab_size=rows,
            embedding_size=8,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=32,
            max_position_embeddings=32,
        )
        path = tmp_path / f"model-{rows}"
        if loader == "fine-tuned":
            model = AlbertForSequenceClassification(config.with_changes(**TASK.head()))
            save_task_model(path, model, tokenizers[0], TASK)
        else:
            AlbertForPreTraining(config).save_pretrained(path, tokenizers[0])
        write_checksums(path)
        return path

    return make


def replace_tokenizer(tokenizer, folder):
    for name in ("tokenizer.json", "spiece.model"):
        (folder / name).unlink()
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_tokenizer_that_was_exchanged_is_refused(folder, tokenizers, loader, caplog):
    tokenizer, foreign = tokenizers
    path = folder(loader, 300)
    LOADERS[loader](path, tokenizer)
    replace_tokenizer(foreign, path)
    with pytest.raises(
        CheckpointError, match="is not the file that was saved with the weights"
    ) as caught:
        LOADERS[loader](path, tokenizer)
    assert caught.value.slug == "wrong-tokenizer"
    assert f"rm {path / 'SHA256SUMS'}" in caught.value.hint
    (path / "SHA256SUMS").unlink()
    caplog.clear()
    if loader == "pretraining":  # there the data's tokenizer decides
        with pytest.raises(CheckpointError):
            LOADERS[loader](path, tokenizer)
    else:
        LOADERS[loader](path, tokenizer)
    assert (
        "60 tokens, the model rows for 300: is it the one that the model was trained with?"
        in caplog.text
    )


@pytest.mark.parametrize("loader", LOADERS)
def test_too_few_rows_are_refused_and_a_few_spare_ones_are_not_mentioned(
    folder, tokenizers, loader, caplog
):
    with pytest.raises(
        CheckpointError, match=r"(?s)\[wrong-tokenizer\].*has 300 tokens, the model 299"
    ):
        LOADERS[loader](folder(loader, 299), tokenizers[0])
    LOADERS[loader](folder(loader, 300 + 127), tokenizers[0])
    assert not caplog.text
    LOADERS[loader](folder(loader, 300 + 128), tokenizers[0])
    assert "300 tokens, the model rows for 428" in caplog.text


def test_other_changed_files_do_not_matter(folder, tokenizers):
    """A card or a longest length may be edited; `albertkit doctor` names every changed file."""
    path = folder("pipeline", 300)
    for name in ("config.json", "tokenizer_config.json"):
        (path / name).write_text((path / name).read_text() + "\n")
    assert load_pipeline(path).kind == "fill-mask"
