"""Build a store on many machines, with Ray: tasks read, split and encode parts of the inputs; the results are taken in order."""

import logging
import os
import secrets
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate, compress, islice
from typing import Any

import numpy as np

from albertkit.corpus.documents import WHOLE_FORMATS
from albertkit.corpus.encode import (
    BuildInputs,
    CorpusPosition,
    DocumentBatch,
    EncodedBatch,
    InputPart,
    encode_documents,
    read_batches,
)
from albertkit.corpus.options import BuildSettings
from albertkit.errors import AlbertKitError, ConfigError, DataError, MachineError, requires_package
from albertkit.tables.files import InputFile
from albertkit.tokenizer.sentencepiece import available_cores

# Parts sent for each core: one in its hands, and one that waits for a core or, finished, for its
# turn to be written.
_SENT = 2
_TRIES = 4  # Ray sends a part whose worker died to another; after these the error names the part
# What decides the bytes of a store besides the settings.
_PACKAGES = ("albertkit", "sentencepiece", "sentencex", "tokenizers", "kiwipiepy")
# About 1.5 s of work on a core: 1,000 times what it costs to send a task. Results of two for each
# core lie in memory: 2 x 8 MB.
PART_BYTES = 1 << 24
_PART_FILES = 1000
_WHOLE = (".gz", ".xz", ".zst", ".parquet", ".pq")


def plan_parts(
    files: list[InputFile],
    position: CorpusPosition,
    settings: BuildSettings,
) -> Iterator[InputPart]:
    """Cut all inputs, from a position on, into parts of about `PART_BYTES`, by names and sizes alone."""
    # Workers read, too: one reader parses 50 to 60 MB of text a second, the work of five that
    # encode.
    number = position.file
    start = position.offset
    skip = position.document
    while number < len(files):
        file = files[number]
        if start or skip or file.size > PART_BYTES or not file.size:
            is_whole = (
                settings.format in WHOLE_FORMATS
                or file.name.lower().endswith(_WHOLE)
                or not file.size
            )
            while not is_whole and start + PART_BYTES < file.size:
                first_line = (
                    position.lines + 1 if (number, start) == (position.file, position.offset) else 1
                )
                yield InputPart((file,), number, start, start + PART_BYTES, skip, first_line)
                start = start + PART_BYTES
                skip = 0
            yield InputPart((file,), number, start, None, skip)
            number += 1
            start = skip = 0
            continue
        last = number
        size = 0
        for file in files[number : number + _PART_FILES]:
            # Packed text is three to four times as long.
            size += file.size * 4 if file.name.lower().endswith(_WHOLE) else file.size
            if not file.size or (size > PART_BYTES and last > number):
                break
            last += 1
        yield InputPart(tuple(files[number:last]), number)
        number = last


def store_package_versions() -> dict[str, str]:
    """Return the versions of the packages that decide the bytes of a store; empty for those that are not installed."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = ""
    return versions


@lru_cache(maxsize=1)
def _fetch_inputs(ray_reference: Any) -> BuildInputs:
    """Fetch the inputs, once a process, and compare the packages with those of the driver."""
    import ray

    inputs, versions = ray.get(ray_reference)
    installed = store_package_versions()
    for name, expected in versions.items():
        if installed[name] != expected:
            raise MachineError(
                "machines-differ",
                f"the node `{_ray_node_ip()}` has {name} {installed[name] or '(none)'}, the driver {expected or '(none)'}",
                "install the same on every node: pip install -c constraints.txt 'albertkit[cluster]'",
            )
    return inputs


def _ray_node_ip() -> str:
    import ray

    return ray.util.get_node_ip_address()


def encode_part(
    part: InputPart, reference: list[Any]
) -> Iterator[tuple[DocumentBatch, EncodedBatch]]:
    """Read and encode a part; its duplicates are still among the documents."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    try:
        inputs = _fetch_inputs(reference[0])
        for batch in read_batches(part, inputs, lambda _: True):
            encoded = encode_documents(
                batch.texts,
                batch.rules,
                inputs.tokenizer,
                inputs.settings.language,
            )
            encoded.process = node, *encoded.process[1:]
            yield replace(batch, texts=[], rules=[]), encoded
    except OSError as error:
        path = error.filename or part.files[0].path
        raise MachineError(
            "machines-differ",
            f"the node `{_ray_node_ip()}` cannot read `{path}`: {error.strerror or error}",
            "keep the inputs where every node sees them under this name: a shared folder, or s3://…",
        ) from None


