"""The protocol of peers: a program in a process of its own answers over a pipe, without albertkit, even on Python
3.7.

Its argument is a JSON object, the job. It writes one JSON object a line: `{"making": …}` as it
goes, then `{"ready": [names], …}` with what else is to be known. To `{"run": name, "work": name,
"calls": n}` it answers `{"seconds": [n numbers], …}`; if the question has a `"file"`, the array
that the run returns is saved there. To what fails it answers `{"error": reason}`.
"""

import json
import os
import sys
import time


def answer(prepare):
    """Prepare the runs, then answer until the pipe is closed.

    Args:
        prepare: Takes the job and `say`; returns the runs (name to a function, or to functions by
            work) and more to be known. A run returns an array, or a dict of what is to be answered
            with its seconds.
    """
    job = json.loads(sys.argv[1])
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the libraries print is not for the pipe

    def say(**fields):
        pipe.write(json.dumps(fields) + "\n")
        pipe.flush()

    runs, about = prepare(job, say)
    say(ready=list(runs), **about)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            run = runs[request["run"]]
            say(**_answer(run if callable(run) else run[request["work"]], request, job))
        except Exception as error:
            say(error=reason(error))


def _answer(run, request, job):
    if "file" in request:
        import numpy as np

        np.save(request["file"], np.asarray(run(), dtype=np.float32))
        return {"saved": request["file"]}
    seconds, details = [], {}
    for _ in range(request["calls"]):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
        details = result if isinstance(result, dict) else {}
    time.sleep(job.get("settle", 0))
    return dict(details, seconds=seconds)


def make_all(settings, say):
    """Make every setting that can be made; return what was made, and by name why others failed."""
    runners, failed = {}, {}
    for name, make in settings.items():
        say(making=name)
        try:
            runners[name] = make()
        except Exception as error:
            failed[name] = reason(error)
    return runners, failed


def reason(error):
    """Return an error as one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def versions(*packages):
    """Return versions of the packages that are installed."""
    import importlib.metadata

    values = {}
    for package in packages:
        try:
            values[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return values
