"""Compiling loops takes long: it is logged once, before the wait."""

import logging

import numpy as np

from albertkit import cli
from albertkit import jit as module


def test_the_first_compilation_of_a_process_is_logged(monkeypatch, caplog):
    monkeypatch.setattr(module._Compiling, "_logged", False)

    def double(x):
        return 2 * x

    loop = module.numba.njit(double)  # without a cache on the disk: it is compiled for each type
    with caplog.at_level(logging.INFO, logger=module.logger.name):
        assert loop(3) == 6
        assert loop(1.5) == 3.0
    assert [record.getMessage() for record in caplog.records] == [
        "compiling loops for this processor, once: 1 to 30 s of a core (beforehand: albertkit doctor --warm)"
    ]


def test_commands_print_that_log():
    assert module.logger.name in {f"albertkit.{name}" for name in cli._PRINTED}


def test_loops_within_a_loop_become_machine_code_only_with_it(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    finalized = []
    make_code = module.JITCodeLibrary._finalize_specific
    monkeypatch.setattr(
        module.JITCodeLibrary,
        "_finalize_specific",
        lambda self: finalized.append(self.name) or make_code(self),
    )

    @module.compiled
    def square(x):
        return x * x

    @module.compiled
    def sum_of_squares(values):
        total = 0.0
        for value in values:
            total += square(value)
        return total

    @module.compiled
    def norm(values):
        return np.sqrt(sum_of_squares(values))

    assert norm(np.array([3.0, 4.0])) == 5.0
    assert not [
        name for name in finalized if name.endswith("square") or name.endswith("sum_of_squares")
    ]
    assert square(3.0) == 9.0  # called by Python, it is a loop of its own
    assert [name for name in finalized if name.endswith("square")]
