"""The COCO caption scorer's classes as SwinBERT's evaluation uses them, over our scores; for checkouts without `coco_caption`."""

import json
import sys
from collections import defaultdict
from typing import Any

from albertkit.captioning.metrics import score_captions


class Coco:
    """Captions of a file: `COCO(labels)`, `.loadRes(results)`, `.getImgIds()`.

    Args:
        annotation_file: A JSON with `annotations`, or a list of results; each an `image_id` and a `caption`.
    """

    def __init__(self, annotation_file: str) -> None:
        with open(annotation_file, encoding="utf-8") as stream:
            content = json.load(stream)
        self.captions: dict[Any, list[str]] = defaultdict(list)
        for record in content["annotations"] if isinstance(content, dict) else content:
            self.captions[record["image_id"]].append(record["caption"])

    def loadRes(self, results_file: str) -> "Coco":
        """Read results."""
        return Coco(results_file)

    def getImgIds(self) -> list[Any]:
        """Return the ids of the clips."""
        return list(self.captions)


class CocoEvaluation:
    """`COCOEvalCap(coco, results, df)`: `.params["image_id"]` are the clips to score, `.eval` the scores after `.evaluate()`.

    METEOR and SPICE are computed where pycocoevalcap and Java are installed, and reported as left out elsewhere.
    """

    def __init__(self, coco: Coco, results: Coco, df: str = "corpus") -> None:
        self.coco, self.results = coco, results
        self.params = {"image_id": coco.getImgIds()}
        self.eval: dict[str, float] = {}

    def evaluate(self) -> None:
        """Compute the scores.

        Raises:
            DataError: ids-mismatch, wrong-captions, no-captions.
        """
        keys = self.params["image_id"]
        references = {str(key): self.coco.captions[key] for key in keys}
        candidates = {str(key): self.results.captions[key][0] for key in keys}
        scores = score_captions(references, candidates, java=True)
        for name, reason in scores.absent.items():
            print(f"{name} is left out: {reason}", file=sys.stderr)
        self.eval = dict(scores)
