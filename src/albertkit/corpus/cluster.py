"""A build on many machines, by Ray: workers read, split and encode parts; the driver puts the results in order.

A part that is lost with its worker or its machine is sent again from where its results ended. Ray's own retries are off, so
that each is counted, and one that kills whatever takes it is named.
"""

import logging
import os
import secrets
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from typing import Any

import numpy as np

from albertkit.corpus.journal import Journal
from albertkit.corpus.local import Work
from albertkit.corpus.parts import EncodedPart, Part, encode_part, plan_parts
from albertkit.corpus.reading import DIGEST_BYTES, BatchNote, Place
from albertkit.corpus.settings import BuildSettings
from albertkit.corpus.workers import EncodedBatch
from albertkit.errors import AlbertKitError, ConfigError, DataError, MachineError, MissingExtraError
from albertkit.tokenizer.batch import available_cores

# Parts sent for each core: one in its hands, and one that waits for a core or, finished, for its turn to be written.
_SENT = 2
_TRIES = 4
_LOOK_SECONDS = 1.0
# What decides the bytes of a store beside the settings.
_PACKAGES = ("albertkit", "sentencepiece", "sentencex", "tokenizers", "kiwipiepy")


@dataclass(frozen=True)
class Job:
    """What every worker is given once."""

    settings: BuildSettings
    errors: str
    tokenizer: Any
    versions: dict[str, str]


