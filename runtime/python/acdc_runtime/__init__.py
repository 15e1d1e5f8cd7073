"""Runs ONNX models on CPUs, and sparse ones faster.

from acdc_runtime import InferenceSession

session = InferenceSession("model.onnx", threads=2)
(logits,) = session.run(None, {"input": images})
"""

from acdc_runtime.errors import ModelError
from acdc_runtime.session import InferenceSession, TensorInfo

__all__ = ["InferenceSession", "ModelError", "TensorInfo"]
__version__ = "0.1.0"
