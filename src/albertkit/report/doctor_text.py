"""How `albertkit doctor` shows its facts: a table for people, Markdown to paste into an issue, one JSON object."""

import json
import sys
from pathlib import Path
from typing import Any, TextIO

from albertkit.errors import ConfigError
from albertkit.report.doctor import examine

GIB = 1 << 30


def print_doctor(markdown: bool = False, as_json: bool = False, out: TextIO | None = None) -> int:
    """Examine this machine and print the result.

    Args:
        markdown: Print Markdown.
        as_json: Print one JSON object.
        out: Where to; standard output by default.

    Returns:
        Exit status: 1 if a core dependency is missing, outside its versions or broken, else 0.

    Raises:
        ConfigError: conflicting-options for Markdown and JSON at once.
        MachineError: As `examine`.
    """
    if markdown and as_json:
        raise ConfigError("conflicting-options", "--markdown and --json at once", "choose one of them")
    out = out or sys.stdout
    facts = examine()
    if as_json:
        print(json.dumps(facts, ensure_ascii=False), file=out)
    elif markdown:
        print(as_markdown(facts), file=out)
    else:
        _print_tables(facts, out)
    return int(any(problem["fatal"] for problem in facts["problems"]))


def machine_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts about the machine as names and texts."""
    machine, torch, compiler = facts["machine"], facts["torch"], facts["compiler"]
    flags = machine["cpu_flags"]
    rows = [
        ("albertkit", facts["albertkit"]),
        ("Python", "{implementation} {version} ({executable})".format(**facts["python"])),
        ("platform", facts["platform"]),
        ("CPU", machine["cpu"]),
        ("cores", f"{machine['usable_cores']} usable of {machine['cores']}"),
        ("memory", f"{_gib(machine['available_bytes'])} free of {_gib(machine['memory_bytes'])}"),
        ("CPU flags", "not known" if flags is None else " ".join(flags) or "none that matter"),
        ("bf16 on the CPU", _bf16(machine["native_bf16"], machine["faster_bf16"])),
    ]
    if torch["error"]:
        rows.append(("torch", torch["error"]))
    else:
        rows.append(("torch threads", f"{torch['threads']}, kernels for {torch['cpu_capability']}"))
        for device in torch["cuda_devices"]:
            bf16 = "bf16" if device["native_bf16"] else "no bf16"
            memory = _gib(device["memory_bytes"])
            if device["bf16_peak"]:
                bf16 += f" (data sheet: {device['bf16_peak'] / 1e12:,.0f} TFLOP/s)"
            rows.append(
                ("CUDA device", f"{device['name']}, {memory}, capability {device['compute_capability']}, {bf16}")
            )
            fault = device["packed_attention_fault"]
            rows.append(("packed attention", f"does not work: {fault}" if fault else "works"))
        if not torch["cuda_devices"]:
            reason = (
                f"none found (torch is built for CUDA {torch['cuda_build']})"
                if torch["cuda_build"]
                else "none (CPU build)"
            )
            rows.append(("CUDA device", reason))
        if torch["mps"]:
            rows.append(("Apple GPU", "available"))
    headers = "" if compiler["python_headers"] else ", Python's headers missing"
    rows.append(("C++ compiler", (compiler["path"] or f"`{compiler['command']}` not found") + headers))
    for place in facts["folders"]:
        state = "writable" if place["writable"] else "NOT writable"
        rows.append((place["name"], f"{place['path']}, {state}, {_gib(place['free_bytes'])} free"))
    return rows


def as_markdown(facts: dict[str, Any]) -> str:
    """The facts as Markdown for a public issue: the home folder, which names a person, becomes `~`."""
    lines = ["### albertkit doctor", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(text)} |" for name, text in machine_rows(facts)]
    lines += ["", "| package | installed | needed | |", "|---|---|---|---|"]
    for package in facts["packages"]:
        cells = (package["name"], package["installed"] or "–", package["required"] or "any", package["status"])
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    lines += ["", "| extra | state | install |", "|---|---|---|"]
    for extra, state in facts["extras"].items():
        lines.append(
            f"| {extra} | {_cell(_extra_text(state))} | {'`' + state['install'] + '`' if state['install'] else ''} |"
        )
    if facts["problems"]:
        lines += ["", "Problems:", ""]
        lines += [f"- {_cell(problem['fact'])}. Hint: `{problem['hint']}`" for problem in facts["problems"]]
    else:
        lines += ["", "No problems."]
    return "\n".join(lines).replace(str(Path.home()), "~")


def _print_tables(facts: dict[str, Any], out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=out, highlight=False)
    machine = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    machine.add_column(style="dim", no_wrap=True)
    machine.add_column(overflow="fold")
    for name, text in machine_rows(facts):
        machine.add_row(name, Text(text))
    packages = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("package", "installed", "needed", ""):
        packages.add_column(heading)
    for package in facts["packages"]:
        good = package["status"] == "ok"
        status = Text("✓" if good else package["status"], style="green" if good else "bold red")
        packages.add_row(package["name"], package["installed"] or "–", package["required"] or "any", status)
    extras = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    extras.add_column("extra")
    extras.add_column("", overflow="fold")
    for extra, state in facts["extras"].items():
        extras.add_row(
            extra, Text("✓" if state["complete"] else _extra_text(state), "green" if state["complete"] else "yellow")
        )
    for table in (machine, packages, extras):
        console.print(table)
        console.print()
    for state in facts["extras"].values():
        if state["install"]:  # a line of its own, unwrapped, so that it can be copied
            console.print(Text(f"  {state['install']}"), soft_wrap=True)
    for problem in facts["problems"]:
        console.print(Text("✗ " if problem["fatal"] else "! ", "bold red" if problem["fatal"] else "yellow"), end="")
        console.print(Text(problem["fact"]), soft_wrap=True)
        console.print(Text(f"  hint: {problem['hint']}"), soft_wrap=True)
    if not facts["problems"]:
        console.print(Text("✓ the core is complete", "green"))


def _extra_text(state: dict[str, Any]) -> str:
    if state["complete"]:
        return "complete"
    return ", ".join(f"{p['name']} {p['status']}" for p in state["packages"] if p["status"] != "ok")


def _bf16(native: bool | None, faster: bool | None) -> str:
    if native is None:
        return "not known"
    if not native:
        return "emulated: slower than fp32"
    return "in hardware" if faster else "in hardware, but not known to be faster than fp32"


def _gib(size: int | None) -> str:
    return "?" if size is None else f"{size / GIB:.1f} GiB"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
