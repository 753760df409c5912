"""Folders of reference numbers and real text, given by the environment; tests that need one are skipped by name without it."""

import os
from pathlib import Path

import pytest

if (
    "PYTEST_XDIST_WORKER" in os.environ
):  # one thread a process: threads of several processes wait for each other, spinning
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def _folder(variable: str) -> Path:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set")
    return Path(value)


@pytest.fixture(scope="session")
def golden() -> Path:
    """Numbers printed by the original implementations (ALBERTKIT_GOLDEN)."""
    return _folder("ALBERTKIT_GOLDEN")


@pytest.fixture(scope="session")
def data() -> Path:
    """Real text and tasks (ALBERTKIT_DATA)."""
    return _folder("ALBERTKIT_DATA")
