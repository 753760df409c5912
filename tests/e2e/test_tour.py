"""The tour, `docs/albert.ipynb`, runs from beginning to end, and what is printed in it is what it computes.

Its cells are tagged by what their numbers depend on:

- no tag: on nothing. The text is the same everywhere.
- `python`: on the documentation that Python carries. The same with the Python that made the outputs.
- `measured`: on training or on the processor, too, where last digits differ. Numbers within `TOLERANCE`, with the
  Python that made the outputs.
- `example`: shown, not compared.

After a change, `python tests/e2e/test_tour.py` runs it and writes the outputs.
"""

import platform
import re
from pathlib import Path

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NOTEBOOK = Path(__file__).parents[2] / "docs/albert.ipynb"
TAGS = {"python", "measured", "example"}
# Absolute, and a share of the number. One thread, two, and a processor with AVX2 alone differ by
# half of it at most.
TOLERANCE = (0.03, 0.03)
LARGEST = 700_000  # bytes

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")  # not the 16 of bf16


def executed(notebook):
    """A notebook with the outputs of running it in this interpreter, whatever kernels are installed."""
    notebook = nbformat.from_dict(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    kernel = AsyncKernelManager(
        kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[])
    )
    NotebookClient(
        notebook,
        km=kernel,
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": "."}},
    ).execute()
    return notebook


def printed(cell):
    """What a cell says, figures left out."""
    parts = [
        output.get("text") or output.get("data", {}).get("text/markdown") for output in cell.outputs
    ]
    parts += [
        output["data"]["text/plain"]
        for output in cell.outputs
        if set(output.get("data", ())) == {"text/plain"}
    ]
    return "".join(part for part in parts if part)


def numbers(text):
    return [float(number.replace(",", "")) for number in _NUMBER.findall(text)]


def close(committed, computed):
    absolute, share = TOLERANCE
    return len(committed) == len(computed) and all(
        abs(a - b) <= absolute + share * abs(a) for a, b in zip(committed, computed, strict=True)
    )


def differences(committed, computed, python):
    """The cells whose outputs do not say what they say when they are run, with both texts.

    Args:
        committed: The notebook as it stands.
        computed: As it was run now.
        python: Version of the Python that ran it.
    """
    same_python = python == committed.metadata.language_info.version
    lines = []
    for number, (old, new) in enumerate(zip(committed.cells, computed.cells, strict=True)):
        if old.cell_type != "code":
            continue
        (tag,) = old.metadata.get("tags", [""])
        a, b = printed(old), printed(new)
        kinds = [[sorted(output.get("data", ())) for output in cell.outputs] for cell in (old, new)]
        agree = kinds[0] == kinds[1]
        if tag == "" or (tag == "python" and same_python):
            agree = agree and a == b
        elif tag == "measured" and same_python:
            agree = agree and close(numbers(a), numbers(b))
        if not agree:
            lines.append(f"cell {number}:\n{a}\nnow:\n{b}")
    return lines


@pytest.fixture(scope="module")
def committed():
    return nbformat.read(NOTEBOOK, 4)


@pytest.fixture(scope="module")
def computed(committed):
    return executed(committed)


@pytest.mark.slow  # it trains for a minute
def test_numbers_in_the_notebook_are_those_it_computes(committed, computed):
    lines = differences(committed, computed, platform.python_version())
    assert not lines, "\n\n".join(lines)


def test_a_wrong_number_would_be_seen(committed):
    cells = [
        n
        for n, cell in enumerate(committed.cells)
        if cell.cell_type == "code" and numbers(printed(cell))
    ]
    compared = [n for n in cells if committed.cells[n].metadata.get("tags", [""]) != ["example"]]
    assert len(compared) > 10
    for number in compared:
        wrong = nbformat.from_dict(committed)
        for output in wrong.cells[number].outputs:
            for holder, name in ((output, "text"), (output.get("data", {}), "text/markdown")):
                if name in holder:
                    holder[name] = _NUMBER.sub(
                        lambda found: f"{1.2 * float(found[0].replace(',', '')) + 1}", holder[name]
                    )
        assert differences(committed, wrong, committed.metadata.language_info.version)


def test_an_error_in_a_cell_would_be_seen(committed):
    broken = nbformat.from_dict(committed)
    broken.cells = [
        nbformat.v4.new_code_cell("import albertkit"),
        nbformat.v4.new_code_cell("albertkit.no_such_name"),
    ]
    with pytest.raises(CellExecutionError, match="no_such_name"):
        executed(broken)


def test_the_notebook_is_fit_to_be_committed(committed):
    text = NOTEBOOK.read_text(encoding="utf-8")
    code = [cell for cell in committed.cells if cell.cell_type == "code"]
    assert len(text) < LARGEST
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert {tag for cell in code for tag in cell.metadata.get("tags", [])} == TAGS
    assert all(
        output.get("name") != "stderr" and output.output_type != "error"
        for cell in code
        for output in cell.outputs
    )
    assert all(set(cell.metadata) <= {"tags"} for cell in committed.cells)
    assert set(committed.metadata) == {"kernelspec", "language_info"}
    assert not re.search(
        r"/tmp/|/dev/|/home/|/root/|/Users/|\b20\d\d-\d\d-\d\dT",
        re.sub(r'"image/png": "[^"]*"', "", text),
    )


if __name__ == "__main__":
    nbformat.write(executed(nbformat.read(NOTEBOOK, 4)), NOTEBOOK)
