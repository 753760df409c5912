"""How long work takes: the speed of each pipeline, learned from its batches, and what can be done within a request's time."""

from albertkit.serve.refusals import ServiceError

CALL_TOKENS = 512  # what a call (a caption, a look inside) counts for in the queue
Key = tuple[str, str]  # name of a model, kind of its pipeline
BACKLOG = 0.6  # of a request's time: no more work is accepted than can be computed in it
ALONE = 0.9  # of a request's time: what a request may take where nothing else waits
_FULL = 0.5  # of a batch: the time of a smaller one is mostly overhead, and says little of a token's
_NEW = 0.2  # weight of the latest batch


class Pace:
    """Tokens a second of each pipeline.

    Args:
        batch_tokens: Most tokens of a batch. Speed is learned from batches of at least half as many, which there are
            under load, and from calls. Until then it is unknown, and work counts as done at once.
    """

    def __init__(self, batch_tokens: int) -> None:
        self._least = _FULL * batch_tokens
        self._rates: dict[Key, float] = {}

    def learn(self, key: Key, tokens: int, seconds: float, is_call: bool = False) -> None:
        """Take the time of a batch into account."""
        if is_call or tokens >= self._least:
            rate = tokens / max(seconds, 1e-6)
            self._rates[key] = rate if key not in self._rates else (1 - _NEW) * self._rates[key] + _NEW * rate

    def seconds(self, key: Key, tokens: int) -> float:
        """How long tokens take; 0 while the speed is unknown."""
        return tokens / self._rates[key] if key in self._rates else 0.0


def check_time(waiting: float, own: float, left: float) -> None:
    """Refuse a request that cannot be finished in its time, before anything of it is computed.

    Args:
        waiting: Seconds of work before it.
        own: Seconds of its own work.
        left: Seconds until its time is over.

    Raises:
        ServiceError: queue-full (429), request-too-large (413) for one that is too large even alone.
    """
    if own > ALONE * left:
        raise ServiceError(
            "request-too-large", f"the request takes about {own:.0f} seconds, {left:.0f} are left for it",
            "send fewer texts in a request", status=413,
        )  # fmt: skip
    if waiting and waiting + own > BACKLOG * left:
        raise ServiceError(
            "queue-full", f"about {waiting:.0f} seconds of work wait, more than can be done in time",
            "send it again later", status=429, retry_after=max(1, round(waiting + own - BACKLOG * left + 0.5)),
        )  # fmt: skip
