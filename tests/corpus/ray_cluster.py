"""A real Ray cluster of several nodes on this machine, which leaves neither processes nor files behind."""

import os
import shutil
import signal
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_agent_register_timeout_ms": "100000"}


@contextmanager
def ray_cluster(cores):
    """Nodes with these numbers of cores.

    Yields:
        `ray.cluster_utils.Cluster`: `address`, `worker_nodes`, `remove_node`.
    """
    # Sockets lie below it, and their paths may have 107 characters, of which pytest's own folder
    # would take most.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT, RAY_TMPDIR=folder, PYTHONPATH=os.pathsep.join(sys.path))
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for number, count in enumerate(cores):
            head = {"include_dashboard": False} if number == 0 else {}
            cluster.add_node(num_cpus=count, object_store_memory=100_000_000, **head)
        cluster.wait_for_nodes(timeout=120)
        yield cluster
    finally:
        cluster.shutdown()
        remaining_processes = processes_of(folder)
        for process in remaining_processes:
            os.kill(process, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.clear()
        os.environ.update(before)
    assert not remaining_processes, "a process of Ray outlived its cluster"


def processes_of(folder):
    """Processes whose command line names the cluster's folder."""
    processes = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if folder.encode() in (process / "cmdline").read_bytes():
                processes.append(int(process.name))
    return processes
