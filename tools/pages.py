"""Build the documentation as pages in build/docs: the guides, and pages made from the code and the README.

`index.md` is the README, `commands.md` the table of commands, `reference.md` the public names of
`albertkit` by subject.
"""

import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import albertkit
from albertkit.cli.commands import COMMANDS

ROOT = Path(__file__).parents[1]
# Packages in the order of a model's life, and what their part of the reference is called.
PARTS = {
    "tokenizer": "Tokenizers", "vocabulary": "Tokenizers", "corpus": "Token stores", "pretraining": "Pretraining",
    "training": "Pretraining", "config": "Models", "model": "Models", "command": "Fine-tuning", "conversion": "Models",
    "tasks": "Fine-tuning", "embeddings": "Sentence embeddings", "captioning": "Video captioning",
    "swinbert": "Video captioning", "pipelines": "Inference", "batches": "Models",
    "tables": "Fine-tuning", "engines": "Inference", "export": "Inference", "first_run": "Pretraining", "errors": "Errors",
}  # fmt: skip


def main() -> int:
    """Write build/pages anew and let zensical build them; a warning is an error, its own or that of the docstrings' reader."""
    pages = ROOT / "build" / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    shutil.copytree(ROOT / "recipes", pages / "recipes")
    texts = {"commands.md": commands(), "reference.md": reference()}
    copies = {
        "index.md": "README.md",
        "CONTRIBUTING.md": "CONTRIBUTING.md",
        "CHANGELOG.md": "CHANGELOG.md",
        "LICENSE": "LICENSE",
    }
    texts |= {name: (ROOT / file).read_text(encoding="utf-8") for name, file in copies.items()}
    for name, text in texts.items():
        (pages / name).write_text(text.replace("](docs/", "]("), encoding="utf-8")
    for page in pages.glob("*.md"):
        page.write_text(page.read_text(encoding="utf-8").replace("](../", "]("), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "zensical",
        "build",
        "--clean",
        "--strict",
        "--config-file",
        str(ROOT / "mkdocs.yml"),
    ]
    built = subprocess.run(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    print(built.stdout)
    return built.returncode or int("griffe: " in built.stdout)


def commands() -> str:
    """Return a page with a row for every command."""
    lines = [
        "# Commands",
        "",
        "`albertkit COMMAND --help` lists the options.",
        "",
        "| Command | What it does |",
        "|---|---|",
    ]
    for command in COMMANDS:
        summary = " ".join(
            (inspect.getdoc(command.make_cli_function()) or "").split("\n\n")[0].split()
        )
        lines.append(f"| `albertkit {command.name}` | {summary} |")
    return "\n".join(lines) + "\n"


def reference() -> str:
    """Return a page with every public name, a function of options with its dataclass."""
    parts: dict[str, list[str]] = {title: [] for title in dict.fromkeys(PARTS.values())}
    for name in albertkit.__all__:
        value = getattr(albertkit, name)
        if not hasattr(value, "__module__"):
            continue
        import_path = f"{value.__module__}.{value.__qualname__}"
        lines = parts[PARTS[value.__module__.split(".")[1]]]
        lines.append(f"::: {import_path}")
        if options := getattr(value, "takes", None):
            lines.append(f"::: {options.__module__}.{options.__qualname__}")
    text = ["# Reference", "", "All names can be imported from `albertkit`."]
    for title, lines in parts.items():
        if lines:
            text += ["", f"## {title}", "", "\n\n".join(dict.fromkeys(lines))]
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    sys.exit(main())
