"""A depth that grows during a run: all passes share one layer, so it can be trained with few passes first, which cost less."""

import math

from albertkit.config import AlbertConfig
from albertkit.errors import ConfigError
from albertkit.model import AlbertForPreTraining
from albertkit.pretraining.settings import PretrainSettings


def passes_at(progress: float, settings: PretrainSettings, passes: int) -> int:
    """Passes of an update: few for a share of the run, then twice as many, and again, each for an equal part of the rest.

    Args:
        progress: Share of the run that is done before it.
        settings: `passes_from` passes at first, for `passes_grow` of the updates.
        passes: Of the model.
    """
    if settings.passes_from is None:
        return passes
    grown = (progress - settings.passes_grow) / (1 - settings.passes_grow)
    if grown < 0:
        return settings.passes_from
    doublings = math.ceil(math.log2(passes / settings.passes_from))
    return min(passes, settings.passes_from << 1 + int(grown * doublings + 1e-9))


def check_depth(settings: PretrainSettings, config: AlbertConfig) -> None:
    """Whether a model can begin with fewer passes.

    Raises:
        ConfigError: bad-settings if its layers are not one, or are not more than it is to begin with.
    """
    if settings.passes_from is None:
        return
    fact = ""
    if config.num_hidden_groups > 1:
        fact = f"passes_from is for a model whose passes share one layer, this one has {config.num_hidden_groups}"
    if settings.passes_from >= config.num_hidden_layers:
        fact = f"passes_from is {settings.passes_from}, the model makes {config.num_hidden_layers} passes"
    if fact:
        raise ConfigError("bad-settings", fact, "leave out --passes-from, or name fewer passes")


def set_depth(model: AlbertForPreTraining, passes: int | None) -> None:
    """Let a model make so many passes; None for all."""
    model.albert.encoder.depth = passes
