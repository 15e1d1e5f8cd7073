"""Lowers convolutions, pooling and resizing: what works on feature maps of (N, C, H, W)."""

import math

import numpy as np

from acdc_runtime.fusion import follow
from acdc_runtime.graph import Node
from acdc_runtime.plan import Planner, Tensor, tiled_floats
from acdc_runtime.simplify import batch_norm_terms

_NONE = np.zeros(0, np.float32)
_EXPANDED = 1 << 26  # weights a grouped convolution may expand to


def _spatial(node: Node, x: Tensor, kernel: list[int]) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """Return strides, dilations, pads before, pads after and output sizes, one per spatial dimension."""
    rank = len(kernel)
    strides = node.integers("strides") or [1] * rank
    dilations = node.integers("dilations") or [1] * rank
    pads = node.integers("pads") or [0] * (2 * rank)
    if len(strides) != rank or len(dilations) != rank or len(pads) != 2 * rank:
        raise node.refuse(f"strides, dilations and pads do not fit a kernel of {rank} dimensions")
    if (
        min(strides) < 1
        or min(dilations) < 1
        or min(kernel) < 1
        or min(pads) < 0
        or max(*strides, *dilations, *pads, *kernel) > 1 << 20
    ):
        raise node.refuse("a kernel, stride, dilation or padding outside 1..2^20 (padding: 0..2^20)")
    sizes = list(x.shape[2:])
    before, after, out = [], [], []
    auto = node.text("auto_pad", "NOTSET")
    ceil = node.integer("ceil_mode", 0)
    for i in range(rank):
        reach = dilations[i] * (kernel[i] - 1) + 1
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            size = -(-sizes[i] // strides[i])
            total = max(0, (size - 1) * strides[i] + reach - sizes[i])
            first = total // 2 if auto == "SAME_UPPER" else total - total // 2
            before.append(first)
            after.append(total - first)
        elif auto in ("NOTSET", "VALID", ""):
            before.append(pads[i] if auto != "VALID" else 0)
            after.append(pads[i + rank] if auto != "VALID" else 0)
            room = sizes[i] + before[i] + after[i] - reach
            size = (-(-room // strides[i]) if ceil else room // strides[i]) + 1
            if ceil and (size - 1) * strides[i] >= sizes[i] + before[i]:
                size -= 1
        else:
            raise node.refuse(f"auto_pad {auto!r} is not known")
        if size < 1:
            raise node.refuse(f"a kernel of {kernel} is larger than its input, {sizes}")
        out.append(size)
    return strides, dilations, before, after, out


def _two(values: list[int], fill: int) -> list[int]:
    return [fill] * (2 - len(values)) + values


def _as_map(p: Planner, node: Node, x: Tensor) -> Tensor:
    """Return a (N, C, L) tensor as (N, C, 1, L), and a map as it is."""
    if len(x.shape) == 4:
        return x
    if len(x.shape) == 3:
        return Tensor((x.shape[0], x.shape[1], 1, x.shape[2]), plain=p.plain(x))
    raise node.refuse(f"an input of {len(x.shape)} dimensions; 3 and 4 are supported")


def _geometry(
    x: Tensor, out: list[int], kernel: list[int], strides: list[int], before: list[int], dilations: list[int]
) -> list[int]:
    n, c, h, w = x.shape
    return [n, c, h, w, *out, *kernel, *strides, *before, *dilations]


def _define_map(p: Planner, name: str, flat: bool, out: Tensor) -> None:
    if flat:
        p.define(name, Tensor((*out.shape[:2], out.shape[3]), plain=p.plain(out)))
    else:
        p.define(name, out)


def convolution(p: Planner, node: Node) -> None:
    x = p.numbers(node.input(0))
    weight, bias = p.constant(node.input(1)), p.constant(node.input(2))
    if weight is None or weight.ndim not in (3, 4) or weight.ndim != len(x.shape) or weight.dtype.kind != "f":
        raise node.refuse(
            f"weights of {0 if weight is None else weight.ndim} dimensions for an input of {len(x.shape)}; "
            "3 and 4 are supported"
        )
    flat = weight.ndim == 3
    if flat:
        weight = weight[:, :, None, :]
    if not np.isfinite(weight).all():
        raise node.refuse(f"its weights, {node.input(1)!r}, are not finite")
    groups, rows, channels = node.integer("group", 1), weight.shape[0], x.shape[1]
    if groups < 1 or rows < 1 or rows % groups or weight.shape[1] * groups != channels:
        raise node.refuse(f"weights of {weight.shape} in {groups} groups do not fit {channels} input channels")
    if bias is not None and (bias.dtype.kind != "f" or bias.size != rows):
        raise node.refuse(f"a bias of {bias.size} values for {rows} output channels")
    kernel = list(weight.shape[2:])[1:] if flat else list(weight.shape[2:])
    given = node.integers("kernel_shape")
    if given is not None and given != kernel:
        raise node.refuse(f"kernel_shape {given} differs from the weights' {kernel}")
    strides, dilations, before, _, out = _spatial(node, x, kernel)
    x = _as_map(p, node, x)
    out, kernel = _two(out, 1), _two(kernel, 1)
    geometry = _geometry(x, out, kernel, _two(strides, 1), _two(before, 0), _two(dilations, 1))
    shape = (x.shape[0], rows, *out)
    result = Tensor(shape)
    depthwise = groups == channels and rows == channels and (channels > 1 or kernel != [1, 1])
    extra = follow(p, node.outputs[0], shape if not flat else (), residual=not depthwise and not flat)
    residual = p.tiled(extra.residual) if extra.residual else 0
    source = p.tiled(x)
    result.tiled = p.new(tiled_floats(shape))
    if depthwise:
        own = np.ascontiguousarray(weight).reshape(-1)
        shift = _NONE if bias is None else np.ascontiguousarray(bias).reshape(-1)
        ends = (False, 0, 0, *extra.clamp, *extra.activation)
        p.add("window", 0, geometry, source, result.tiled, own, shift, *ends)
    else:
        matrix = _ungrouped(node, weight, groups).reshape(rows, -1)
        weights = p.choose(node.name, matrix, bias, geometry)
        p.add(
            "convolution", geometry, weights, source, result.tiled, residual, extra.residual is not None, *extra.clamp,
            *extra.activation,
        )  # fmt: skip
    _define_map(p, extra.output, flat, result)


def _ungrouped(node: Node, weight: np.ndarray, groups: int) -> np.ndarray:
    """Return a grouped convolution's weights over all input channels: what is outside a group is zero, so sparse."""
    if groups == 1:
        return np.ascontiguousarray(weight)
    rows, each = weight.shape[:2]
    if weight.size * groups > _EXPANDED:
        raise node.refuse(f"{groups} groups over {rows} channels expand to more than {_EXPANDED} weights")
    full = np.zeros((rows, each * groups, *weight.shape[2:]), np.float32)
    per = rows // groups
    for g in range(groups):
        full[g * per : (g + 1) * per, g * each : (g + 1) * each] = weight[g * per : (g + 1) * per]
    return full


def batch_norm(p: Planner, node: Node) -> None:
    if node.integer("training_mode", 0):
        raise node.refuse("batch norms in training mode are not supported")
    x = p.numbers(node.input(0))
    terms = {name: found for name in node.inputs[1:] if name and (found := p.constant(name)) is not None}
    factor, summand = batch_norm_terms(terms, node)
    if len(x.shape) < 2 or x.shape[1] != factor.size:
        raise node.refuse(f"{factor.size} channels do not fit an input of {list(x.shape)}")
    original = x.shape
    if len(original) == 2:
        x = Tensor((*original, 1, 1), plain=p.plain(x))
    elif len(original) == 3:
        x = Tensor((*original[:2], 1, original[2]), plain=p.plain(x))
    elif len(original) > 4:
        x = Tensor((*original[:2], math.prod(original[2:-1]), original[-1]), plain=p.plain(x))
    extra = follow(p, node.outputs[0], (), residual=False)
    result = Tensor(x.shape, tiled=p.new(tiled_floats(x.shape)))
    geometry = _geometry(x, list(x.shape[2:]), [1, 1], [1, 1], [0, 0], [1, 1])
    p.add(
        "window",
        0,
        geometry,
        p.tiled(x),
        result.tiled,
        factor.astype(np.float32),
        summand.astype(np.float32),
        False,
        0,
        0,
        *extra.clamp,
        *extra.activation,
    )
    p.define(extra.output, result if len(original) == 4 else Tensor(original, plain=p.plain(result)))


def pool(p: Planner, node: Node) -> None:
    x = p.numbers(node.input(0))
    if len([o for o in node.outputs if o and (o in p.users)]) > 1 or (
        len(node.outputs) > 1 and node.outputs[1] in p.users
    ):
        raise node.refuse("its indices are not computed")
    flat = len(x.shape) == 3
    kernel = node.integers("kernel_shape")
    if kernel is None or len(kernel) != len(x.shape) - 2:
        raise node.refuse("kernel_shape does not fit its input")
    strides, dilations, before, after, out = _spatial(node, x, kernel)
    if any(b >= d * (k - 1) + 1 for b, d, k in zip(before, dilations, kernel, strict=True)):
        raise node.refuse("the padding is as large as the kernel")
    x = _as_map(p, node, x)
    kernel, out, before, after = _two(kernel, 1), _two(out, 1), _two(before, 0), _two(after, 0)
    shape = (*x.shape[:2], *out)
    average = node.op == "AveragePool"
    if average and kernel == list(x.shape[2:]) and not any(before + after) and out == [1, 1]:
        _mean(p, node.outputs[0], x, (*shape[:2], 1) if flat else shape)
        return
    if math.prod(kernel) > 1024:
        raise node.refuse(f"a window of {math.prod(kernel)} pixels; at most 1024 are supported")
    extra = follow(p, node.outputs[0], (), residual=False)
    result = Tensor(shape, tiled=p.new(tiled_floats(shape)))
    geometry = _geometry(x, out, kernel, _two(strides, 1), before, _two(dilations, 1))
    counted = bool(node.integer("count_include_pad", 0))
    p.add(
        "window",
        2 if average else 1,
        geometry,
        p.tiled(x),
        result.tiled,
        _NONE,
        _NONE,
        counted,
        *after,
        *extra.clamp,
        *extra.activation,
    )
    _define_map(p, extra.output, flat, result)


def _mean(p: Planner, name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    result = Tensor(shape, plain=p.new(math.prod(shape)))
    n, c, h, w = x.shape
    if x.tiled is not None:
        p.add("tile_mean", n, c, h * w, x.tiled, result.plain)
    else:
        p.add("reduce", n * c, h * w, 1, 0, p.plain(x), result.plain)
    p.define(name, result)


def global_mean(p: Planner, node: Node) -> None:
    x = p.numbers(node.input(0))
    if len(x.shape) < 3:
        raise node.refuse(f"an input of {len(x.shape)} dimensions")
    ones = (*x.shape[:2], *[1] * (len(x.shape) - 2))
    if len(x.shape) != 4:
        x = Tensor((*x.shape[:2], math.prod(x.shape[2:]), 1), plain=p.plain(x))
    if math.prod(x.shape[2:]) < 1:
        raise node.refuse("nothing to average")
    _mean(p, node.outputs[0], x, ones)


def mean_of_map(p: Planner, name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    _mean(p, name, x, shape)


def _axis(node: Node, size: int, out: int, scale: float) -> tuple[list[int], list[int], list[float]]:
    mode, how = node.text("mode", "nearest"), node.text("coordinate_transformation_mode", "half_pixel")
    at = np.arange(out, dtype=np.float64)
    if how == "half_pixel":
        x = (at + 0.5) / scale - 0.5
    elif how == "pytorch_half_pixel":
        x = (at + 0.5) / scale - 0.5 if out > 1 else at * 0
    elif how == "asymmetric":
        x = at / scale
    elif how == "align_corners":
        x = at * (size - 1) / (out - 1) if out > 1 else at * 0
    else:
        raise node.refuse(f"coordinate_transformation_mode {how!r} is not supported")
    if mode == "nearest":
        rule = node.text("nearest_mode", "round_prefer_floor")
        rules = {
            "round_prefer_floor": lambda v: np.ceil(v - 0.5), "round_prefer_ceil": lambda v: np.floor(v + 0.5),
            "floor": np.floor, "ceil": np.ceil,
        }  # fmt: skip
        if rule not in rules:
            raise node.refuse(f"nearest_mode {rule!r} is not known")
        low = np.clip(rules[rule](x), 0, size - 1).astype(int).tolist()
        return low, low, [0.0] * out
    if mode != "linear":
        raise node.refuse(f"mode {mode!r}; nearest and linear are supported")
    x = np.clip(x, 0, size - 1)
    low = np.floor(x).astype(int)
    high = np.minimum(low + 1, size - 1)
    return low.tolist(), high.tolist(), (x - low).tolist()


def resize(p: Planner, node: Node) -> None:
    x = p.numbers(node.input(0))
    if len(x.shape) != 4:
        raise node.refuse(f"an input of {len(x.shape)} dimensions; 4 are supported")
    if node.integers("axes") is not None or node.integer("antialias", 0) or node.integer("exclude_outside", 0):
        raise node.refuse("axes, antialias and exclude_outside are not supported")
    first = 0 if len(node.inputs) == 2 and p.graph.opset < 11 else 1
    scales = p.constant(node.input(first + 1)) if first else p.constant(node.input(1))
    sizes = p.constant(node.input(3))
    if sizes is not None and sizes.size:
        out = [int(s) for s in sizes.ravel()]
        factors = [o / s for o, s in zip(out, x.shape, strict=True)]
    elif scales is not None and scales.size == 4:
        factors = [float(s) for s in scales.ravel()]
        if not all(0 < f < 1 << 20 for f in factors):
            raise node.refuse(f"scales of {factors}")
        out = [math.floor(s * f) for s, f in zip(x.shape, factors, strict=True)]
    else:
        raise node.refuse("neither scales nor sizes for four dimensions")
    if out[:2] != list(x.shape[:2]) or min(out) < 1 or max(out) > 1 << 24:
        raise node.refuse(f"{list(x.shape)} to {out}: only height and width may change")
    result = Tensor(tuple(out), plain=p.new(math.prod(out)))
    rows, columns = _axis(node, x.shape[2], out[2], factors[2]), _axis(node, x.shape[3], out[3], factors[3])
    p.add("resize", out[0] * out[1], x.shape[2], x.shape[3], *rows, *columns, p.plain(x), result.plain)
    p.define(node.outputs[0], result)
