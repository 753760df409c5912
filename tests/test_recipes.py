"""Every recipe is complete, known and possible."""

import json
from pathlib import Path

import pytest

from albertkit.config import AlbertConfig
from albertkit.embeddings.settings import DistillSettings
from albertkit.pretraining.settings import PretrainSettings

FOLDER = Path(__file__).parent.parent / "recipes"
RECIPES = [path for path in sorted(FOLDER.glob("*.toml")) if not path.stem.startswith("sentences-")]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_can_be_run(recipe):
    values = PretrainSettings.read(recipe)
    settings, _ = PretrainSettings(**values).resolve()
    assert {name: getattr(settings, name) for name in values} == values
    # Of the tokenizer that its own first lines train or name
    pieces = 20000 if "-ko-" in recipe.stem else 30000
    assert settings.model_config(pieces).vocab_size == pieces


def test_the_recipe_of_sentence_embeddings_can_be_run():
    values = DistillSettings.read(FOLDER / "sentences-cpu.toml")
    config = AlbertConfig(
        vocab_size=8000, **json.loads((FOLDER / "sentences-cpu.json").read_text())
    )
    settings, _ = DistillSettings(**values).resolve(config, 128, 20_766)
    assert {name: getattr(settings, name) for name in values if name != "epochs"} == {
        name: value for name, value in values.items() if name != "epochs"
    }
    assert settings.steps == -(-8 * 20_766 // 64)


def test_there_are_recipes():
    assert len(RECIPES) >= 2
