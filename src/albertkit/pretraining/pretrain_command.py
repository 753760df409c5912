"""The command `pretrain`: train, or estimate what it would take."""

import dataclasses
from contextlib import nullcontext
from functools import partial

from rich.console import Console

from albertkit.pretraining.estimate import Estimate, EstimateOptions, estimate
from albertkit.pretraining.options import PretrainCommandOptions, PretrainOptions
from albertkit.pretraining.run import PretrainResult, pretrain


def run_pretrain(options: PretrainCommandOptions) -> PretrainResult | Estimate:
    """Run `albertkit pretrain`."""
    if not options.dry_run:
        return pretrain(options)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(PretrainOptions)}
    with console.status("measuring …") if console.is_terminal else nullcontext():
        return estimate(EstimateOptions(**values, note=partial(console.print, markup=False)))
