"""`albertkit doctor`: what this machine and this installation can do, what is missing, and whether files are as written."""

import importlib.metadata
import math
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albertkit.command import takes
from albertkit.errors import AlbertKitError, ConfigError, DataError, MissingExtraError
from albertkit.files import CHECKSUMS, StrPath, cache_folder, files_not_matching_checksums
from albertkit.output.render import print_sections, to_markdown
from albertkit.output.sections import Cell, FactList, Paragraph, Result, Section, TableSection
from albertkit.report.options import DoctorOptions

GIB = 1 << 30
CORE_INSTALL = "pip install -c constraints.txt albertkit"

# What decides how fast an ALBERT runs here: vectors, and bf16 or int8 products in hardware (x86,
# then ARM); torch's names.
CPU_INSTRUCTIONS = (
    "avx2 avx512_f avx512_bf16 avx512_vnni amx_bf16 amx_int8 neon sve bf16 i8mm".split()
)


@dataclass(frozen=True)
class Examination(Result):
    """Report of this machine and this installation.

    Attributes:
        albertkit: Its version.
        python: Its version, implementation and executable.
        platform: The system.
        machine: The CPU's name, cores and memory.
        packages: Of the core: name, installed (version or None), required, status ("ok", "missing",
            "too old", "too new", "unreadable").
        extras: Name to whether it is complete, its packages, and the install line if it is not.
        torch: What torch and the engines can use here.
        compiler: The C++ compiler of torch.compile.
        folders: Where files are written.
        problems: Each with its `fact`, a `hint`, and whether it is `fatal`: keeps the core from
            working.
        markdown: Whether it is printed as Markdown.
    """

    albertkit: str
    python: dict[str, str]
    platform: str
    machine: dict[str, Any]
    packages: list[dict[str, Any]]
    extras: dict[str, dict[str, Any]]
    torch: dict[str, Any]
    compiler: dict[str, Any]
    folders: list[dict[str, Any]]
    problems: list[dict[str, Any]]
    markdown: bool = False

    @property
    def exit_status(self) -> int:
        """Return 1 if something keeps the core from working."""
        return int(any(problem["fatal"] for problem in self.problems))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: value for name, value in super().to_dict().items() if name != "markdown"}

    def sections(self) -> list[Section]:
        """Return the machine, the packages, the extras and the problems."""
        machine = self.machine
        compiler = self.compiler
        devices = (
            {"torch": self.torch["error"]} if self.torch["error"] else _device_facts(self.torch)
        )
        headers = "" if compiler["python_headers"] else ", Python's headers missing"
        facts: dict[str, Any] = {
            "albertkit": self.albertkit,
            "Python": "{implementation} {version} ({executable})".format(**self.python),
            "platform": self.platform,
            "CPU": machine["cpu"],
            "cores": f"{machine['usable_cores']} usable of {machine['cores']}",
            "memory": f"{_format_gib(machine['available_bytes'])} free of {_format_gib(machine['memory_bytes'])}",
            **devices,
            "C++ compiler": (compiler["path"] or f"`{compiler['command']}` not found") + headers,
        }
        for folder in self.folders:
            access = "writable" if folder["writable"] else "NOT writable"
            facts[folder["name"]] = (
                f"{folder['path']}, {access}, {_format_gib(folder['free_bytes'])} free"
            )
        packages = []
        for package in self.packages:
            status = Cell(package["status"], "bad")
            if package["status"] == "ok":
                status = Cell("✓", "good")
            installed = package["installed"] or "–"
            required = package["required"] or "any"
            packages.append([package["name"], installed, required, status])
        extras = []
        installs = []
        for extra, state in self.extras.items():
            lacking = [
                f"{row['name']} {row['status']}"
                for row in state["packages"]
                if row["status"] != "ok"
            ]
            cell = Cell("✓", "good")
            if lacking:
                cell = Cell(", ".join(lacking), "warning")
            extras.append([extra, cell])
            if state["install"]:
                installs.append(state["install"])
        problems: list[Section] = []
        for problem in self.problems:
            problems.append(
                Paragraph(problem["fact"], tone="bad" if problem["fatal"] else "warning")
            )
            problems.append(Paragraph(f"hint: {problem['hint']}"))
        return [
            FactList(facts, "albertkit doctor"),
            TableSection(["package", "installed", "needed", "state"], packages),
            TableSection(["extra", "state"], extras),
            Paragraph("\n".join(installs), form="code"),  # whole lines, so that they can be copied
            *(problems or [Paragraph("the core is complete", tone="good")]),
        ]


