"""OpenVINO, and two ways to quantise for it. Part of `latency_peer.py`'s process."""

from collections import Counter

from latency_peer_models import Workbench
from latency_peer_work import batches, doing, padded

CALIBRATION = 48  # sequences


class OpenVinoBench(Workbench):
    """A workbench with OpenVINO's models, too."""

    def converted(self):  # type: ignore[no-untyped-def]
        import openvino

        def make():  # type: ignore[no-untyped-def]
            with self.library.no_grad():
                example = dict(zip(self.names, self.example, strict=True))
                return openvino.convert_model(self.model("float32"), example_input=example)

        return self.once("converted", make)

    def calibration(self):  # type: ignore[no-untyped-def]
        """Sequences one at a time, of all the lengths measured: ranges of attention depend on the length."""
        every = [sequence for work in self.works.values() for sequence in work["sequences"]]
        if not self.many:
            every = [sequence for work in self.works.values() for sequence in (work["sequences"] * CALIBRATION)[:12]]
        step = max(1, len(every) // CALIBRATION)
        for sequence in every[::step][:CALIBRATION]:
            work = {"sequences": [sequence]}
            yield dict(zip(self.names, padded(work, [0]), strict=False))

    def nncf(self):  # type: ignore[no-untyped-def]
        import nncf

        def make():  # type: ignore[no-untyped-def]
            given = list(self.calibration())
            return nncf.quantize(
                self.converted().clone(), nncf.Dataset(given), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(given),
                preset=nncf.QuantizationPreset.PERFORMANCE,
            )  # fmt: skip

        return self.once("nncf", make)

    def qdq(self):  # type: ignore[no-untyped-def]
        import openvino
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

        class Reader(CalibrationDataReader):
            def __init__(self, given):  # type: ignore[no-untyped-def]
                self.given = given

            def get_next(self):  # type: ignore[no-untyped-def]
                return next(self.given, None)

        def make():  # type: ignore[no-untyped-def]
            file = self.file("qdq.onnx")
            quantize_static(
                self.simplified("legacy"), file, Reader(self.calibration()), quant_format=QuantFormat.QDQ, per_channel=True,
                activation_type=QuantType.QInt8, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"],
                extra_options={"ActivationSymmetric": True},
            )  # fmt: skip
            return openvino.Core().read_model(file)

        return self.once("qdq", make)

    def openvino(self, setting, source, precision, work, streams):  # type: ignore[no-untyped-def]
        import openvino

        model = source().clone()
        if work["prepared"]:
            model.reshape({given: [len(work["sequences"]), len(work["sequences"][0])] for given in self.names})
        hint = "LATENCY" if streams == 1 else "THROUGHPUT"
        compiled = openvino.Core().compile_model(model, "CPU", {
            "INFERENCE_NUM_THREADS": self.job["threads"], "INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": hint,
            "NUM_STREAMS": streams,
        })  # fmt: skip
        self.compiled[setting] = compiled
        kinds = Counter(
            str(op.get_rt_info()["runtimePrecision"].value)
            for op in compiled.get_runtime_model().get_ops()
            if op.get_rt_info()["layerType"].value == "FullyConnected"
        )
        self.counted.setdefault(setting, {})[source.__name__] = dict(kinds)
        if streams > 1:
            return queued(work, self.names, compiled, streams)
        request = compiled.create_infer_request()

        def infer(ids, mask):  # type: ignore[no-untyped-def]
            given = dict(zip(self.names, (ids, mask), strict=False))
            return request.infer(given, share_inputs=True, share_outputs=True)[0]

        return doing(work, infer)


def queued(work, names, compiled, streams):  # type: ignore[no-untyped-def]
    """A run of a work whose batches are in flight together."""
    import numpy as np
    import openvino

    queue = openvino.AsyncInferQueue(compiled, streams)
    width = compiled.output(0).get_partial_shape()[-1].get_length()

    def run():  # type: ignore[no-untyped-def]
        states = np.empty((len(work["sequences"]), width), np.float32)

        def keep(request, places):  # type: ignore[no-untyped-def]
            states[places] = request.get_output_tensor(0).data

        queue.set_callback(keep)
        for places in batches(work):
            queue.start_async(dict(zip(names, padded(work, places), strict=False)), places)
        queue.wait_all()
        return states

    return run
