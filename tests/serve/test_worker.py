"""The worker alone: what it gives up."""

import threading
import time

import pytest

from albertkit.errors import DataError
from albertkit.serve.worker import _at_most


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals come to the main thread")
def test_a_video_that_takes_too_long_is_given_up():
    """Also where a decoder takes every exception for a broken frame and goes on."""

    def decode():
        begin = time.monotonic()
        while time.monotonic() < begin + 60:
            try:
                time.sleep(1)
            except Exception:
                continue

    with pytest.raises(DataError) as error, _at_most(0.05):
        decode()
    assert error.value.slug == "too-large"
    with _at_most(0.05):
        pass
    time.sleep(0.1)  # nothing comes afterwards
