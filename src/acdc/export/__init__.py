"""Export a trained model as ONNX or packed safetensors, or shrink it by removing its dead channels.

    acdc.export.save_sparse(result.sparse, "model.safetensors")      about .12x of fp32 at 90 %; acdc.load reads it
    small = acdc.export.shrink(model, x)                             a copy without filters and channels that do nothing
    acdc.export.to_onnx(model, x, "model.onnx")                      any batch size, checked by onnxruntime

Names are imported on first use.
"""

import typing

if typing.TYPE_CHECKING:
    from acdc.export.onnx import OnnxFile, to_onnx
    from acdc.export.resizing import resize
    from acdc.export.shrinking import shrink
    from acdc.export.sizes import SizeComparison, compare_sizes
    from acdc.sparsity.packed import save as save_sparse

__all__ = ["OnnxFile", "SizeComparison", "compare_sizes", "resize", "save_sparse", "shrink", "to_onnx"]

_NAMES = {
    "OnnxFile": ("acdc.export.onnx", "OnnxFile"),
    "SizeComparison": ("acdc.export.sizes", "SizeComparison"),
    "compare_sizes": ("acdc.export.sizes", "compare_sizes"),
    "resize": ("acdc.export.resizing", "resize"),
    "save_sparse": ("acdc.sparsity.packed", "save"),
    "shrink": ("acdc.export.shrinking", "shrink"),
    "to_onnx": ("acdc.export.onnx", "to_onnx"),
}

if not typing.TYPE_CHECKING:  # else every misspelt name would be an Any

    def __getattr__(name: str) -> typing.Any:
        import importlib

        if name not in _NAMES:
            raise AttributeError(f"module 'acdc.export' has no attribute {name!r}")
        module, attribute = _NAMES[name]
        value = getattr(importlib.import_module(module), attribute)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
