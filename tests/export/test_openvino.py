"""OpenVINO runs the same files as ONNX Runtime."""

import numpy as np
import onnxruntime
import pytest

from albertkit.export.onnx import export_onnx
from albertkit.model import AlbertForMaskedLM, AlbertForSequenceClassification

pytestmark = pytest.mark.peer


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("model_class", [AlbertForMaskedLM, AlbertForSequenceClassification])
def test_same_logits(tiny_model_folder, tmp_path, model_class, precision):
    openvino = pytest.importorskip("openvino")
    export_onnx(tiny_model_folder(model_class), tmp_path / "onnx", precision=precision, force=True)
    path = str(tmp_path / "onnx/model.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for rows, width in ((1, 1), (2, 9), (5, 23)):
        ids = np.random.default_rng(width).integers(5, 50, (rows, width))
        mask = (np.arange(width) < np.linspace(width, 1, rows).astype(int)[:, None]).astype(
            np.int64
        )
        batch = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        expected = session.run(["logits"], batch)[0]
        actual = compiled(batch)["logits"]
        real = mask.astype(bool) if expected.ndim == 3 else slice(None)
        np.testing.assert_allclose(
            actual[real], expected[real], atol=1e-5 if precision == "fp32" else 0.02
        )
