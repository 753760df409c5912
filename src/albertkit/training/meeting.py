"""A store of keys that only the processes of this very start share.

torchrun keeps one store for all starts of a launch (torch 2.13: the same port, and no prefix), so that after a restart a process
may read the address that a dead one left there, and fail to connect. Neither the restart count, which each machine counts for
itself, nor anything else in the environment tells two starts apart. So the first process draws a name for the start and gives it
to each of the others in answer to a name that they have drawn: only one that lives can answer.
"""

import os
import time
import uuid
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore

from albertkit.training.launch import name_start

_PAUSE = 0.05  # seconds between two looks at who has come


def fresh_store(rank: int, size: int, timeout: timedelta) -> Store | None:
    """The store of this start; None where torchrun keeps none, and torch makes one itself.

    Args:
        rank: Number of this process.
        size: Number of processes.
        timeout: How long to wait for the others.

    Raises:
        RuntimeError: The store or another process does not answer.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    store = TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False, timeout=timeout
    )  # fmt: skip
    name = meet(store, rank, size, timeout)
    name_start(name)
    return PrefixStore(f"albertkit/{name}", store)


def meet(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """Agree on a name for this start with the other processes, whatever earlier starts left in the store.

    Args:
        store: Shared by all starts.
        rank: Number of this process.
        size: Number of processes.
        timeout: How long to wait for the others.

    Raises:
        RuntimeError: Somebody did not come in time.
    """
    own = uuid.uuid4().hex
    if rank:
        store.set(f"albertkit/hello/{rank}", own)
        answer = f"albertkit/welcome/{own}"
        store.wait([answer], timeout)
        name = store.get(answer).decode()
        store.add(f"albertkit/met/{name}", 1)
        return name
    answered: dict[int, str] = {}
    deadline = time.monotonic() + timeout.total_seconds()
    while store.add(f"albertkit/met/{own}", 0) < size - 1:
        for other in range(1, size):
            if store.check([f"albertkit/hello/{other}"]):
                hello = store.get(f"albertkit/hello/{other}").decode()
                if answered.get(other) != hello:  # not yet answered, or it was a dead process's
                    answered[other] = hello
                    store.set(f"albertkit/welcome/{hello}", own)
        if time.monotonic() > deadline:
            missing = size - 1 - store.add(f"albertkit/met/{own}", 0)
            raise RuntimeError(f"{missing} of {size} processes did not come within {timeout}")
        time.sleep(_PAUSE)
    return own
