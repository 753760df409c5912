"""sentence-transformers at every setting a user may choose, in a process of its own that answers over a pipe.

It is run by an interpreter that has `sentence-transformers[onnx,openvino]` and `datasets`, which want other versions of
transformers than albertkit is tested with, so it knows nothing of albertkit. Argument: a JSON object with `folder` (a
sentence-transformers folder), `texts` (a JSON file of the texts), `threads`, and `scratch` (a folder to export into).

It writes one JSON object a line: `{"making": name}` before each setting, then `{"ready": [names], "failed": {name: reason},
"versions": {…}}`. To `{"run": name}` it answers `{"seconds": …}`, to `{"vectors": name, "file": path}` `{"saved": path}`.
"""

import importlib.metadata
import json
import os
import sys
import time


def main():  # type: ignore[no-untyped-def]
    """Make every setting, then answer until the pipe is closed."""
    job = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the libraries print is not for the pipe

    def say(answer):  # type: ignore[no-untyped-def]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    with open(job["texts"], encoding="utf-8") as stream:
        texts = json.load(stream)
    models, failed = {}, {}
    for name, make in settings(job, texts).items():
        say({"making": name})
        try:
            models[name] = make()
            models[name].encode(texts[:2])
        except Exception as error:
            models.pop(name, None)
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    say({"ready": list(models), "failed": failed, "versions": versions()})
    for line in sys.stdin:
        asked = json.loads(line)
        if "run" in asked:
            start = time.perf_counter()
            models[asked["run"]].encode(texts)
            say({"seconds": time.perf_counter() - start})
        else:
            import numpy as np

            np.save(asked["file"], models[asked["vectors"]].encode(texts).astype(np.float32))
            say({"saved": asked["file"]})


def settings(job, texts):  # type: ignore[no-untyped-def]
    """Name to a function that makes the model; those that need an export come after it."""
    import sentence_transformers as library
    import torch

    torch.set_num_threads(job["threads"])
    model = library.SentenceTransformer
    onnx, openvino = os.path.join(job["scratch"], "onnx"), os.path.join(job["scratch"], "openvino")

    def export(backend, folder):  # type: ignore[no-untyped-def]
        if not os.path.exists(folder):
            model(job["folder"], backend=backend, device="cpu").save_pretrained(folder)

    def open_onnx(file):  # type: ignore[no-untyped-def]
        import onnxruntime

        session = onnxruntime.SessionOptions()
        session.intra_op_num_threads = job["threads"]
        export("onnx", onnx)
        if "qint8" in file:
            full = model(onnx, backend="onnx", device="cpu", model_kwargs={"file_name": "onnx/model.onnx"})
            library.export_dynamic_quantized_onnx_model(full, "avx512_vnni", onnx)
        options = {"file_name": file, "session_options": session, "provider": "CPUExecutionProvider"}
        return model(onnx, backend="onnx", device="cpu", model_kwargs=options)

    def open_openvino(file, precision):  # type: ignore[no-untyped-def]
        export("openvino", openvino)
        if "qint8" in file:
            full = model(openvino, backend="openvino", device="cpu", model_kwargs={"file_name": "openvino_model.xml"})
            source = dict(dataset_name=calibration(job["scratch"], texts), dataset_config_name="default")
            library.export_static_quantized_openvino_model(
                full, quantization_config=None, model_name_or_path=openvino, dataset_split="train", column_name="text", **source
            )  # fmt: skip
        wanted = {"INFERENCE_NUM_THREADS": job["threads"], "INFERENCE_PRECISION_HINT": precision}
        return model(openvino, backend="openvino", device="cpu", model_kwargs={"file_name": file, "ov_config": wanted})

    half = {"torch_dtype": torch.bfloat16}
    return {
        "default (torch, fp32)": lambda: model(job["folder"], device="cpu"),
        "torch, bf16": lambda: model(job["folder"], device="cpu", model_kwargs=half),
        "onnx, fp32": lambda: open_onnx("onnx/model.onnx"),
        "onnx, int8 (dynamic, avx512_vnni)": lambda: open_onnx("onnx/model_qint8_avx512_vnni.onnx"),
        "openvino, fp32": lambda: open_openvino("openvino_model.xml", "f32"),
        "openvino, bf16": lambda: open_openvino("openvino_model.xml", "bf16"),
        "openvino, int8 (static)": lambda: open_openvino("openvino_model_qint8_quantized.xml", "bf16"),
    }


def calibration(scratch, texts):  # type: ignore[no-untyped-def]
    """A folder with the first 300 texts, as many as sentence-transformers takes by default, from its own dataset."""
    folder = os.path.join(scratch, "calibration")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "train.jsonl"), "w", encoding="utf-8") as stream:
        for text in texts[:300]:
            stream.write(json.dumps({"text": text}) + "\n")
    return folder


def versions():  # type: ignore[no-untyped-def]
    """Of what took part."""
    found = {}
    for package in ("sentence-transformers", "transformers", "torch", "onnxruntime", "openvino", "nncf"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
