"""albertkit evaluate"""

from pathlib import Path
from typing import Literal


def evaluate(
    model: Path,
    store: Path,
    *,
    length: int | None = None,
    held_out: float | None = None,
    seed: int | None = None,
    batch_tokens: int = 16_384,
    precision: Literal["fp32", "bf16", "auto"] = "fp32",
    device: str = "auto",
    json: bool = False,
) -> None:
    """Masked-piece and sentence-order loss and accuracy of a model on held-out documents, beside two baselines.

    Args:
        model: Checkpoint folder.
        store: Token store made with the model's tokenizer.
        length: Longest sequence, in tokens. Default: the length it was trained with.
        held_out: Share of documents to evaluate on. Default: those held out in training, or all of another store.
        seed: Draws segments and masks, and the documents of another store. Default: the seed of the training.
        batch_tokens: Tokens computed at once.
        precision: fp32, bf16, or auto: bf16 where the hardware multiplies it natively.
        device: auto, cpu, cuda or cuda:N.
        json: Print one JSON object.
    """
    from albertkit.cli.printing import print_result
    from albertkit.pretraining.run import evaluate

    result = evaluate(
        model,
        store,
        length=length,
        held_out=held_out,
        seed=seed,
        batch_tokens=batch_tokens,
        precision=precision,
        device=device,
    )
    print_result(result.to_dict(), json)
