"""The worker alone: videos that it gives up, and int8, which it serves only where it agrees with fp32."""

import threading
import time

import pytest

from albertkit.engines.cpu.engine import precision_problem
from albertkit.errors import AlbertKitError, DataError
from albertkit.pipelines.compare_precision import PrecisionComparison
from albertkit.serve import worker
from albertkit.serve.options import ServeOptions
from albertkit.serve.protocol import StartMessage
from albertkit.serve.worker import time_limit


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(),
    reason="signals come to the main thread",
)
def test_a_video_that_takes_too_long_is_given_up():
    """Also where a decoder takes every exception for a broken frame and goes on."""

    def decode():
        begin = time.monotonic()
        while time.monotonic() < begin + 60:
            try:
                time.sleep(1)
            except Exception:
                continue

    with pytest.raises(DataError, match=r"\[too-large\]"), time_limit(0.05):
        decode()
    with time_limit(0.05):
        pass
    time.sleep(0.1)  # nothing comes afterwards


@pytest.mark.parametrize("force", [False, True])
def test_int8_that_disagrees(folders, monkeypatch, force):
    if reason := precision_problem("int8"):
        pytest.skip(reason)
    comparisons = []

    def disagreeing(model, *, precision):
        comparisons.append((model, precision))
        return PrecisionComparison(precision, "text", 1, 0.5, 0.1)

    monkeypatch.setattr(worker, "compare_precision", disagreeing)
    start = StartMessage(
        {"one": str(folders["classify"])},
        ServeOptions((), precision="int8", device="cpu", force=force),
    )
    if force:
        assert "one" in worker.load_served_models(start)[0]
    else:
        with pytest.raises(AlbertKitError, match=r"\[doubtful\]"):
            worker.load_served_models(start)
    assert comparisons == [(str(folders["classify"]), "int8")]
