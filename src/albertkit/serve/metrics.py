"""What is counted, for Prometheus."""

from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from albertkit.serve.batching import Batch, Queue

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one service.

    Args:
        queues: Where requests wait.
    """

    def __init__(self, queues: Sequence[Queue]) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "albertkit", "registry": self.registry}
        self.requests = Counter("requests", "Requests by path and status.", ("path", "status"), **own)
        self.seconds = Histogram("request_seconds", "From request to answer.", ("path",), buckets=_SECONDS, **own)
        self.tokens = Counter("tokens", "Tokens computed.", ("model", "kind"), **own)
        self.busy = Counter("worker_seconds", "Seconds that the worker computed.", **own)
        self.restarts = Counter("worker_restarts", "Workers that died and were replaced.", **own)
        self.batch_tokens = Histogram("batch_tokens", "Tokens of a batch.", buckets=[32 * n for n in _POWERS], **own)
        self.batch_sequences = Histogram("batch_sequences", "Sequences of a batch.", buckets=_POWERS, **own)
        self.batch_requests = Histogram("batch_requests", "Requests that share a batch.", buckets=_POWERS, **own)
        Gauge("queue_tokens", "Tokens that wait.", **own).set_function(lambda: sum(queue.tokens for queue in queues))

    def computed(self, batch: Batch, seconds: float) -> None:
        """Count a batch."""
        self.tokens.labels(*batch.key).inc(batch.tokens)
        self.busy.inc(seconds)
        self.batch_tokens.observe(batch.tokens)
        self.batch_sequences.observe(batch.sequences)
        self.batch_requests.observe(len(batch.jobs))

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(path, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """Everything in Prometheus's text format."""
        return generate_latest(self.registry)
