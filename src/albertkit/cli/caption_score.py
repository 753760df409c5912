"""albertkit caption score"""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def score(
    predictions: Path,
    references: list[Path],
    /,
    *,
    details: Path | None = None,
    java: Annotated[bool, Parameter(negative="--no-java")] = True,
    json: bool = False,
) -> None:
    """Score captions of any origin as the COCO caption scorer does, without Java; METEOR and SPICE where it is there.

    Args:
        predictions: One caption a clip: SwinBERT's TSV, JSON lines (`key`, `video` or `image_id`, and `caption`), COCO results,
            or plain text, a caption a line. May be compressed.
        references: A manifest (.jsonl), COCO annotations, a SwinBERT caption TSV; or files of plain text, each with a reference
            for every line of the predictions. Several files are put together.
        details: Write a JSON object a clip to this file: key, caption, references and scores.
        java: METEOR and SPICE, by the package pycocoevalcap and Java if both are installed.
        json: Print one JSON object.
    """
    from albertkit.captioning.scoring import score_caption_files
    from albertkit.cli.printing import print_result

    scores = score_caption_files(predictions, references, java=java, details=details).to_dict()
    if not json:
        for name, reason in scores.pop("absent", {}).items():
            print(f"{name} is left out: {reason}", file=sys.stderr)
    print_result(scores, json)
