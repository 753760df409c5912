"""A plugin of pytest: `load_dataset("sentence-transformers/stsb")` reads STS-B of ALBERTKIT_DATA."""

import os
from pathlib import Path
from typing import Any

import datasets


def load_dataset(name: str, *arguments: Any, **keywords: Any) -> datasets.DatasetDict:
    if name != "sentence-transformers/stsb":
        raise ConnectionError(f"there is no data set {name} here")
    folder = Path(os.environ["ALBERTKIT_DATA"]) / "glue/STS-B"
    splits = {}
    for split, file in (("train", "train"), ("validation", "dev"), ("test", "test")):
        lines = (folder / f"original_sts-{file}.tsv").read_text(encoding="utf-8").splitlines()
        rows = [line.split("\t") for line in lines]
        splits[split] = datasets.Dataset.from_list(
            [{"sentence1": row[5], "sentence2": row[6], "score": float(row[4]) / 5} for row in rows]
        )
    return datasets.DatasetDict(splits)


datasets.load_dataset = load_dataset
