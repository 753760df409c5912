"""An event loop for tests of what happens in time."""

import asyncio


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next thing that waits."""

    def __init__(self):
        super().__init__()
        self._now = 0.0
        select = self._selector.select

        def jump(timeout=None):
            events = select(0)
            if not events and timeout:
                self._now += timeout
            return events

        self._selector.select = jump

    def time(self):
        return self._now
