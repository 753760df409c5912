"""Commands under `torchrun` and signals: whether a run is continued, which of many failing processes reports the error.

torchrun starts N processes of the same command; when one fails it stops the others and, with
`--max-restarts`, starts all N again. The command line stays the same, so a command must know by
itself that it goes on. Nothing here imports torch before something has failed: every command passes
through.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from albertkit.errors import AlbertKitError, CheckpointError
from albertkit.printable import print_note

_REFUSED = 2  # exit code of the user's mistakes: the same command will meet them again

SEPARATE_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # torchrun's variable

_start = ""  # the name of this start of the launch, once the processes have met


def world_size() -> int:
    """Count the processes of the launch; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_speaking_process() -> bool:
    """Return whether results and notes are for this process to print."""
    return int(os.environ.get("RANK", "0")) == 0


def is_launched_by_torchrun() -> bool:
    """Return whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def warn_of_shared_store() -> None:
    """Say on stderr that a machine which is lost could not join again, if torchrun has started this training on several."""
    # torchrun's agents then keep their rendezvous in the store of the processes, which ends with
    # them (torch 2.13): the machine that comes back and those that stayed wait for each other for
    # 60 s and fail with DistStoreError.
    across = int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1
    if across and is_speaking_process() and os.environ.get(SEPARATE_STORE) != "1":
        fact = f"torchrun runs on several machines without {SEPARATE_STORE}=1"
        hint = f"a lost machine cannot join again; export {SEPARATE_STORE}=1 on all of them"
        print_note(f"{fact}: {hint}")


def is_restarted() -> bool:
    """Return whether torchrun has started this command before and something ended it."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def check_whether_to_resume(run_folder: Path, resume_requested: bool) -> bool:
    """Return whether the run in a folder is to be continued.

    A person who says `--resume` means a run that is there. Under torchrun it is machines that give
    the command again (after a restart, a requeued job), so there `--resume` also begins a run, and
    what torchrun restarts is continued in any case.

    Args:
        run_folder: Folder of the run; of several seeds each has a folder in it.
        resume_requested: What was asked for.
    """
    has_run = any(run_folder.glob("**/run.toml"))
    if has_run or not (resume_requested or is_restarted()):
        return resume_requested or is_restarted()
    if not is_launched_by_torchrun():
        raise CheckpointError(
            "missing-file",
            f"there is no run in `{run_folder}` to resume",
            "leave --resume out to start one",
        )
    if is_speaking_process():
        print_note(f"no run in `{run_folder}` yet: one is started")
    return False


def name_this_start(name: str) -> None:
    """Remember the name of this start, which all its processes share and no restart has, for `claim_first_failure`."""
    global _start
    _start = name


def claim_first_failure() -> bool:
    """Return whether this process is the first of its launch that fails: it says why, all others have nothing to add.

    The processes count in the store that torchrun keeps for them. Where there is none any more,
    every one speaks.
    """
    from torch.distributed import TCPStore

    start = _start or f"before-{os.environ.get('TORCHELASTIC_RESTART_COUNT')}"
    try:
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=5),
        )
        return store.add(f"albertkit/failed/{start}", 1) == 1
    except (KeyError, RuntimeError):
        return True


def record_failure(error: AlbertKitError) -> None:
    """Write an error to the file from which torchrun reports the cause of a failure."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        details = {"py_callstack": str(error), "timestamp": str(int(time.time()))}
        message = {"message": str(error), "extraInfo": details, "errorCode": error.exit_code}
        with suppress(OSError):
            Path(file).write_text(json.dumps({"message": message}), encoding="utf-8")


def was_refused_before() -> bool:
    """Return whether an earlier start of this launch was refused for a mistake of the user's, which a restart cannot mend."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not file or not is_restarted():
        return False
    for earlier in Path(file).parents[2].glob("attempt_*/*/error.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            if json.loads(earlier.read_text(encoding="utf-8"))["message"]["errorCode"] == _REFUSED:
                with suppress(OSError):  # the cause of the last attempt is what torchrun sums up
                    Path(file).write_bytes(earlier.read_bytes())
                return True
    return False


_last = signal.SIGTERM  # the signal that stopped a training of this process last


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask a process to end: SIGTERM, and SIGHUP of a terminal that closes, unless `nohup` ignores it."""
    hangup: Any = getattr(signal, "SIGHUP", None)  # not on Windows
    is_heard = hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN
    return [signal.SIGTERM, hangup] if is_heard else [signal.SIGTERM]


class StopRequest:
    """The stop signals and SIGINT ask the loop to save and stop after the current update; a second one stops at once.

    Not SIGHUP, of which the kernel and the shell send one each. Not under torchrun: it may come
    from torchrun and from what stops torchrun, and torchrun itself kills who takes too long.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        global _last
        if number == getattr(signal, "SIGHUP", None):
            sys.stdout, sys.stderr = _LostOutput(sys.stdout), _LostOutput(sys.stderr)
        elif self.requested and not is_launched_by_torchrun():
            raise KeyboardInterrupt
        self.requested, _last = True, signal.Signals(number)

    def __enter__(self) -> "StopRequest":
        for number in (*stop_signals(), signal.SIGINT):
            # Not in the main thread (a notebook's worker): it gets no signals
            with suppress(ValueError):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)


def raise_stop_signal_again() -> None:
    """Send this process the signal again that stopped its training, now that the training handles it no more."""
    signal.raise_signal(_last)
    # Who started this process may have it ignore the signal, as a script's `command &` does
    raise KeyboardInterrupt


def exit_status() -> int:
    """Exit status of a command whose training was stopped: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
    return 128 + _last


def stop_signal_name() -> str:
    """Name the signal that stopped the training."""
    return "Ctrl-C" if _last == signal.SIGINT else _last.name


class _LostOutput:
    """A stream whose terminal, or the `tee` behind it, is perhaps gone: what cannot be written is dropped, no error."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()
