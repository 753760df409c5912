"""Every recipe is complete, known and possible."""

from pathlib import Path

import pytest

from albertkit.pretraining.settings import PretrainSettings

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.toml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_can_be_run(recipe):
    values = PretrainSettings.read(recipe)
    settings, _ = PretrainSettings(**values).resolve()
    assert {name: getattr(settings, name) for name in values} == values
    pieces = 20000 if "-ko-" in recipe.stem else 30000  # of the tokenizer that its own first lines train or name
    assert settings.model_config(pieces).vocab_size == pieces


def test_there_are_recipes():
    assert len(RECIPES) >= 2
