"""Run one row, or all of them: `python -m benchmarks latency --json`, `python -m benchmarks all --out docs/measured`."""

import json
import sys
from collections.abc import Sequence

from cyclopts import App, Parameter

from albertkit.cli import set_up_process
from albertkit.command import present
from albertkit.errors import AlbertKitError
from albertkit.output.sections import Result

# Row to its module and function, whose docstring is the help.
ROWS = {
    "tokenize": "tokenizing:tokenize",
    "data": "data:data",
    "pretrain": "pretraining:pretrain",
    "finetune": "finetuning:finetune",
    "embed": "embedding:embed",
    "caption": "captioning:caption",
    "latency": "inference:latency",
    "encode": "inference:encode",
    "accelerate": "accelerating:accelerate",
    "accelerate-training": "accelerating:accelerate_training",
    "serve": "serving:serve",
    "quality": "quality:quality",
    "bert": "bert:bert",
}
app = App(
    name="python -m benchmarks",
    help="Measure albertkit and its peers on this machine, in one run. Every row takes --json: one object a line.",
    help_format="markdown",
    result_action="return_value",
    default_parameter=Parameter(negative_bool=(), negative_iterable=()),
)
OTHERS = {
    "all": "results:measure_all",
    "shapes": "learn_shapes:shapes",
    "start": "first_output:start",
    "memory": "memory:memory",
}
for name, attribute_path in {**ROWS, **OTHERS}.items():
    app.command(f"benchmarks.{attribute_path}", name=name)


def main(arguments: Sequence[str]) -> None:
    """Run a row and show its results as soon as they are measured."""
    as_json = "--json" in arguments
    if not arguments or arguments[0] == "--help":
        for name in ROWS | OTHERS:
            app[name]  # imports what is registered by its place: docstrings say what each is for
    try:
        for row in app([argument for argument in arguments if argument != "--json"]) or ():
            if isinstance(row, Result):  # of `shapes`, which compares with no peer
                present(row, as_json)
            elif as_json:
                print(json.dumps(row.to_json(), ensure_ascii=False), flush=True)
            else:
                row.print()
    except AlbertKitError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    # As our commands do, for the peers, too
    set_up_process(trains=sys.argv[1:2] in (["pretrain"], ["finetune"]))
    main(sys.argv[1:])
