"""albertkit inspect"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def inspect(
    model: Path | None = None,
    /,
    *,
    length: int | None = None,
    passes: Path | None = None,
    text: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    json: bool = False,
) -> None:
    """Configuration, parameters, FLOPs, memory, tokenizer and provenance of a model; its weights are not loaded.

    With --passes the model is run instead: how far each pass of the shared layer moves the states, and where its heads look.
    Without a model: how large every published ALBERT is, beside BERT, and what each way of sharing would cost.

    Args:
        model: Checkpoint folder, run, or `org/name` of the hub.
        length: Tokens of the sequences that FLOPs and memory are counted for. Default: the length it was trained with.
            Of --passes: of a text at most, by default 128.
        passes: HTML file to draw the passes in.
        text: Read for --passes; may be repeated. Default: a sample of English that every Python carries.
        json: Print one JSON object.
    """
    from albertkit.errors import ConfigError

    if passes is None:
        if text:
            raise ConfigError("bad-argument", "--text is read for --passes only", "add --passes passes.html")
        from albertkit.report.inspect_text import print_inspection

        print_inspection(model, length, as_json=json)
        return
    if model is None:
        raise ConfigError("bad-argument", "--passes needs a model", "albertkit inspect MODEL --passes passes.html")
    from albertkit.cli.printing import print_result
    from albertkit.inference.pass_page import draw_passes
    from albertkit.report.passes_page import print_passes

    found = draw_passes(model, passes, text, length)
    if json:
        print_result(found, json)
        return
    print_passes(found["passes"])
    print(f"\npage  {found['page']}")
