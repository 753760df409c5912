"""transformers, ONNX Runtime and OpenVINO, each at the best setting found, in a process that answers over a pipe.

It is run by an interpreter that has them, which need not be albertkit's, so it knows nothing of albertkit. Argument: a JSON
object with `folder` (a checkpoint of AlbertModel), `works` (a JSON file: name to work), `threads`, `settle` (seconds to wait
after a run, until thread pools have stopped spinning), `scratch` (a folder to export into) and `first_only` (return the
states of first tokens only). A work holds `sequences` (lists of ids), `batch` (how many at once), `by_length` (whether they are
sorted by length first) and `prepared` (whether its only batch is laid out before the clock starts).

It writes one JSON object a line: `{"making": …}` as it goes, then `{"ready": [names], "failed": {name: reason}, "threads": {name:
number}, "notes": {…}, "versions": {…}}`. To `{"run": name, "work": name, "calls": n}` it answers `{"seconds": [n numbers]}`, to
`{"states": name, "work": name, "file": path}` `{"saved": path}`; to what fails `{"error": reason}`.

Most settings have several candidates: another exporter, another way to quantise, one stream over all threads or a stream a
thread. For every work the fastest of a trial is kept; the trial's times are in the notes.
"""

import importlib.metadata
import importlib.util
import json
import os
import sys
import time
from functools import partial

EXPORTERS = ("legacy", "dynamo")
TRIALS = {True: 10, False: 2}  # rounds of a trial of one batch, and of several
TRIAL_BATCHES = 2  # of a work with many


def main():  # type: ignore[no-untyped-def]
    """Make every setting, then answer until the pipe is closed."""
    from latency_peer_openvino import OpenVinoBench  # beside this script, which is no part of a package when it runs

    job = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the libraries print is not for the pipe

    def say(answer):  # type: ignore[no-untyped-def]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    with open(job["works"], encoding="utf-8") as stream:
        works = json.load(stream)
    runs, failed, threads, notes = {}, {}, {}, {}
    bench = OpenVinoBench(job, works)
    for name, (modules, candidates) in settings(bench).items():
        lacking = [module for module in modules if importlib.util.find_spec(module) is None]
        if lacking:
            failed[name] = f"no {', '.join(lacking)}"
            continue
        say({"making": name})
        try:
            runs[name], trials = choose(candidates, works)
            threads[name] = bench.threads_of(name)
            notes[name] = {"trials": trials, **bench.notes(name)}
        except Exception as error:
            runs.pop(name, None)
            failed[name] = reason(error)
    say({"ready": list(runs), "failed": failed, "threads": threads, "notes": notes, "versions": versions()})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            say(answer_to(asked, runs))
        except Exception as error:
            say({"error": reason(error)})


def answer_to(asked, runs):  # type: ignore[no-untyped-def]
    """The answer to one question."""
    import numpy as np

    if "states" in asked:
        np.save(asked["file"], np.asarray(runs[asked["states"]][asked["work"]](), dtype=np.float32))
        return {"saved": asked["file"]}
    run, seconds = runs[asked["run"]][asked["work"]], []
    for _ in range(asked["calls"]):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    time.sleep(json.loads(sys.argv[1])["settle"])
    return {"seconds": seconds}


def reason(error):  # type: ignore[no-untyped-def]
    """In one line."""
    return next(iter(f"{type(error).__name__}: {error}".splitlines()))[:300]


def choose(candidates, works):  # type: ignore[no-untyped-def]
    """For each work the run of the fastest candidate, and the trials' best milliseconds or what failed."""
    runs, trials = {}, {}
    for name, work in works.items():
        short = {**work, "sequences": work["sequences"][: TRIAL_BATCHES * work["batch"]]}
        tried, times, said = {}, {}, {}
        for label, make in candidates.items():
            try:
                tried[label], times[label] = make(short), []
                tried[label]()
            except Exception as error:
                tried.pop(label, None)
                said[label] = reason(error)
        if not tried:
            raise RuntimeError("; ".join(said.values()))
        for _ in range(TRIALS[work["prepared"]] if len(tried) > 1 else 0):
            for label, run in tried.items():
                start = time.perf_counter()
                run()
                times[label].append(time.perf_counter() - start)
        fastest = min(tried, key=lambda label: min(times[label], default=0.0))
        said.update({label: round(min(times[label]) * 1e3, 2) for label in tried if times[label]})
        runs[name] = tried[fastest] if work["prepared"] else candidates[fastest](work)
        trials[name] = {"chosen": fastest, "trial_ms": said}
    return runs, trials


def settings(bench):  # type: ignore[no-untyped-def]
    """Name to the modules needed and the candidates: label to a function that makes a work's run."""
    torch, onnx = ("torch", "transformers"), ("torch", "transformers", "onnx", "onnxruntime")
    openvino = ("torch", "transformers", "openvino")

    def exported(make):  # type: ignore[no-untyped-def]
        return {exporter: partial(make, exporter) for exporter in EXPORTERS}

    def streams(label, make):  # type: ignore[no-untyped-def]
        if not bench.many or bench.job["threads"] == 1:
            return {label: partial(make, streams=1)}
        counts = {"one stream": 1, "a stream a thread": bench.job["threads"]}
        return {f"{label}, {said}": partial(make, streams=count) for said, count in counts.items()}

    int8 = {
        **streams("NNCF", partial(bench.openvino, "OpenVINO int8", bench.nncf, "bf16")),
        **streams("QDQ static", partial(bench.openvino, "OpenVINO int8", bench.qdq, "bf16")),
    }
    return {
        "transformers fp32": (torch, {"sdpa": partial(bench.torch, "float32")}),
        "transformers bf16": (torch, {"sdpa": partial(bench.torch, "bfloat16")}),
        "ONNX Runtime fp32": (onnx, exported(bench.onnx_fp32)),
        "ONNX Runtime int8": (onnx, exported(bench.onnx_int8)),
        "OpenVINO fp32": (openvino, streams("fp32", partial(bench.openvino, "OpenVINO fp32", bench.converted, "f32"))),
        "OpenVINO bf16": (openvino, streams("bf16", partial(bench.openvino, "OpenVINO bf16", bench.converted, "bf16"))),
        "OpenVINO int8": (openvino, int8),
    }


def versions():  # type: ignore[no-untyped-def]
    """Of what took part."""
    found = {}
    for package in ("transformers", "torch", "onnx", "onnxruntime", "openvino", "nncf"):
        try:
            found[f"peers' {package}"] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
