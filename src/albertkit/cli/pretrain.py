"""albertkit pretrain"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from albertkit.pretraining.settings import PretrainSettings


def pretrain(
    store: Path,
    *,
    out: Path,
    tokenizer: Path | None = None,
    resume: bool = False,
    dry_run: bool = False,
    config_file: Path | None = None,
    json: bool = False,
    settings: Annotated[PretrainSettings, Parameter(name="*", group="Settings")] = PretrainSettings(),  # noqa: B008
) -> int:
    """Train an ALBERT from scratch on masked pieces and sentence order.

    Args:
        store: Token store, made with `albertkit corpus build`; or masked TFRecords: a file, a folder or a quoted glob.
        out: Folder of the run. The model comes to stand in OUT/final, the best so far in OUT/best.
        tokenizer: Folder of the tokenizer that records were made with. Default: `tokenizer` beside them.
        resume: Continue the run in OUT from its newest checkpoint, to the same bits.
        dry_run: Print parameters, memory, steps and an estimate of the time, from three timed steps; train nothing.
        config_file: TOML file of settings, for example the run.toml of another run. Flags win over it.
        json: Print the result as one JSON object.
    """
    from albertkit.cli.printing import print_result
    from albertkit.pretraining.estimate import estimate
    from albertkit.pretraining.run import pretrain

    if dry_run:
        print_result(estimate(store, settings, tokenizer).to_dict(), json)
        return 0
    result = pretrain(store, out, settings, tokenizer=tokenizer, resume=resume)
    print_result(result.to_dict(), json)
    return 0 if result.model else 143  # as a process that SIGTERM ended
