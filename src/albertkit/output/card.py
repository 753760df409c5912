"""Model cards: the `README.md` of a model folder, with metadata for a hub, a heading and sections."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from albertkit.files import StrPath, write_file
from albertkit.output.render import escape_markdown, to_markdown
from albertkit.output.sections import FactList, Paragraph, Section


@dataclass(frozen=True)
class Card:
    """A model card.

    Attributes:
        name: Heading.
        fields: The hub's metadata.
        sections: The content; sections without any are left out.
    """

    name: str
    fields: Mapping[str, Any]
    sections: Sequence[Section]

    def text(self) -> str:
        """Return YAML front matter, then Markdown."""
        lines = ["---"]
        for key, value in self.fields.items():
            # Texts in JSON's quotes, which YAML reads, so that `no` stays Norwegian.
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                lines += [f"{key}:", *(f"- {json.dumps(item)}" for item in value)]
            else:
                lines.append(f"{key}: {json.dumps(value, ensure_ascii=False)}")
        lines += ["---", "", f"# {escape_markdown(self.name)}", "", to_markdown(self.sections)]
        return "\n".join(lines)

    def write(self, folder: StrPath) -> Path:
        """Write `README.md` into a model's folder and return the file."""
        text = self.text()
        file = Path(folder) / "README.md"
        write_file(file, text)
        return file


def hub_fields(pipeline: str) -> dict[str, Any]:
    """Return the metadata that a hub reads; `pipeline` is its name of what the model does."""
    return {
        "library_name": "transformers",
        "pipeline_tag": pipeline,
        "tags": ["albert", "albertkit", pipeline],
    }


def package_versions() -> dict[str, str]:
    """Return package to version, Python first."""
    packages = ("albertkit", "torch", "numpy", "numba", "sentencepiece")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def settings_sections(
    settings: Mapping[str, Any], versions: Mapping[str, str] | None = None
) -> list[Section]:
    """Return the end of every card: the settings of the training, and the versions that it ran with."""
    sections: list[Section] = [FactList(settings, "Settings", exact=True)]
    if versions:
        text = ", ".join(f"{package} {version}" for package, version in versions.items())
        sections.append(Paragraph(f"{text}.", "Versions"))
    return sections


def code_block(text: str, language: str = "python", title: str = "") -> Paragraph:
    """Return a block of code."""
    return Paragraph(text, title, form="code", language=language)


def python_literal(text: str) -> str:
    """Return a text as a literal of Python."""
    return json.dumps(text)
