"""albertkit inspect"""

from pathlib import Path


def inspect(model: Path | None = None, /, *, length: int | None = None, json: bool = False) -> None:
    """Configuration, parameters, FLOPs, memory, tokenizer and provenance of a model; its weights are not loaded.

    Without a model: how large every published ALBERT is, beside BERT, and what each way of sharing would cost.

    Args:
        model: Checkpoint folder.
        length: Tokens of the sequences that FLOPs are counted for. Default: the length it was trained with.
        json: Print one JSON object.
    """
    from albertkit.report.inspect_text import print_inspection

    print_inspection(model, length, as_json=json)
