"""transformers' own tests, on accelerated ALBERTs.

ALBERTKIT_TRANSFORMERS names a checkout of huggingface/transformers at the version installed, or its unpacked source archive,
which has the common tests of models alone:

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

pytestmark = pytest.mark.peer

# From the engine, states at padding are zeros; this test compares them with the model's own, computed from embeddings.
ZEROS_AT_PADDING = "test_inputs_embeds_matches_input_ids"
OWN_TESTS = "tests/models/albert/test_modeling_albert.py"


@pytest.fixture
def transformers_source():
    source = os.environ.get("ALBERTKIT_TRANSFORMERS")
    if not source:
        pytest.skip("ALBERTKIT_TRANSFORMERS is not set")
    if importlib.util.find_spec("parameterized") is None:
        pytest.skip("transformers' tests need parameterized")
    return Path(source)


def check_tests_pass(folder, tests):
    """Run tests with the plugin `accelerated_albert`, without the one that cannot pass."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "accelerated_albert",
        "-W",
        "ignore",
    ]
    paths = [str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    process = subprocess.run(
        [*command, "--import-mode=prepend", tests, "-k", f"not {ZEROS_AT_PADDING}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    summary = process.stdout.splitlines()[-1]
    assert process.returncode == 0, process.stdout[-3000:]
    assert int(summary.split(" passed")[0].split()[-1]) > 90, summary
    assert int(process.stdout.split("computed by the engine: ")[1].split()[0]) > 30


def test_common_tests_of_models(transformers_source, tmp_path):
    shutil.copytree(transformers_source / "tests", tmp_path / "tests")
    shutil.copy(Path(__file__).with_name("common_cases.py"), tmp_path / "test_common_cases.py")
    check_tests_pass(tmp_path, "test_common_cases.py")


def test_albert_tests(transformers_source):
    if not (transformers_source / OWN_TESTS).is_file():
        pytest.skip(f"{transformers_source} is no checkout: it has no {OWN_TESTS}")
    check_tests_pass(transformers_source, OWN_TESTS)
