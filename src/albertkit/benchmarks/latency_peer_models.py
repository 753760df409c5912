"""transformers and ONNX Runtime, their models made when first asked for. Part of `latency_peer.py`'s process."""

import os
from collections import Counter
from functools import cached_property

from latency_peer_work import doing


class Workbench:
    """Models in all forms, made when first asked for."""

    def __init__(self, job, works):  # type: ignore[no-untyped-def]
        self.job, self.works = job, works
        self.many = not all(work["prepared"] for work in works.values())  # many batches, of any lengths, with padding
        self.made, self.counted, self.compiled = {}, {}, {}

    def threads_of(self, name):  # type: ignore[no-untyped-def]
        """As the library says; ONNX Runtime: as its sessions are told."""
        if name.startswith("transformers"):
            return self.library.get_num_threads()
        if name.startswith("ONNX"):
            return self.session_options().intra_op_num_threads
        return int(self.compiled[name].get_property("INFERENCE_NUM_THREADS"))

    def notes(self, name):  # type: ignore[no-untyped-def]
        """What was quantised."""
        return {"products": self.counted[name]} if name in self.counted else {}

    def once(self, key, make):  # type: ignore[no-untyped-def]
        """What `make` gives, or raises, at the first call with this key."""
        if key not in self.made:
            try:
                self.made[key] = make()
            except Exception as error:
                self.made[key] = error
        if isinstance(self.made[key], Exception):
            raise self.made[key]
        return self.made[key]

    def file(self, name):  # type: ignore[no-untyped-def]
        return os.path.join(self.job["scratch"], name)

    # transformers

    @cached_property
    def library(self):  # type: ignore[no-untyped-def]
        import torch

        torch.set_num_threads(self.job["threads"])
        return torch

    def model(self, dtype):  # type: ignore[no-untyped-def]
        """transformers' model, which returns the states wanted as a tensor."""
        torch = self.library
        from transformers import AlbertModel

        first_only = self.job["first_only"]

        class States(torch.nn.Module):
            def __init__(self, albert):  # type: ignore[no-untyped-def]
                super().__init__()
                self.albert = albert

            def forward(self, input_ids, attention_mask=None):  # type: ignore[no-untyped-def]
                states = self.albert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
                return states[:, 0] if first_only else states

        def make():  # type: ignore[no-untyped-def]
            albert = AlbertModel.from_pretrained(self.job["folder"], add_pooling_layer=False)
            return States(albert.to(getattr(torch, dtype))).eval()

        return self.once(("torch", dtype), make)

    def torch(self, dtype, work):  # type: ignore[no-untyped-def]
        torch, model = self.library, self.model(dtype)

        def infer(ids, mask):  # type: ignore[no-untyped-def]
            with torch.inference_mode():
                given = (torch.from_numpy(ids), torch.from_numpy(mask)) if self.many else (torch.from_numpy(ids),)
                return model(*given).float().numpy()

        return doing(work, infer)

    # ONNX

    @property
    def names(self):  # type: ignore[no-untyped-def]
        """Of the inputs: a graph for rows of one length needs no mask, and is spared it."""
        return ["input_ids", "attention_mask"] if self.many else ["input_ids"]

    @property
    def example(self):  # type: ignore[no-untyped-def]
        torch = self.library
        ids = torch.arange(5, 37).view(2, 16)
        mask = torch.ones_like(ids)
        mask[1, 10:] = 0
        return (ids, mask) if self.many else (ids,)

    def exported(self, exporter):  # type: ignore[no-untyped-def]
        """File of the fp32 graph."""
        torch, model, file = self.library, self.model("float32"), self.file(f"{exporter}.onnx")

        def make():  # type: ignore[no-untyped-def]
            with torch.no_grad():
                if exporter == "legacy":
                    axes = {name: {0: "rows", 1: "places"} for name in self.names}
                    torch.onnx.export(
                        model, self.example, file, dynamo=False, opset_version=17, input_names=self.names,
                        output_names=["states"], dynamic_axes=axes,
                    )  # fmt: skip
                else:
                    sizes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("places")}
                    shapes = dict.fromkeys(self.names, sizes)
                    torch.onnx.export(
                        model, self.example, dynamo=True, input_names=self.names, output_names=["states"], dynamic_shapes=shapes
                    ).save(file)  # fmt: skip
            return file

        return self.once(("exported", exporter), make)

    def simplified(self, exporter):  # type: ignore[no-untyped-def]
        """After ONNX Runtime's basic pass: shared weights, behind Identity before, are constants that a quantiser sees."""
        import onnxruntime

        source, file = self.exported(exporter), self.file(f"{exporter}-basic.onnx")

        def make():  # type: ignore[no-untyped-def]
            options = self.session_options()
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
            options.optimized_model_filepath = file
            onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
            return file

        return self.once(("simplified", exporter), make)

    def quantized(self, exporter):  # type: ignore[no-untyped-def]
        from onnxruntime.quantization import QuantType, quantize_dynamic

        source, file = self.simplified(exporter), self.file(f"{exporter}-int8.onnx")

        def make():  # type: ignore[no-untyped-def]
            options = {"MatMulConstBOnly": True}
            quantize_dynamic(source, file, per_channel=True, weight_type=QuantType.QInt8, extra_options=options)
            self.counted.setdefault("ONNX Runtime int8", {})[exporter] = operators(file, "MatMulInteger", "MatMul")
            return file

        return self.once(("quantized", exporter), make)

    def session_options(self):  # type: ignore[no-untyped-def]
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.job["threads"], 1
        options.log_severity_level = 3
        return options

    def onnx_fp32(self, exporter, work):  # type: ignore[no-untyped-def]
        return self.session(self.exported(exporter), work)

    def onnx_int8(self, exporter, work):  # type: ignore[no-untyped-def]
        return self.session(self.quantized(exporter), work)

    def session(self, file, work):  # type: ignore[no-untyped-def]
        import onnxruntime

        options = self.session_options()  # all optimisations are the default
        if work["prepared"]:  # the shape is known: what depends on it alone is computed while loading
            options.add_free_dimension_override_by_name("rows", len(work["sequences"]))
            options.add_free_dimension_override_by_name("places", len(work["sequences"][0]))
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

        def infer(ids, mask):  # type: ignore[no-untyped-def]
            return session.run(None, dict(zip(self.names, (ids, mask), strict=False)))[0]

        return doing(work, infer)


def operators(file, *names):  # type: ignore[no-untyped-def]
    """How many nodes of these kinds a graph has."""
    import onnx

    found = Counter(node.op_type for node in onnx.load(file).graph.node)
    return {name: found[name] for name in names}
