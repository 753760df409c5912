"""Models in the forms that other programs run."""

from albertkit.export.onnx_export import ExportReport, build_onnx, export_onnx

__all__ = ["ExportReport", "build_onnx", "export_onnx"]
