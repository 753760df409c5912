"""albertkit predict"""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from albertkit.cli.table_columns import OtherColumns

Several = Annotated[tuple[str, ...], Parameter(show_default=False)]


def predict(
    model: Path,
    input: str | None = None,
    *,
    text: Several = (),
    pair: Several = (),
    question: Several = (),
    choice: Several = (),
    kind: str | None = None,
    top: int | None = None,
    out: str | None = None,
    split: str = "test",
    on_error: Literal["stop", "skip"] = "stop",
    batch_tokens: int = 8192,
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto",
    device: str = "auto",
    json: bool = False,
    columns: Annotated[
        OtherColumns, Parameter(name="*", group="Columns of a table", negative_bool="no-")
    ] = OtherColumns(),  # noqa: B008
) -> None:
    """Answer texts on the spot (--text), or a whole file in its order, however large it is.

    Args:
        model: Any model folder, the run it came from, or `org/name` of the hub: fine-tuned, pretrained, sentence encoder.
        input: Of a fine-tuned model a file of the task's form, labels not needed, or a folder in the task's layout; of a model
            of single texts also a text a line (.txt). Of other models, or with --kind, a file with a value a line: text, or
            JSON (.jsonl): a text, a list of two, or an object. `-` is standard input.
        text: A text, with [MASK] for a pretrained model; or the text that questions are about. May be repeated.
        pair: The second text of a --text.
        question: A question about the --text. May be repeated.
        choice: One of the answers to choose from. Repeated.
        kind: Ask for another thing that the model can do: fill-mask, sentence-order, embed.
        top: Keep only so many probabilities or guesses, the best first.
        out: A .jsonl file; of a task on texts also a .csv or .tsv file, for the columns of the input and the predictions; or a
            folder, for predictions.jsonl and the submission files. Default, and `-`: standard output.
        split: Which file of a folder.
        on_error: Rows that cannot be used: stop, or skip, count and name them.
        batch_tokens: Most tokens computed at once.
        precision: fp32, bf16, int8, or auto: bf16 where the hardware multiplies it faster.
        device: auto, cpu, cuda or cuda:N.
        json: Print one JSON object: the answers to --text; with --out, what was written.
    """
    from albertkit.cli.printing import print_result
    from albertkit.errors import ConfigError

    if text or pair or question or choice:
        from albertkit.inference.asking import ask
        from albertkit.inference.showing import print_answers

        if input is not None or out is not None:
            raise ConfigError("conflicting-options", "--text with a file to read or to write", "leave one of them out")
        answers = ask(model, text, pair, question, choice, kind=kind, top=top, precision=precision, device=device)
        for note in answers.notes:
            print(f"note: {note}", file=sys.stderr)
        print_result(answers.to_dict(), json) if json else print_answers(answers)
        return
    if input is None:
        raise ConfigError("bad-argument", "nothing to predict", f"albertkit predict {model} INPUT, or --text 'a text'")
    from albertkit.tasks.loading import is_task_model

    told: dict[str, Any] = dict(on_error=on_error, batch_tokens=batch_tokens, precision=precision, device=device)
    if kind is None and is_task_model(model):
        from albertkit.tasks.predict import predict

        report = predict(model, input, out, split=split, columns=columns, top=top, **told)
    else:
        from albertkit.inference.lines import predict_lines

        report = predict_lines(model, input, out, kind=kind, top=top, **told)
    for fault in report.left_out:
        print(f"left out: {fault.file}, {fault.where}: {fault.reason}", file=sys.stderr)
    if report.written:
        shown = report.to_dict()
        print_result(shown if json else shown | {"left_out": len(report.left_out) or None}, json)
        return
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr)
