"""Many short lives of albertkit's commands: one process imports and compiles everything once and forks for each attempt.

`Server` starts this file as a process of its own and talks to it in lines of JSON. An attempt is a
fork, so it begins in milliseconds, and what is killed in it is a real process.
"""

import contextlib
import faulthandler
import gc
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from fault_moments import Moments, limit_memory


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        code: Exit status; below 0 the signal that ended it.
        seconds: It took.
        output: Text that it printed on stdout and stderr.
        moments: What it did to files, in order; of a killed one nothing is known.
    """

    code: int
    seconds: float
    output: str
    moments: list[str]

    @property
    def slug(self):
        """Of the error that it stated; empty without one."""
        return (
            self.output.rpartition("error[")[2].partition("]")[0] if "error[" in self.output else ""
        )

    @property
    def is_clear(self):
        """Whether it ended with a stated error: slug and hint, status 1 or 2, no traceback."""
        stated = "error[" in self.output and "hint: " in self.output
        return self.code in (1, 2) and stated and "Traceback" not in self.output


class Attempt:
    """A running process of the server.

    Attributes:
        process: Its id.
    """

    def __init__(self, server, process, log):
        self._server = server
        self.process = process
        self._log = log
        self._began = time.monotonic()

    def wait(self, kill_after=None, limit=120.0):
        """Wait for its end.

        Args:
            kill_after: Seconds after which it gets SIGKILL.
            limit: Seconds after which the test has failed.
        """
        ended = self.is_over(limit if kill_after is None else kill_after)
        if not ended:
            if kill_after is None:  # it hangs: where?
                os.kill(self.process, signal.SIGUSR1)
                time.sleep(1)
            os.kill(self.process, signal.SIGKILL)
        code = self._server.ask({"wait": self.process})["code"]
        if not ended and kill_after is None:
            raise AssertionError(f"not over after {limit} s: {self._log.read_text()}")
        seconds = time.monotonic() - self._began
        moments = Path(f"{self._log}.moments")
        moments_seen = json.loads(moments.read_text()) if moments.exists() else []
        return Outcome(code, seconds, self._log.read_text(errors="replace"), moments_seen)

    def is_over(self, seconds):
        """Whether it ends within so many seconds."""
        descriptor = os.pidfd_open(self.process)
        try:
            return bool(select.select([descriptor], [], [], seconds)[0])
        finally:
            os.close(descriptor)

    def send(self, number):
        """Send a signal."""
        os.kill(self.process, number)

    def wait_until_stopped(self):
        """Wait until SIGSTOP has stopped it, or it is over."""
        while (
            Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()[0] not in "TZ"
        ):
            if self.is_over(0.005):
                return


class Server:
    """Runs commands in forks of one warm process.

    Args:
        scratch: Where it keeps what attempts print.
        warm: Commands that are run once in the process itself, so that everything is imported and
            compiled.
    """

    def __init__(self, scratch, warm):
        self._scratch = scratch
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
            cwd=scratch,
        )
        for command in warm:
            answer = self.ask({"warm": list(map(str, command)), "log": str(scratch / "warm.log")})
            assert answer["code"] == 0, (command, (scratch / "warm.log").read_text())
        self.threads = self.ask({"threads": True})["threads"]

    def ask(self, question):
        """One line there, one line back."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, command, **plan):
        """Begin an attempt.

        Args:
            command: Arguments of albertkit.
            plan: `root`, `at`, `do`, `reads` as `Moments`; `file_size`: limit in bytes; `memory`:
                bytes more than it has at the beginning, or at the moment `at` with `do` "memory";
                `clock`: seconds that the clock of the wall jumps by, between any two looks at it.
        """
        self._count += 1
        log = self._scratch / f"{self._count:05d}.log"
        log.touch()  # a kill may come before the fork has opened it
        answer = self.ask({"run": list(map(str, command)), "log": str(log), **plan})
        return Attempt(self, answer["process"], log)

    def run(self, command, kill_after=None, **plan):
        """Begin an attempt and wait for its end; see `start` and `Attempt.wait`."""
        return self.start(command, **plan).wait(kill_after)

    def close(self):
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def _albertkit(arguments):
    from albertkit.cli import main

    try:
        main(arguments)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


def _into(log):
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _attempt(question):
    """In the fork: the command, and what happens to it."""
    _into(question["log"])
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if size := question.get("file_size"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    extra_bytes = question.get("memory", 0)
    if extra_bytes and not question.get("at"):
        limit_memory(extra_bytes)
    if jump := question.get("clock"):
        _jumping(jump)
    moments = None
    if root := question.get("root"):
        moments = Moments(
            root,
            question.get("at", 0),
            question.get("do", "kill"),
            question.get("reads", False),
            extra_bytes,
        )
        moments.install()
    code = _albertkit(question["run"])
    sys.stdout.flush()
    sys.stderr.flush()
    if moments is not None:
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2
        ) if os.geteuid() == 0 else None
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        moments.root = "\0"
        Path(question["log"] + ".moments").write_text(json.dumps(moments.moments))
    os._exit(code)


def _jumping(seconds):
    """The clock of the wall jumps there and back at every look."""
    looks = 0
    plain = time.time

    def jumped():
        nonlocal looks
        looks += 1
        return plain() + (seconds if looks % 2 else 0)

    time.time = jumped
    time.time_ns = lambda: int(jumped() * 1e9)


def _quicken():
    """Small inputs shall have many commits, shards and windows, so that a kill finds something to take up; and no plots."""
    from albertkit import job
    from albertkit.corpus import encode as corpus_encode
    from albertkit.embeddings import encode as embedding_encode

    for module in ("matplotlib", "torch.utils.tensorboard"):
        sys.modules[module] = None  # type: ignore[assignment]
    for module, name, value in (
        (job, "COMMIT_SECONDS", 0.0),
        (corpus_encode, "BATCH_DOCUMENTS", 30),
        (embedding_encode, "PART_TEXTS", 100),
        (embedding_encode, "_GROUP", 50),
    ):
        assert hasattr(module, name), name
        setattr(module, name, value)


def _serve():
    answers = os.fdopen(os.dup(1), "w")
    _quicken()
    for line in sys.stdin:
        question = json.loads(line)
        if "warm" in question:
            saved_descriptors = os.dup(1), os.dup(2)
            _into(question["log"])
            answer = {"code": _albertkit(question["warm"])}
            sys.stdout.flush()
            sys.stderr.flush()
            for number, descriptor in enumerate(saved_descriptors, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            gc.collect()
            gc.freeze()
        elif "run" in question:
            process = os.fork()
            if not process:
                try:
                    _attempt(question)
                except BaseException:
                    with contextlib.suppress(BaseException):
                        traceback.print_exc()
                    os._exit(71)
            answer = {"process": process}
        elif "wait" in question:
            answer = {"code": os.waitstatus_to_exitcode(os.waitpid(question["wait"], 0)[1])}
        else:
            answer = {"threads": len(os.listdir("/proc/self/task"))}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