def encode_on_cluster(
    inputs: BuildInputs,
    position: CorpusPosition,
    add_if_new: Callable[[bytes], bool],
    address: str | None,
    limit: int | None,
) -> Generator[tuple[DocumentBatch, EncodedBatch], None, None]:
    """Read and encode on all machines of a Ray cluster, from a position on; batches come in order.

    At most `limit` parts are sent at a time; None follows the number of cores.
    """
    with _join_or_start_cluster(address) as ray:
        before = list(accumulate((file.size for file in inputs.files), initial=0))
        parts = plan_parts(inputs.files, position, inputs.settings)
        lines = position.lines
        # In a list: Ray would hand the object itself over.
        reference = [ray.put((replace(inputs, files=[]), store_package_versions()))]
        # Plain tasks: Ray Data brings pandas and readers of its own, and would not keep our
        # positions and counts. Streamed without backpressure: with it, workers of later files stand
        # still until their turn, as results are written in order.
        task = ray.remote(encode_part).options(
            num_cpus=1,
            max_retries=_TRIES - 1,
            num_returns="streaming",
        )
        sent: deque[tuple[InputPart, Any]] = deque()
        try:
            while True:
                cores = int(ray.cluster_resources().get("CPU", 0))
                max_sent = limit or max(_SENT * cores, 2)
                for part in islice(parts, max(max_sent - len(sent), 0)):
                    sent.append((part, task.remote(part, reference)))
                if not sent:
                    return
                part, stream = sent[0]
                for batch, encoded in _results_of_part(ray, part, stream, inputs, lines):
                    known_lines = lines if part.start and part.first_line == 1 else 0
                    batch.faults = [(name, number + known_lines) for name, number in batch.faults]
                    if batch.is_last:
                        lines = lines + batch.lines if part.end is not None else 0
                    batch.position.lines = lines
                    batch.stored_bytes = before[batch.position.file] + batch.position.offset
                    new = np.array([add_if_new(digest) for digest in batch.digests], bool)
                    batch.counts.duplicate_documents += int((~new).sum())
                    batch.digests = list(compress(batch.digests, new))
                    yield batch, encoded.documents_without(new)
                sent.popleft()
        finally:
            for _, stream in sent:
                ray.cancel(stream, force=True)


def _results_of_part(
    ray: Any,
    part: InputPart,
    stream: Any,
    inputs: BuildInputs,
    lines: int,
) -> Iterator[tuple[DocumentBatch, EncodedBatch]]:
    """Yield the results of a part, and turn Ray's errors into ours."""
    try:
        for reference in stream:
            yield ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, DataError) and part.start and part.first_line == 1 and lines:
            # Only now is it known how many lines come before: the same error again, with the right
            # number.
            deque(
                read_batches(replace(part, first_line=lines + 1), inputs, lambda _: True), maxlen=0
            )
        if isinstance(cause, AlbertKitError):
            raise cause from None
        raise
    except ray.exceptions.RayError as error:
        more_files = f" and {len(part.files) - 1:,} files after it" if len(part.files) > 1 else ""
        raise MachineError(
            "worker-died",
            f"{_TRIES} workers died of the same part of the inputs: bytes from {part.start:,} on of "
            f"`{part.files[0].path}`{more_files} ({type(error).__name__})",
            "run the same command again to go on; if memory ran out, give each worker more",
        ) from None


@contextmanager
def _join_or_start_cluster(address: str | None) -> Iterator[Any]:
    """Join a cluster, or start one on this machine, and yield Ray; leave the cluster at the end."""
    # Ray reports its use over the network otherwise
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # 15 s are too few on a machine that is busy
    os.environ.setdefault("RAY_agent_register_timeout_ms", "100000")
    # Or it warns that it will change something
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with requires_package("ray", "cluster", "building a store on many machines"):
        import ray
    if ray.is_initialized():
        yield ray
        return
    if address and address.startswith("ray://"):
        raise ConfigError(
            "bad-value",
            f"`{address}`: a build does not run through Ray's client",
            "run the command on a machine of the cluster, with --address auto",
        )
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        ray.init(address or "auto", **quiet)
        folder = ""
    except (ConnectionError, ValueError, RuntimeError) as error:
        if address:
            raise MachineError(
                "unreachable",
                f"no Ray cluster at `{address}`: {str(error).splitlines()[0]}",
                "start one (docs/scale.md); if it asks for a token, export RAY_AUTH_MODE=token",
            ) from None
        folder = _start_cluster(ray, quiet)
    try:
        yield ray
    finally:
        ray.shutdown()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _start_cluster(ray: Any, options: dict[str, Any]) -> str:
    # Ray keeps sockets in its folder, whose paths may have 107 characters: 62 of them are Ray's
    # own.
    parent = tempfile.gettempdir()
    # Or Ray leaves one in the home folder
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    folder = tempfile.mkdtemp(prefix="ray-", dir=parent if len(parent) <= 30 else "/tmp")
    try:
        ray.init(num_cpus=available_cores(), include_dashboard=False, _temp_dir=folder, **options)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder
