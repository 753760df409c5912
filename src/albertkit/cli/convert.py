"""albertkit convert"""

from pathlib import Path
from typing import Literal


def convert(
    source: str,
    target: Path,
    /,
    *,
    to: Literal["transformers", "tf1", "tf2", "npz"] = "transformers",
    head: str | None = None,
    config: Path | None = None,
    allow_missing: tuple[str, ...] = (),
    lossy: bool = False,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Convert an ALBERT of any origin to a checkpoint folder, or back to TensorFlow, and verify it.

    Args:
        source: TensorFlow checkpoint, SavedModel or TF-Hub module (folder or .tar.gz), folder of transformers (ALBERT or BERT),
            org/name of the Hugging Face hub; or the address of an archive:
            https://, gs://, a module of tfhub.dev, with #sha256=… behind it if you have the sum.
        target: Folder to write. It appears whole or not at all.
        to: transformers: a checkpoint folder; tf1: model.ckpt-best and albert_config.json; tf2: bert_model.ckpt of the Model
            Garden; npz: the names of tf1 in one file.
        head: Where the weights leave a doubt: encoder, pretraining, masked-lm, classification, regression,
            token-classification, multiple-choice, question-answering, beam-question-answering.
        config: Configuration file, if none lies beside the weights. For a BERT: the ALBERT to make of it.
        allow_missing: Parameter (or first part of its name) to initialise afresh if the source lacks it, or variable to leave
            out. Repeatable.
        lossy: Go on where the result computes something else: a BERT with shared layers, for example.
        overwrite: Replace a checkpoint that lies in TARGET.
        json: Print the report as one JSON object.
    """
    from albertkit.checkpoints.convert import convert
    from albertkit.cli.printing import print_result

    report = convert(
        source, target, to=to, head=head, config=config, allow_missing=allow_missing, lossy=lossy, overwrite=overwrite
    ).to_dict()
    if json:
        print_result(report, json)
        return
    notes, lost = report.pop("notes"), report.pop("relative_errors")
    report["skipped"] = ", ".join(f"{count} {kind}" for kind, count in report["skipped"].items())
    for name in ("max_abs_diff", "outputs_max_abs_diff"):
        report[name] = None if report[name] is None else f"{report[name]:.1g}"
    print_result({name: value for name, value in report.items() if value not in ("", [])}, json)
    for name, share in lost.items():
        print(f"{name}: {share:.1%} of its norm is lost")
    for note in notes:
        print(f"- {note}")
