"""Compiled loops on the disk are those of the sources that a process imports, in whichever folder these lie."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import albertkit
from albertkit import loop_cache
from albertkit.pretraining import examples, masking

PACKAGE = Path(albertkit.__file__).parent
HALF_OF_THE_LOST = """
import sys
import numpy as np
from albertkit.pretraining.examples import truncated_front_and_kept_lengths
print(truncated_front_and_kept_lengths(70, 0, 6, np.uint64(5), 0)[0], file=sys.stdout)
"""

WITHOUT_RIGHTS = """
import os, pathlib
def refuse(*_, **__):
    raise PermissionError(13, "denied")
os.utime = pathlib.Path.mkdir = refuse
"""


def _copy_package(folder):
    shutil.copytree(PACKAGE, folder / "albertkit", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _run(sources, cache, code=HALF_OF_THE_LOST):
    """Return what a new process prints, and whether it compiled anything."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(sources),
        "NUMBA_CACHE_DIR": str(cache),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return process.stdout.strip(), "compiling loops" in process.stderr


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return _copy_package(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory, sources):
    """A cache that holds the loop of the sources."""
    folder = tmp_path_factory.mktemp("cache")
    assert _run(sources, folder) == ("28", True)
    return folder


def test_changed_callee_of_another_module_is_seen(tmp_path, cache):
    changed = _copy_package(tmp_path)
    callee = changed / "albertkit/pretraining/randomness.py"
    source = callee.read_text()
    assert source.count("    return count + ") == 1
    callee.write_text(source.replace("    return count + ", "    return 1000 + count + "))
    assert _run(changed, cache) == ("1028", True)


def test_same_sources_in_another_folder_compile_nothing(tmp_path, cache):
    copied = _copy_package(tmp_path)
    for path in copied.rglob("*.py"):  # as after a fresh checkout
        os.utime(path, (1, 1))
    assert _run(copied, cache) == ("28", False)


def test_damaged_file_is_compiled_again(tmp_path, sources, cache):
    copied = Path(shutil.copytree(cache, tmp_path / "cache"))
    for path in copied.rglob("*.loop"):
        path.write_bytes(path.read_bytes()[:-1])
    assert _run(sources, copied) == ("28", True)
    assert _run(sources, copied) == ("28", False)


def test_sources_that_changed_since_the_process_began_are_not_cached(tmp_path, sources):
    copied = _copy_package(tmp_path / "sources")
    callee = copied / "albertkit/pretraining/randomness.py"
    touch = f"import albertkit.jit, pathlib, time; time.sleep(0.02); pathlib.Path({str(callee)!r}).touch()"
    assert _run(copied, tmp_path / "cache", touch + HALF_OF_THE_LOST) == ("28", True)
    assert _run(copied, tmp_path / "cache") == ("28", True)


def test_cache_that_cannot_be_written_is_read(sources, cache):
    """Loops compiled for a container image are used by a process without rights to the folder."""
    assert _run(sources, cache, WITHOUT_RIGHTS + HALF_OF_THE_LOST) == ("28", False)


def test_digest_is_of_all_modules_that_a_module_imports():
    def names(module):
        return {str(path.relative_to(PACKAGE)) for path in loop_cache.source_files(module.__file__)}

    assert names(examples) == {
        "pretraining/examples.py",
        "pretraining/randomness.py",
        "jit.py",
        "validation.py",
    }
    assert names(examples) < names(masking)
    assert "pretraining/masking.py" in names(masking)


def test_old_versions_are_removed(tmp_path):
    folders = [tmp_path / f"a.module-{index:016x}" for index in range(loop_cache.MAX_VERSIONS + 2)]
    for age, folder in enumerate(folders):
        folder.mkdir()
        os.utime(folder, (1000 - age, 1000 - age))
    (tmp_path / f"a.module.longer-{0:016x}").mkdir()
    loop_cache.remove_old_versions(folders[0])
    assert [folder.is_dir() for folder in folders] == [True] * loop_cache.MAX_VERSIONS + [False] * 2
    assert (tmp_path / f"a.module.longer-{0:016x}").is_dir()


def test_package_in_a_zip_file_computes(tmp_path, sources):
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", sources)
    environment = {**os.environ, "PYTHONPATH": archive}
    process = subprocess.run(
        [sys.executable, "-c", HALF_OF_THE_LOST],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.strip() == "28"
    assert "no folder to cache compiled loops in" in process.stderr