@takes(DoctorOptions)
def doctor(options: DoctorOptions) -> Result:
    """Examine this machine and this installation, or verify the files in a folder."""
    if options.markdown and options.json:
        raise ConfigError(
            "conflicting-options",
            "--markdown and --json cannot be combined",
            "choose one of them",
        )
    if options.warm:
        if options.folder is not None:
            raise ConfigError(
                "conflicting-options",
                "--warm and a folder cannot be combined",
                "leave the folder out",
            )
        from albertkit.report.warm import compile_loops  # imports torch

        return compile_loops(progress=not options.json)
    if options.folder is not None:
        return verify_files(options.folder)
    return examine_machine(options.markdown)


def show_doctor(result: Result) -> None:
    """Print the result: as Markdown for an issue where that was asked for, else as sections."""
    if getattr(result, "markdown", False):
        print(as_markdown(result), end="")
    else:
        print_sections(result.sections())


def as_markdown(result: Result) -> str:
    """Return the result as Markdown for a public issue."""
    # The home folder names the user: it becomes `~`.
    return to_markdown(result.sections(), level=3).replace(str(Path.home()), "~")


def examine_machine(markdown: bool = False) -> Examination:
    """Examine everything that can be known without loading a model."""
    try:
        version = importlib.metadata.version("albertkit")
        requirements = importlib.metadata.requires("albertkit")
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtraError(
            "not-installed",
            "albertkit runs from a folder and is not installed, so nothing says what it needs",
            "pip install -c constraints.txt -e .",
        ) from None
    packages, extras = examine_core_and_extras(requirements or [])
    facts: dict[str, Any] = {
        "albertkit": version,
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
        },
        "platform": platform.platform(),
        "machine": machine_facts(),
        "packages": packages,
        "extras": extras,
        "torch": torch_facts(),
        "compiler": compiler_facts(),
        "folders": [
            folder_write_facts("temporary files", Path(tempfile.gettempdir())),
            folder_write_facts("cache", cache_folder()),
        ],
    }
    return Examination(**facts, problems=find_problems(facts), markdown=markdown)


# --- packages -------------------------------------------------------------------------------------


def examine_core_and_extras(
    requirements: Iterable[str],
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Compare installed packages with requirements as metadata states them: the core's, and those of each extra by name."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        raise MissingExtraError(
            "not-installed",
            "the package `packaging` is not installed",
            CORE_INSTALL,
        ) from None
    core: list[dict[str, Any]] = []
    by_extra: dict[str, list[dict[str, Any]]] = {}
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            core.append(_compare_with_installed(requirement))
            continue
        for extra in re.findall(r'extra == "([^"]+)"', str(marker)):
            if marker.evaluate({"extra": extra}):
                by_extra.setdefault(extra, []).append(_compare_with_installed(requirement))
    extras = {}
    for extra, packages in sorted(by_extra.items()):
        lacking = [package["name"] for package in packages if package["status"] != "ok"]
        install = MissingExtraError.for_package(lacking[0], extra, "").hint if lacking else None
        extras[extra] = {"complete": not lacking, "packages": packages, "install": install}
    return core, extras


def _compare_with_installed(requirement: Any) -> dict[str, Any]:
    from packaging.version import InvalidVersion, Version

    # From the package's metadata, so that one too broken to import is still listed.
    row = {
        "name": requirement.name,
        "installed": None,
        "required": str(requirement.specifier),
        "status": "missing",
    }
    try:
        row["installed"] = importlib.metadata.version(requirement.name)
        version = Version(row["installed"])
    except importlib.metadata.PackageNotFoundError:
        return row
    except (InvalidVersion, TypeError):  # a half-removed package leaves metadata without a version
        return row | {"status": "unreadable"}
    if requirement.specifier.contains(version, prereleases=True):
        return row | {"status": "ok"}
    for part in requirement.specifier:
        if part.operator in (">=", ">", "~=") and version < Version(part.version):
            return row | {"status": "too old"}
    return row | {"status": "too new"}


# --- machine --------------------------------------------------------------------------------------


def machine_facts() -> dict[str, Any]:
    """Return cores, memory and the CPU's name; None where the system does not list them."""
    cpu = _proc_fields("/proc/cpuinfo")
    memory = _proc_fields("/proc/meminfo")
    total = _kibibytes(memory.get("MemTotal"))
    if total is None and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit_text = _first_line(
        "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"
    )
    # Of the container, by cgroup version 2 or 1
    limit = int(limit_text) if limit_text.isdigit() else None
    # Cores this process may use, by affinity and by the container's quota of processor time.
    usable_cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
    quota = _first_line("/sys/fs/cgroup/cpu.max").split()
    if usable_cores and len(quota) == 2 and quota[0].isdigit():
        cores_of_quota = math.ceil(int(quota[0]) / int(quota[1]))
        usable_cores = max(min(usable_cores, cores_of_quota), 1)
    return {
        "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores,
        "memory_bytes": min(total, limit) if total and limit else total,
        "available_bytes": _kibibytes(memory.get("MemAvailable")),
    }


