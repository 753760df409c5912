"""albertkit evaluate"""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from albertkit.cli.table_columns import OtherColumns


def evaluate(
    model: Path,
    data: str,
    *,
    out: Path | None = None,
    split: str = "dev",
    on_error: Literal["stop", "skip"] = "stop",
    threshold_from: Literal["train", "dev"] = "train",
    length: int | None = None,
    held_out: float | None = None,
    seed: int | None = None,
    batch_tokens: int = 16_384,
    precision: Literal["auto", "fp32", "bf16", "int8"] | None = None,
    device: str = "auto",
    json: bool = False,
    columns: Annotated[
        OtherColumns, Parameter(name="*", group="Columns of a table", negative_bool="no-")
    ] = OtherColumns(),  # noqa: B008
) -> None:
    """Score a model: a pretrained one on a store or masked records, a fine-tuned one on labelled examples of its task.

    Args:
        model: Checkpoint folder, run, or `org/name` of the hub.
        data: Of a pretrained model a token store made with the model's tokenizer, also at an address (`s3://…`), or TFRecords
            of masked examples; of a fine-tuned one the task's file or folder, also at an address.
        out: Fine-tuned: folder for predictions in the task's own files, and results.json.
        split: Fine-tuned: which file of a folder.
        on_error: Fine-tuned: rows that cannot be used: stop, or skip and count them.
        threshold_from: SQuAD 2: the threshold as chosen in training, or chosen anew on these very questions (dev).
        length: Pretrained: longest sequence, in tokens. Default: the length it was trained with.
        held_out: Pretrained: share of documents. Default: those held out in training, or all of another store.
        seed: Pretrained: draws segments and masks, and the documents of another store. Default: the seed of the training.
        batch_tokens: Tokens computed at once.
        precision: fp32, bf16, int8 (of fine-tuned models), or auto: bf16 where the hardware multiplies it faster. Default:
            fp32 of a pretrained model, auto of a fine-tuned one, as in its training.
        device: auto, cpu, cuda or cuda:N.
        json: Print one JSON object.
    """
    from albertkit.cli.printing import print_result, print_scores
    from albertkit.pretraining.sources import is_pretraining_data
    from albertkit.tasks.loading import is_task_model

    if is_task_model(model) or not is_pretraining_data(data):
        from albertkit.errors import ConfigError
        from albertkit.tasks.predict import evaluate_task

        if (length, held_out, seed) != (None, None, None):
            raise ConfigError(
                "conflicting-options", "--length, --held-out and --seed are for token stores",
                "leave them out: task.json says how a fine-tuned model reads",
            )  # fmt: skip
        scored = evaluate_task(
            model, data, out, split=split, columns=columns, on_error=on_error, threshold_from=threshold_from,
            batch_tokens=batch_tokens, precision=precision or "auto", device=device,
        )  # fmt: skip
        print_scores(scored, json)
        return
    from albertkit.pretraining.run import evaluate

    result = evaluate(
        model, data, length=length, held_out=held_out, seed=seed, batch_tokens=batch_tokens, precision=precision or "fp32",
        device=device,
    )  # fmt: skip
    print_result(result.to_dict(), json)
