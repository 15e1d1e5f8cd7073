"""The operators a session can run, by their ONNX names."""

from acdc_runtime import lower_maps as maps
from acdc_runtime import lower_products as products
from acdc_runtime import lower_tensors as tensors
from acdc_runtime.folding import FOLDABLE
from acdc_runtime.fusion import ACTIVATIONS
from acdc_runtime.graph import Graph
from acdc_runtime.plan import Lower

LOWERINGS: dict[str, Lower] = {
    **dict.fromkeys(ACTIVATIONS, tensors.activation),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow"), tensors.arithmetic),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax"), tensors.reduce),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), tensors.norm),
    "AveragePool": maps.pool,
    "BatchNormalization": maps.batch_norm,
    "Cast": tensors.cast,
    "Concat": tensors.concat,
    "Conv": maps.convolution,
    "Expand": tensors.expand,
    "Flatten": tensors.flatten,
    "Gather": tensors.gather,
    "Gemm": products.gemm,
    "GlobalAveragePool": maps.global_mean,
    "MatMul": products.matmul,
    "MaxPool": maps.pool,
    "PRelu": tensors.prelu,
    "Reshape": tensors.reshape,
    "Resize": maps.resize,
    "Slice": tensors.slice_,
    "Softmax": tensors.softmax,
    "Split": tensors.split,
    "Squeeze": tensors.squeeze,
    "Transpose": tensors.transpose,
    "Unsqueeze": tensors.unsqueeze,
    "Where": tensors.where,
}
_ONLY_INSIDE = {"Silu"}  # named by this package, not by ONNX
SUPPORTED = (frozenset(LOWERINGS) | FOLDABLE | {"Identity", "Dropout"}) - _ONLY_INSIDE


def refuse_unknown(graph: Graph) -> None:
    """Refuse a graph with an operator that no session can run, naming the operator and its node."""
    for node in graph.nodes:
        if node.op not in SUPPORTED:
            raise node.refuse(f"the operator {node.op} is not supported; supported are {', '.join(sorted(SUPPORTED))}")