def _proc_fields(path: str) -> dict[str, str]:
    """Return the first value of every `name: value` line; empty where there is no such file."""
    fields: dict[str, str] = {}
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return fields
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields


def _kibibytes(text: str | None) -> int | None:
    return int(text.split()[0]) * 1024 if text else None


def _first_line(*paths: str) -> str:
    for path in paths:
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except OSError:
            continue
    return ""


def torch_facts() -> dict[str, Any]:
    """Return what torch can use here; `error` with the reason if it cannot be imported."""
    # Not by `torch.utils.collect_env`, which takes 3.1 s (it runs `pip list`), says nothing where
    # torch is broken, and has the host's memory in a container.
    try:
        import torch
    except Exception as error:  # a broken binary raises OSError, a clash with numpy anything
        return {"error": f"{type(error).__name__}: {error}"}
    from albertkit.engines import engine
    from albertkit.training.processes import bf16_peak_of_gpu

    cpu = torch.device("cpu")
    packed = []
    for precision, instructions in engine.FUSED_INSTRUCTIONS.items():
        if all(map(engine.has_instructions, instructions)):
            packed.append(precision)
    devices = []
    if torch.cuda.is_available():
        from albertkit.model.attention import varlen_attention_problem

        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            devices.append(
                {
                    "name": properties.name,
                    "memory_bytes": properties.total_memory,
                    "compute_capability": f"{properties.major}.{properties.minor}",
                    "native_bf16": properties.major >= 8,  # Ampere and newer
                    "bf16_peak": bf16_peak_of_gpu(properties.name),
                    "packed_attention_fault": varlen_attention_problem(torch.device("cuda", index)),
                }
            )
    return {
        "error": None,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_instructions": list(filter(engine.has_instructions, CPU_INSTRUCTIONS)),
        "native_bf16": engine.has_native_bf16(cpu),
        "faster_bf16": engine.is_bf16_faster(cpu),
        "packed_precisions": packed,
        "cuda_build": torch.version.cuda,
        "cuda_devices": devices,
        "mps": torch.backends.mps.is_available(),
    }


def compiler_facts() -> dict[str, Any]:
    """Find the C++ compiler that torch.compile would call ($CXX, else g++, on macOS clang++) and Python's headers."""
    command = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return {
        "command": command,
        "path": shutil.which(command.split()[0]),
        "python_headers": header.is_file(),
    }


def folder_write_facts(name: str, path: Path) -> dict[str, Any]:
    """Test whether a file can be made in a folder, or in the nearest one above it that exists, and measure its free space."""
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.is_dir())
    try:
        with tempfile.TemporaryFile(dir=existing):
            writable = True
    except OSError:
        writable = False
    return {
        "name": name,
        "path": str(path),
        "writable": writable,
        "free_bytes": shutil.disk_usage(existing).free,
    }


# --- verdict --------------------------------------------------------------------------------------


def find_problems(machine: dict[str, Any]) -> list[dict[str, Any]]:
    """List the problems, worst first: each with its `fact`, a `hint` that works, and whether it is `fatal` to the core."""
    problems: list[dict[str, Any]] = []

    def add(fact: str, hint: str, fatal: bool = False) -> None:
        problems.append({"fact": fact, "hint": hint, "fatal": fatal})

    for package in machine["packages"]:
        if package["status"] != "ok":
            state = (
                f"{package['installed']} is installed"
                if package["installed"]
                else "it is not installed"
            )
            needed = package["required"] or "any version"
            add(
                f"{package['name']} is {package['status']}: {state}, {needed} is needed",
                CORE_INSTALL,
                fatal=True,
            )
    torch_missing = any(
        p["name"] == "torch" and p["status"] == "missing" for p in machine["packages"]
    )
    if machine["torch"]["error"] and not torch_missing:
        hint = "pip install --force-reinstall -c constraints.txt torch"
        add(f"torch cannot be imported: {machine['torch']['error']}", hint, fatal=True)
    for folder in machine["folders"]:
        if not folder["writable"]:
            fact = f"the folder for {folder['name']}, `{folder['path']}`, cannot be written to"
            variable = "XDG_CACHE_HOME" if folder["name"] == "cache" else "TMPDIR"
            add(fact, f"set {variable} to a folder you own")
    tool = machine["compiler"]
    if not tool["path"]:
        fact = (
            f"there is no C++ compiler `{tool['command']}`: torch.compile does not work on the CPU"
        )
        add(fact, "install one (Debian: apt install g++), or set CXX")
    elif not tool["python_headers"]:
        fact = "Python's C headers are missing: torch.compile does not work on the CPU"
        add(fact, "install them (Debian: apt install python3-dev)")
    return problems


