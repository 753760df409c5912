"""The common tests of transformers' own suite, on accelerated ALBERTs: ALBERTKIT_TRANSFORMERS names its unpacked source archive.

pip download --no-deps --no-binary :all: transformers==5.23.0 && tar xf transformers-5.23.0.tar.gz
pip install parameterized
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# From the engine, states at padding are zeros; this test compares them with the model's own, computed from embeddings.
ZEROS_AT_PADDING = "test_inputs_embeds_matches_input_ids"


@pytest.mark.peer
def test_transformers_own_tests(tmp_path: Path) -> None:
    given = os.environ.get("ALBERTKIT_TRANSFORMERS")
    if not given:
        pytest.skip("ALBERTKIT_TRANSFORMERS is not set")
    if importlib.util.find_spec("parameterized") is None:
        pytest.skip("transformers' tests need parameterized")
    shutil.copytree(Path(given) / "tests", tmp_path / "tests")
    shutil.copy(Path(__file__).with_name("common_cases.py"), tmp_path / "test_common_cases.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--import-mode=prepend"]
    done = subprocess.run(
        [*command, "test_common_cases.py", "-k", f"not {ZEROS_AT_PADDING}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
    )
    summary = done.stdout.splitlines()[-1]
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(summary.split(" passed")[0].split()[-1]) > 90, summary
