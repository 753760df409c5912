"""Compiling loops takes long: it is logged once, before the wait."""

import logging

from albertkit import cli
from albertkit import jit as module


def test_the_first_compilation_of_a_process_is_logged(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(module._Compiling, "_logged", False)

    def double(x):
        return 2 * x

    loop = module.numba.njit(double)  # without a cache on the disk: it is compiled for each type
    with caplog.at_level(logging.INFO, logger=module.logger.name):
        assert (loop(3), loop(1.5)) == (6, 3.0)
    assert [record.getMessage() for record in caplog.records] == [
        "compiling loops for this processor, once: 10 to 50 s (beforehand: albertkit doctor --warm)"
    ]


def test_commands_print_that_log():
    assert module.logger.name in {f"albertkit.{name}" for name in cli._PRINTED}
