"""The README.md of a converted model: the source's own, if it has one, and a section that says what was done."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import albertkit
from albertkit.files import atomic_file

_HEADING = "## Conversion"


def write_conversion_card(folder: Path, name: str, report: Mapping[str, Any], original: Path) -> None:
    """Write `README.md` into a converted folder.

    Args:
        folder: Where to.
        name: Of the model, for a heading if the source has no README.md.
        report: `ConversionReport.to_dict()`.
        original: The source's README.md, kept as it is above the section; it may not exist.
    """
    if original.is_file():
        text = original.read_text(encoding="utf-8", errors="replace").split(f"\n{_HEADING}\n")[0].rstrip()
    else:
        text = f"---\nlibrary_name: transformers\ntags:\n- albert\n- albertkit\n---\n\n# {name}"
    rows = {
        "from": f"{report['kind']} `{Path(report['source']).name}`",
        "class": f"`{report['model_class']}`",
        "tensors": f"{report['tensors']}, read again and equal bit for bit",
    }
    if report["skipped"]:
        rows["skipped"] = ", ".join(f"{count} {kind}" for kind, count in report["skipped"].items())
    lines = [f"| {key} | {value} |" for key, value in rows.items()]
    section = [_HEADING, "", f"Converted by albertkit {albertkit.__version__}.", "", "| | |", "|---|---|", *lines, ""]
    if report["missing"]:
        section += [
            "**Initialised afresh**, because the source does not hold them; they are random and must be trained:",
            "", *(f"- `{parameter}`" for parameter in report["missing"]), "",
        ]  # fmt: skip
    if report["unused"]:
        section += ["Left out of the source:", "", *(f"- `{variable}`" for variable in report["unused"]), ""]
    section += [f"- {note}" for note in report["notes"]]
    with atomic_file(folder / "README.md", "w") as stream:
        stream.write(f"{text}\n\n" + "\n".join(section).rstrip() + "\n")
