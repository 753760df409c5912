"""transformers, ONNX Runtime and OpenVINO, each at the best setting found.

The job holds `folder` (a checkpoint of AlbertModel), `works` (a JSON file: name to work),
`threads`, `scratch` (a folder to export into) and `first_only` (return the states of first tokens
only). A work holds `sequences` (lists of ids), `batch` (how many at once), `by_length` (whether
they are sorted by length first) and `prepared` (whether its only batch is laid out before the clock
starts). Most settings have several candidates: another exporter, another way to quantise, one
stream over all threads or a stream a thread. For every work the fastest of a trial is kept; the
trial's times are reported.
"""

import json
import os
import time
from collections import Counter
from functools import cached_property, partial
from itertools import chain

from benchmarks.peer_programs import protocol

TRIALS = {True: 10, False: 2}  # rounds of a trial of one batch, and of several
TRIAL_BATCHES = 2  # of a work with many
CALIBRATION = 48  # sequences


def prepare(job, say):
    """Make every setting for every work."""
    with open(job["works"], encoding="utf-8") as stream:
        works = json.load(stream)
    bench = Workbench(job, works)
    makers = {
        name: partial(choose, candidates, works) for name, candidates in settings(bench).items()
    }
    runners, failed = protocol.make_all(makers, say)
    packages = protocol.versions("transformers", "torch", "onnx", "onnxruntime", "openvino", "nncf")
    about = {
        "failed": failed,
        "threads": {name: bench.threads_of(name) for name in runners},
        "trials": {name: trials for name, (_, trials) in runners.items()},
        "products": {name: counts for name, counts in bench.counted.items() if name in runners},
        "versions": {"peers' " + name: version for name, version in packages.items()},
    }
    return {name: runs for name, (runs, _) in runners.items()}, about


def choose(candidates, works):
    """Return for each work the run of the fastest candidate, and the trials' best milliseconds or what failed."""
    runs, trials = {}, {}
    for name, work in works.items():
        short = {**work, "sequences": work["sequences"][: TRIAL_BATCHES * work["batch"]]}
        tried, times, said = {}, {}, {}
        for label, make in candidates.items():
            try:
                run = make(short)
                run()
                tried[label], times[label] = run, []
            except Exception as error:
                said[label] = protocol.reason(error)
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


def settings(bench):
    """Return the candidates of each setting: label to a function that makes a work's run."""

    def exported(make):
        return {exporter: partial(make, exporter) for exporter in ("legacy", "dynamo")}

    def streams(label, name, source, precision):
        make = partial(bench.openvino, name, source, precision)
        if not bench.many or bench.job["threads"] == 1:
            return {label: partial(make, streams=1)}
        counts = {"one stream": 1, "a stream a thread": bench.job["threads"]}
        return {f"{label}, {said}": partial(make, streams=count) for said, count in counts.items()}

    return {
        "transformers fp32": {"sdpa": partial(bench.torch, "float32")},
        "transformers bf16": {"sdpa": partial(bench.torch, "bfloat16")},
        "ONNX Runtime fp32": exported(bench.onnx_fp32),
        "ONNX Runtime int8": exported(bench.onnx_int8),
        "OpenVINO fp32": streams("fp32", "OpenVINO fp32", bench.converted, "f32"),
        "OpenVINO bf16": streams("bf16", "OpenVINO bf16", bench.converted, "bf16"),
        "OpenVINO int8": {
            **streams("NNCF", "OpenVINO int8", bench.nncf, "bf16"),
            **streams("QDQ static", "OpenVINO int8", bench.qdq, "bf16"),
        },
    }


# --- works: sorted or not, padded, results in the order given -------------------------------------


def batches(work):
    """Return the places of the sequences of each batch, sorted by length if the work says so, the longest first."""
    lengths = [len(sequence) for sequence in work["sequences"]]
    indices = list(range(len(lengths)))
    if work["by_length"]:
        indices.sort(key=lambda index: -lengths[index])
    return [
        indices[start : start + work["batch"]] for start in range(0, len(indices), work["batch"])
    ]


