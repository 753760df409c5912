"""sentence-transformers at every setting a user may choose.

It is run by an interpreter that has `sentence-transformers[onnx,openvino]` and `datasets`, which
want other versions of transformers than albertkit is tested with. The job holds `folder` (a
sentence-transformers folder), `texts` (a JSON file of the texts), `threads`, and `scratch` (a
folder to export into).
"""

import json
import os

from benchmarks.peer_programs import protocol


def prepare(job, say):
    """Make every setting; a run encodes all texts."""
    with open(job["texts"], encoding="utf-8") as stream:
        texts = json.load(stream)
    about = {
        "versions": protocol.versions(
            "sentence-transformers", "transformers", "torch", "onnxruntime", "openvino", "nncf"
        )
    }
    try:
        makers = settings(job, texts)
    except ImportError as error:
        return {}, dict(about, failed={"": protocol.reason(error)}, library=False)

    def tried(make):
        model = make()
        model.encode(texts[:2])
        return lambda: model.encode(texts)

    runners, failed = protocol.make_all(
        {name: lambda make=make: tried(make) for name, make in makers.items()}, say
    )
    return runners, dict(about, failed=failed, library=True)


def settings(job, texts):
    """Return a function that makes the model of each setting; those that need an export come after it."""
    import sentence_transformers as library
    import torch

    torch.set_num_threads(job["threads"])
    onnx, openvino = os.path.join(job["scratch"], "onnx"), os.path.join(job["scratch"], "openvino")

    def model(folder, **options):
        return library.SentenceTransformer(folder, device="cpu", **options)

    def export(backend, folder):
        if not os.path.exists(folder):
            model(job["folder"], backend=backend).save_pretrained(folder)

    def open_onnx(file):
        import onnxruntime

        session = onnxruntime.SessionOptions()
        session.intra_op_num_threads = job["threads"]
        export("onnx", onnx)
        if "qint8" in file:
            full = model(onnx, backend="onnx", model_kwargs={"file_name": "onnx/model.onnx"})
            library.export_dynamic_quantized_onnx_model(full, "avx512_vnni", onnx)
        options = {
            "file_name": file,
            "session_options": session,
            "provider": "CPUExecutionProvider",
        }
        return model(onnx, backend="onnx", model_kwargs=options)

    def open_openvino(file, precision):
        export("openvino", openvino)
        if "qint8" in file:
            full = model(
                openvino, backend="openvino", model_kwargs={"file_name": "openvino_model.xml"}
            )
            arguments = {
                "dataset_name": calibration(job["scratch"], texts),
                "dataset_config_name": "default",
            }
            arguments.update(dataset_split="train", column_name="text", quantization_config=None)
            library.export_static_quantized_openvino_model(
                full, model_name_or_path=openvino, **arguments
            )
        config = {"INFERENCE_NUM_THREADS": job["threads"], "INFERENCE_PRECISION_HINT": precision}
        return model(
            openvino, backend="openvino", model_kwargs={"file_name": file, "ov_config": config}
        )

    return {
        "default (torch, fp32)": lambda: model(job["folder"]),
        "torch, bf16": lambda: model(job["folder"], model_kwargs={"torch_dtype": torch.bfloat16}),
        "onnx, fp32": lambda: open_onnx("onnx/model.onnx"),
        "onnx, int8 (dynamic, avx512_vnni)": lambda: open_onnx("onnx/model_qint8_avx512_vnni.onnx"),
        "openvino, fp32": lambda: open_openvino("openvino_model.xml", "f32"),
        "openvino, bf16": lambda: open_openvino("openvino_model.xml", "bf16"),
        "openvino, int8 (static)": lambda: open_openvino(
            "openvino_model_qint8_quantized.xml", "bf16"
        ),
    }


def calibration(scratch, texts):
    """Make a folder with the first 300 texts, as many as sentence-transformers takes by default, from its own dataset."""
    folder = os.path.join(scratch, "calibration")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "train.jsonl"), "w", encoding="utf-8") as stream:
        for text in texts[:300]:
            stream.write(json.dumps({"text": text}) + "\n")
    return folder


if __name__ == "__main__":
    protocol.answer(prepare)
