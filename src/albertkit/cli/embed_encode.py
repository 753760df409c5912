"""albertkit embed encode"""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def encode(
    model: str,
    input: str,
    *,
    out: Path,
    text: str | None = None,
    id: str | None = None,
    columns: str | None = None,
    quoted: Annotated[bool | None, Parameter(negative="--no-quoted")] = None,
    on_error: Literal["stop", "skip"] = "stop",
    dimension: int | None = None,
    normalize: bool = False,
    dtype: Literal["float32", "float16"] = "float32",
    batch_tokens: int = 8192,
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto",
    device: str = "auto",
    prompt_name: str | None = None,
    prompt: str | None = None,
    length: int | None = None,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Turn every text of a file into a vector, in the order of the file, however large it is. Interrupted, the same command
    goes on.

    Args:
        model: A sentence-transformers folder, a run of `embed train`, any ALBERT checkpoint (then with mean pooling), `org/name`
            of the hub, or an installed package that carries a model. What is no ALBERT is run by sentence-transformers.
        input: Lines of text; or CSV, TSV, JSONL or Parquet. `.gz`, `.xz` and `.zst` are unpacked.
        out: vectors.npy, or vectors.parquet with the columns id, text and vector.
        text: Column of the texts in a table. Default: `text`.
        id: Column of their names, for Parquet. Default: the place in the file, from 0.
        columns: Names of all columns, with commas between, of a file without a header.
        quoted: Whether fields are in quotes. Default: with commas between them they may be, with tabs not.
        on_error: Rows that cannot be used: stop before anything is computed, or skip, count and name them.
        dimension: Numbers to keep at the start of each vector. Default: as the model says, or all.
        normalize: Divide what is kept by its length.
        dtype: Of the numbers in the file.
        batch_tokens: Most tokens computed at once.
        precision: fp32, bf16, int8, or auto: bf16 where the hardware multiplies it faster.
        device: auto, cpu, cuda or cuda:N.
        prompt_name: Name of the model's prompt that is put before every text, such as query. Default: its own default.
        prompt: The prompt itself, such as 'query: '.
        length: Longest text in tokens, special tokens included. Default: the model's. Longer texts are cut and counted.
        overwrite: Replace a finished file, and unfinished work with other texts, model or settings.
        json: Print one JSON object, and no progress.
    """
    from albertkit.cli.printing import print_result
    from albertkit.embeddings.encoding.encode_file import encode_file

    report = encode_file(
        model, input, out, text=text, id=id, columns=columns, quoted=quoted, on_error=on_error, dimension=dimension,
        normalize=normalize, dtype=dtype, batch_tokens=batch_tokens, precision=precision, device=device,
        prompt_name=prompt_name, prompt=prompt, length=length, overwrite=overwrite, progress=not json,
    )  # fmt: skip
    for fault in report.left_out:
        print(f"left out: {fault.file}, {fault.where}: {fault.reason}", file=sys.stderr)
    shown = report.to_dict()
    print_result(
        shown if json else shown | {"left_out": len(report.left_out) or None, "resumed": report.resumed or None}, json
    )