def padded(sequences):
    """Return ids and mask, int64 [N, longest]."""
    import numpy as np

    ids = np.zeros((len(sequences), max(map(len, sequences))), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = 1
    return ids, mask


def batches_of(work):
    """Yield places, ids and mask of each batch."""
    for indices in batches(work):
        yield indices, padded([work["sequences"][index] for index in indices])


def doing(work, infer):
    """Return a run of a work, given a function from ids and mask to states."""
    import numpy as np

    if work["prepared"]:
        ((_, arrays),) = batches_of(work)
        return partial(infer, *arrays)

    def run():
        states = None
        for indices, arrays in batches_of(work):
            hidden = infer(*arrays)
            states = (
                np.empty((len(work["sequences"]), hidden.shape[-1]), np.float32)
                if states is None
                else states
            )
            states[indices] = hidden
        return states

    return run


class Workbench:
    """Models in all forms, made when first asked for."""

    def __init__(self, job, works):
        self.job, self.works = job, works
        # Many batches, of any lengths, with padding
        self.many = not all(work["prepared"] for work in works.values())
        # Inputs of a graph: one for rows of one length needs no mask, and is spared it.
        self.names = ["input_ids", "attention_mask"] if self.many else ["input_ids"]
        self.made, self.counted, self.compiled = {}, {}, {}

    @cached_property
    def library(self):
        """Import torch."""
        import torch

        torch.set_num_threads(self.job["threads"])
        return torch

    def threads_of(self, name):
        """Return what the library says; of ONNX Runtime what its sessions are given."""
        if name.startswith("transformers"):
            return self.library.get_num_threads()
        if name.startswith("ONNX"):
            return self.session_options().intra_op_num_threads
        return int(self.compiled[name].get_property("INFERENCE_NUM_THREADS"))

    def once(self, key, make):
        """Return what `make` gives, or raises, at the first call with this key."""
        if key not in self.made:
            try:
                self.made[key] = make()
            except Exception as error:
                self.made[key] = error
        if isinstance(self.made[key], Exception):
            raise self.made[key]
        return self.made[key]

    def file(self, name):
        return os.path.join(self.job["scratch"], name)

    def given(self, *arrays):
        return dict(zip(self.names, arrays))  # noqa: B905 (without a mask the names are fewer)

    # transformers

    def model(self, dtype):
        """Return transformers' model, which returns the states wanted as a tensor."""
        from transformers import AlbertModel

        torch, first_only = self.library, self.job["first_only"]

        class States(torch.nn.Module):
            def __init__(self, albert):
                super().__init__()
                self.albert = albert

            def forward(self, input_ids, attention_mask=None):
                states = self.albert(
                    input_ids=input_ids, attention_mask=attention_mask
                ).last_hidden_state
                return states[:, 0] if first_only else states

        def make():
            albert = AlbertModel.from_pretrained(self.job["folder"], add_pooling_layer=False)
            return States(albert.to(getattr(torch, dtype))).eval()

        return self.once(("torch", dtype), make)

    def torch(self, dtype, work):
        torch, model = self.library, self.model(dtype)

        def infer(*arrays):
            with torch.inference_mode():
                return model(*map(torch.from_numpy, arrays[: len(self.names)])).float().numpy()

        return doing(work, infer)

    # ONNX

    @property
    def example(self):
        ids = self.library.arange(5, 37).view(2, 16)
        mask = self.library.ones_like(ids)
        mask[1, 10:] = 0
        return (ids, mask) if self.many else (ids,)

    def exported(self, exporter):
        """Return the file of the fp32 graph."""
        torch, model, file = self.library, self.model("float32"), self.file(f"{exporter}.onnx")
        names = {"input_names": self.names, "output_names": ["states"]}

        def make():
            with torch.no_grad():
                if exporter == "legacy":
                    axes = {name: {0: "rows", 1: "places"} for name in self.names}
                    options = {"dynamo": False, "opset_version": 17, "dynamic_axes": axes}
                    torch.onnx.export(model, self.example, file, **names, **options)
                else:
                    sizes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("places")}
                    shapes = dict.fromkeys(self.names, sizes)
                    torch.onnx.export(
                        model, self.example, dynamo=True, dynamic_shapes=shapes, **names
                    ).save(file)
            return file

        return self.once(("exported", exporter), make)

    def simplified(self, exporter):
        """Run ONNX Runtime's basic pass: shared weights, behind Identity before, are constants that a quantiser sees."""
        import onnxruntime

        source, file = self.exported(exporter), self.file(f"{exporter}-basic.onnx")

        def make():
            options = self.session_options()
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
            options.optimized_model_filepath = file
            onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
            return file

        return self.once(("simplified", exporter), make)

    def quantized(self, exporter):
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        source, file = self.simplified(exporter), self.file(f"{exporter}-int8.onnx")

        def make():
            options = {"MatMulConstBOnly": True}
            quantize_dynamic(
                source, file, per_channel=True, weight_type=QuantType.QInt8, extra_options=options
            )
            nodes = Counter(node.op_type for node in onnx.load(file).graph.node)
            counts = {name: nodes[name] for name in ("MatMulInteger", "MatMul")}
            self.counted.setdefault("ONNX Runtime int8", {})[exporter] = counts
            return file

        return self.once(("quantized", exporter), make)

    def session_options(self):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.job["threads"], 1
        options.log_severity_level = 3
        return options

    def onnx_fp32(self, exporter, work):
        return self.session(self.exported(exporter), work)

    def onnx_int8(self, exporter, work):
        return self.session(self.quantized(exporter), work)

    def session(self, file, work):
        import onnxruntime

        options = self.session_options()  # all optimisations are the default
        # The shape is known: what depends on it alone is computed while loading
        if work["prepared"]:
            options.add_free_dimension_override_by_name("rows", len(work["sequences"]))
            options.add_free_dimension_override_by_name("places", len(work["sequences"][0]))
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        return doing(work, lambda *arrays: session.run(None, self.given(*arrays))[0])

    # OpenVINO

    def converted(self):
        import openvino

        def make():
            with self.library.no_grad():
                return openvino.convert_model(
                    self.model("float32"), example_input=self.given(*self.example)
                )

        return self.once("converted", make)

    def calibration(self):
        """Yield sequences one at a time, of all the lengths measured: ranges of attention depend on the length."""
        works = [work["sequences"] for work in self.works.values()]
        if not self.many:
            works = [(sequences * CALIBRATION)[:12] for sequences in works]
        every = list(chain.from_iterable(works))
        for sequence in every[:: max(1, len(every) // CALIBRATION)][:CALIBRATION]:
            yield self.given(*padded([sequence]))

    def nncf(self):
        import nncf

        def make():
            batches = list(self.calibration())
            options = {
                "model_type": nncf.ModelType.TRANSFORMER,
                "preset": nncf.QuantizationPreset.PERFORMANCE,
            }
            return nncf.quantize(
                self.converted().clone(), nncf.Dataset(batches), subset_size=len(batches), **options
            )

        return self.once("nncf", make)

    def qdq(self):
        import openvino
        from onnxruntime.quantization import (
            CalibrationDataReader,
            QuantFormat,
            QuantType,
            quantize_static,
        )

        class Reader(CalibrationDataReader):
            def __init__(self, given):
                self.given = given

            def get_next(self):
                return next(self.given, None)

        def make():
            file = self.file("qdq.onnx")
            options = {
                "quant_format": QuantFormat.QDQ,
                "per_channel": True,
                "activation_type": QuantType.QInt8,
                "weight_type": QuantType.QInt8,
                "op_types_to_quantize": ["MatMul"],
                "extra_options": {"ActivationSymmetric": True},
            }
            quantize_static(self.simplified("legacy"), file, Reader(self.calibration()), **options)
            return openvino.Core().read_model(file)

        return self.once("qdq", make)

    def openvino(self, setting, source, precision, work, streams):
        import openvino

        model = source().clone()
        if work["prepared"]:
            model.reshape(
                {
                    input_name: [len(work["sequences"]), len(work["sequences"][0])]
                    for input_name in self.names
                }
            )
        options = {
            "INFERENCE_NUM_THREADS": self.job["threads"],
            "INFERENCE_PRECISION_HINT": precision,
            "PERFORMANCE_HINT": "LATENCY" if streams == 1 else "THROUGHPUT",
            "NUM_STREAMS": streams,
        }
        compiled = openvino.Core().compile_model(model, "CPU", options)
        self.compiled[setting] = compiled
        kinds = Counter(
            str(op.get_rt_info()["runtimePrecision"].value)
            for op in compiled.get_runtime_model().get_ops()
            if op.get_rt_info()["layerType"].value == "FullyConnected"
        )
        self.counted.setdefault(setting, {})[source.__name__] = dict(kinds)
        if streams > 1:
            return self.queued(work, compiled, streams)
        request = compiled.create_infer_request()
        return doing(
            work,
            lambda *arrays: request.infer(
                self.given(*arrays), share_inputs=True, share_outputs=True
            )[0],
        )

    def queued(self, work, compiled, streams):
        """Return a run of a work whose batches are in flight together."""
        import numpy as np
        import openvino

        queue = openvino.AsyncInferQueue(compiled, streams)
        width = compiled.output(0).get_partial_shape()[-1].get_length()

        def run():
            states = np.empty((len(work["sequences"]), width), np.float32)

            def keep(request, indices):
                states[indices] = request.get_output_tensor(0).data

            queue.set_callback(keep)
            for places, arrays in batches_of(work):
                queue.start_async(self.given(*arrays), places)
            queue.wait_all()
            return states

        return run


if __name__ == "__main__":
    protocol.answer(prepare)
