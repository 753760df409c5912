"""albertkit init"""

import sys
from pathlib import Path
from typing import Literal


def init(
    *,
    tokenizer: Path,
    out: Path,
    size: Literal["tiny", "small", "base", "large", "xlarge", "xxlarge"] | None = None,
    config: Path | None = None,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Make an empty ALBERT: a size or configuration, both pretraining heads, weights drawn from a seed, the tokenizer beside it.

    Args:
        tokenizer: Folder of the tokenizer, or a run; it decides the size of the vocabulary and the special ids.
        out: Folder to make. Train it with `albertkit pretrain STORE --continue OUT --out RUN`.
        size: A published size, or tiny or small in their manner. Default: base.
        config: A config.json in place of a size.
        seed: Draws the weights.
        json: Print one JSON object.
    """
    from albertkit.checkpoints.initial import init_model
    from albertkit.cli.printing import print_result

    report = init_model(out, tokenizer, size=size, config=config, seed=seed).to_dict()
    if json:
        print_result(report, json)
        return
    parts, warnings = report.pop("parts"), report.pop("warnings")
    counted = {
        **parts, "total": report["total"], "of these, encoder alone": report["encoder"],
        "of these, masked LM alone": report["masked_lm"],
    }  # fmt: skip
    print_result({"model": report["model"], "pieces": report["vocab_size"], **counted}, json)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