def package_versions() -> dict[str, str]:
    """Versions of what decides the bytes of a store; empty for what is not installed."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


@lru_cache(maxsize=1)
def _job(reference: Any) -> Job:
    import ray

    job = ray.get(reference)
    here = package_versions()
    for name, wanted in job.versions.items():
        if here[name] != wanted:
            raise MachineError(
                "node-differs",
                f"the node `{_node_name()}` has {name} {here[name] or '(none)'}, the driver {wanted or '(none)'}",
                "install the same on every node: pip install -c constraints.txt 'albertkit[cluster]'",
            )
    return job


def _node_name() -> str:
    import ray

    return ray.util.get_node_ip_address()


def _encode_part(part: Part, reference: list[Any]) -> Iterator[Any]:
    """The task: first who does it (node, process), then the results."""
    import ray

    name = ray.get_runtime_context().get_node_id(), os.getpid()
    yield name
    try:
        job = _job(reference[0])
        for result in encode_part(part, job.settings, job.errors, job.tokenizer):
            result.encoded.process = name, result.encoded.process[1]
            yield result
    except OSError as error:
        path = error.filename or part.files[0].path
        raise DataError(
            "not-on-node", f"the node `{_node_name()}` cannot read `{path}`: {error.strerror or error}",
            "keep the inputs where every node sees them under this name: a shared folder, or s3://…",
        ) from None  # fmt: skip


class _Sent:
    """A part that was sent, its results, and who works on it."""

    def __init__(self, part: Part, stream: Any) -> None:
        self.part = part
        self.stream = stream
        self.tries = 1
        self.worker: tuple[str, int] | None = None
        self.failure: Any = None  # a result that is none: looked at when the turn of the part comes


class Cluster:
    """Reads and encodes the inputs of a build on all machines of a Ray cluster.

    Args:
        address: `host:port` of the cluster, "auto" for the one this machine is part of; None for that one if there is one,
            else this machine alone.
        limit: Parts sent at a time; None follows the number of cores.

    Attributes:
        nodes: Machines alive.
        workers: Worker processes that have worked.
        retried: Parts that were lost and sent again.
    """

    def __init__(self, address: str | None, limit: int | None) -> None:
        self._ray, self._folder = _connect(address)
        self._limit = limit
        self.nodes = self.workers = self.cores = self.retried = self.stored_bytes = 0
        self._alive: set[str] = set()
        self._workers: set[tuple[str, int]] = set()
        self._looked = 0.0

    def describe(self) -> str:
        """Nodes, workers and retries, for the display."""
        parts = f"{self.nodes} node{'s' * (self.nodes != 1)}, {self.workers} worker{'s' * (self.workers != 1)}"
        return f"{parts}, {self.retried} retried"

    def close(self) -> None:
        """Leave the cluster, if it was joined here."""
        if self._folder is not None:
            self._ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def results(
        self, work: Work, place: Place, journal: Journal
    ) -> Generator[tuple[BatchNote, EncodedBatch], None, None]:
        """See `BuildEngine`.

        Raises:
            DataError: From reading; not-on-node.
            MachineError: worker-died, node-differs.
        """
        before = list(accumulate((file.size for file in work.files), initial=0))
        parts, lines = plan_parts(work.files, place, work.settings), place.lines
        job = Job(work.settings, work.errors, work.tokenizer, package_versions())
        reference = [self._ray.put(job)]  # in a list: Ray would hand the object itself to every task
        task = self._ray.remote(_encode_part).options(num_cpus=1, max_retries=0, num_returns="streaming")
        sent: deque[_Sent] = deque()
        try:
            while True:
                self._look(sent, task, reference)
                while len(sent) < (self._limit or max(_SENT * self.cores, 2)) and (part := next(parts, None)):
                    sent.append(_Sent(part, task.remote(part, reference)))
                if not sent:
                    return
                result = self._next(sent[0], task, reference, lines)
                if result is None:
                    continue
                part = sent[0].part
                note = _note(part, result, lines)
                if result.end:
                    lines = note.place.lines
                    sent.popleft()
                else:
                    sent[0].part = replace(part, skip=result.documents)
                self.stored_bytes = before[note.place.file] + note.place.offset
                yield note, _without_duplicates(note, result, journal)
        finally:
            for waiting in sent:
                self._ray.cancel(waiting.stream, force=True)

    def _next(self, head: _Sent, task: Any, reference: list[Any], lines: int) -> EncodedPart | None:
        """The next result of the part whose turn it is; None if there is none yet."""
        try:
            if head.failure is None and not self._ray.wait([head.stream], timeout=_LOOK_SECONDS)[0]:
                return None
            value = self._ray.get(head.failure or next(head.stream))
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, DataError) and head.part.start and head.part.first_line == 1 and lines:
                # Only now is it known how many lines come before: the same error again, with the right number.
                head.part = replace(head.part, first_line=lines + 1)
                head.failure, head.stream = None, task.remote(head.part, reference)
                return None
            if isinstance(cause, AlbertKitError):
                raise cause from None
            raise
        except (self._ray.exceptions.RayError, StopIteration) as error:
            self._send_again(head, task, reference, error)
            return None
        if isinstance(value, EncodedPart):
            return value
        self._met(head, value)
        return None

    def _met(self, sent: _Sent, worker: tuple[str, int]) -> None:
        sent.worker = worker
        self._workers.add(worker)
        self.workers = len(self._workers)

    def _send_again(self, sent: _Sent, task: Any, reference: list[Any], error: BaseException | None = None) -> None:
        if sent.tries >= _TRIES:
            first = sent.part.files[0].path
            raise MachineError(
                "worker-died",
                f"{_TRIES} workers died of the same part of the inputs: bytes from {sent.part.start:,} on of `{first}`"
                f"{f' and {len(sent.part.files) - 1:,} files after it' * (len(sent.part.files) > 1)}"
                f" ({type(error).__name__ if error else 'the node was lost'})",
                "run the same command again to go on; if memory ran out, give each worker more",
            )
        sent.tries += 1
        self.retried += 1
        sent.worker, sent.failure, sent.stream = None, None, task.remote(sent.part, reference)

    def _look(self, sent: deque[_Sent], task: Any, reference: list[Any]) -> None:
        """Once a second: which nodes are there, who works on what, what is lost."""
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        self._alive, self.nodes = {node["NodeID"] for node in alive}, len(alive)
        self.cores = int(sum(node["Resources"].get("CPU", 0) for node in alive))
        for waiting in sent:
            if waiting.worker is None and waiting is not sent[0]:
                self._greet(waiting)
            if waiting.worker is not None and waiting.worker[0] not in self._alive:
                self._send_again(waiting, task, reference)

    def _greet(self, waiting: _Sent) -> None:
        """Learn who works on a part that has begun."""
        if waiting.failure is not None or not self._ray.wait([waiting.stream], timeout=0)[0]:
            return
        try:
            reference = next(waiting.stream)
        except StopIteration:  # it ended without a word: `_next` sends it again when its turn comes
            return
        try:
            self._met(waiting, self._ray.get(reference))
        except self._ray.exceptions.RayError:
            waiting.failure = reference


def _note(part: Part, result: EncodedPart, lines: int) -> BatchNote:
    counts = result.counts
    before = lines if part.start and part.first_line == 1 else 0
    counts.faults = [f"{name}:{number + before}" for name, number in result.faults]
    place = part.next_place(lines + result.lines) if result.end else part.place(result.documents, lines)
    return BatchNote(place, counts, [])


def _without_duplicates(note: BatchNote, result: EncodedPart, journal: Journal) -> EncodedBatch:
    """The documents not seen before; the others are counted."""
    data = result.digests
    digests = [data[start : start + DIGEST_BYTES] for start in range(0, len(data), DIGEST_BYTES)]
    seen = journal.known(digests)
    wanted = np.ones(len(digests), bool)
    for number, digest in enumerate(digests):
        if digest in seen:
            wanted[number] = False
        else:
            seen.add(digest)
            note.digests.append(digest)
    note.counts.duplicate_documents += len(wanted) - len(note.digests)
    return result.encoded.keep(wanted)


def _connect(address: str | None) -> tuple[Any, str | None]:
    """Ray; and, if it was joined here, the folder of a cluster of this machine alone ("" if it was there before), else None."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports its use over the network unless told not to
    os.environ.setdefault("RAY_agent_register_timeout_ms", "100000")  # 15 s are too few on a machine that is busy
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or it warns that it will change something
    try:
        import ray
    except ImportError:
        raise MissingExtraError.of("ray", "cluster", "building a store on many machines") from None
    if ray.is_initialized():
        return ray, None
    if address and address.startswith("ray://"):
        raise ConfigError(
            "bad-address", f"`{address}`: a build does not run through Ray's client",
            "run the command on a machine of the cluster, with --address auto",
        )  # fmt: skip
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        ray.init(address or "auto", **quiet)
        return ray, ""
    except (ConnectionError, ValueError, RuntimeError) as error:
        if address:
            raise MachineError(
                "no-cluster", f"no Ray cluster at `{address}`: {str(error).splitlines()[0]}",
                "start one (docs/scale.md); if it asks for a token, export RAY_AUTH_MODE=token",
            ) from None  # fmt: skip
    # Ray keeps sockets in its folder, whose paths may have 107 characters: 62 of them are Ray's own.
    parent = tempfile.gettempdir()
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # or Ray leaves one in the home folder
    folder = tempfile.mkdtemp(prefix="ray-", dir=parent if len(parent) <= 30 else "/tmp")
    try:
        ray.init(num_cpus=available_cores(), include_dashboard=False, _temp_dir=folder, **quiet)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return ray, folder