# --- texts ----------------------------------------------------------------------------------------


def _device_facts(torch: dict[str, Any]) -> dict[str, str]:
    """Return what torch and the engines compute on."""
    bf16 = "emulated, or not known to be faster than fp32"
    if torch["native_bf16"]:
        bf16 = (
            "in hardware"
            if torch["faster_bf16"]
            else "in hardware, but not known to be faster than fp32"
        )
    engines = "torch's products: packed weights need AVX-512"
    if torch["packed_precisions"]:
        engines = f"packed weights in {', '.join(torch['packed_precisions'])}"
    facts = {
        "CPU instructions": " ".join(torch["cpu_instructions"]) or "none that matter",
        "bf16 on the CPU": bf16,
        "engines": engines,
        "torch threads": f"{torch['threads']}, kernels for {torch['cpu_capability']}",
    }
    for index, device in enumerate(torch["cuda_devices"]):
        number = f" {index}" if len(torch["cuda_devices"]) > 1 else ""
        bf16 = "bf16" if device["native_bf16"] else "no bf16"
        if device["bf16_peak"]:
            bf16 += f" (data sheet: {device['bf16_peak'] / 1e12:,.0f} TFLOP/s)"
        memory = _format_gib(device["memory_bytes"])
        facts[f"CUDA device{number}"] = (
            f"{device['name']}, {memory}, capability {device['compute_capability']}, {bf16}"
        )
        fault = device["packed_attention_fault"]
        facts[f"packed attention{number}"] = f"does not work: {fault}" if fault else "works"
    if not torch["cuda_devices"]:
        build = torch["cuda_build"]
        facts["CUDA device"] = (
            f"none found (torch is built for CUDA {build})" if build else "none (CPU build)"
        )
    if torch["mps"]:
        facts["Apple GPU"] = "available"
    return facts


def _format_gib(size: int | None) -> str:
    return "?" if size is None else f"{size / GIB:.1f} GiB"


@dataclass(frozen=True)
class VerifyReport(Result):
    """Files whose checksums `verify_files` has confirmed.

    Attributes:
        folder: The folder.
        models: Folders of models with checksums: checkpoints, `best`, `final`, `start` of runs.
        stores: Token stores.
        prepared: Folders of prepared clips.
    """

    folder: str
    models: int
    stores: int
    prepared: int


def verify_files(folder: StrPath) -> VerifyReport:
    """Compare everything below a folder (a run, a store, prepared clips) with the checksums that were written with it."""
    from albertkit.captioning.prepared import PREPARED, PreparedClips, is_item_intact, item_file
    from albertkit.corpus.store import MANIFEST, UNFINISHED, TokenStore

    root = Path(folder)
    hint = "name a run, a store or a folder of prepared clips"
    if not root.is_dir():
        raise DataError("not-found", f"there is no folder `{root}`", hint)
    counts = {CHECKSUMS: 0, MANIFEST: 0, PREPARED: 0}
    corrupt: list[str] = []
    for folder_name, folders, names in os.walk(root):
        folders.sort()
        path = Path(folder_name)
        for kind in counts.keys() & set(names):
            if kind == MANIFEST and UNFINISHED in path.parts:
                continue
            counts[kind] += 1
            if kind == CHECKSUMS:
                corrupt += [str(path / name) for name in files_not_matching_checksums(path)]
                continue
            try:
                if kind == MANIFEST:
                    TokenStore.open(path).verify()
                    continue
                clips = PreparedClips.open(path)
            except AlbertKitError as error:
                corrupt.append(error.message)
                continue
            items = {clip.item for split in clips.splits.values() for clip in split}
            for item in sorted(items):
                if not is_item_intact(path, item, clips.dtype):
                    corrupt.append(str(item_file(path, item)))
    if not any(counts.values()):
        raise DataError("missing-file", f"nothing below `{root}` has checksums", hint)
    if corrupt:
        listing = "; ".join(corrupt[:10])
        if len(corrupt) > 10:
            listing += f" … ({len(corrupt):,} in all)"
        raise DataError(
            "corrupt",
            f"corrupted: {listing}",
            "copy them again from an intact copy, or make them again",
        )
    return VerifyReport(str(root), counts[CHECKSUMS], counts[MANIFEST], counts[PREPARED])
