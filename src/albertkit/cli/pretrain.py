"""albertkit pretrain"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from albertkit.pretraining.settings import PretrainSettings
from albertkit.training.stopping import exit_status


def pretrain(
    store: str,
    *,
    out: Path,
    continue_: str | None = None,
    tokenizer: Path | None = None,
    resume: bool = False,
    dry_run: bool = False,
    config_file: Path | None = None,
    json: bool = False,
    settings: Annotated[
        PretrainSettings, Parameter(name="*", group="Settings", negative_bool="no-")
    ] = PretrainSettings(),  # noqa: B008
) -> int:
    """Train an ALBERT on masked pieces and sentence order, from scratch or from a checkpoint.

    Args:
        store: Token store, made with `albertkit corpus build`, also at an address (`s3://…`); or masked TFRecords:
            a file, a folder or a quoted glob.
        out: Folder of the run. The model comes to stand in OUT/final, the best so far in OUT/best.
        continue_: Checkpoint folder, run, or org/name of the hub, to train further: of any class; heads that it lacks are drawn.
            The store's tokenizer may have more pieces than the model, after the model's own.
        tokenizer: Folder of the tokenizer that records were made with. Default: `tokenizer` beside them.
        resume: Continue the run in OUT from its newest checkpoint, to the same bits.
        dry_run: Check everything that the run would check, print parameters, memory, steps and an estimate of the time, timed
            for about 30 seconds; train and write nothing.
        config_file: TOML file of settings, for example the run.toml of another run. Flags win over it.
        json: Print the result as one JSON object.
    """
    from albertkit.cli.printing import print_next, print_result, progress_notes
    from albertkit.pretraining.estimate import estimate
    from albertkit.pretraining.run import next_commands, pretrain

    if dry_run:
        with progress_notes() as note:
            found = estimate(store, settings, tokenizer, continue_, out=out, resume=resume, note=note)
        print_result(found.to_dict(), json)
        return 0
    result = pretrain(store, out, settings, start=continue_, tokenizer=tokenizer, resume=resume)
    print_result(result.to_dict(), json)
    if result.model and not json:
        print_next(next_commands(store, out))
    return 0 if result.model else exit_status()
