# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What type checkers make of the public names. Nothing here is Any, and each ignored line is an error they find."""

from pathlib import Path
from typing import Any, assert_type

from torch import Tensor, nn

import acdc

rigl = acdc.methods.RigL(sparsity=0.9, epochs=100)
assert_type(rigl, acdc.methods.RigL)
assert_type(rigl.schedule, acdc.Schedule)
method: acdc.Method = acdc.methods.build("gmp", sparsity=0.9, epochs=100)
assert_type(acdc.methods.names(), tuple[str, ...])

acdc.ACDC(sparsity=0.9, epochs=100, criterion="saliency")
acdc.ACDC(sparsity=0.9, epochs=100, criterion={"name": "woodfisher", "steps": 200})
assert_type(acdc.ACDC(sparsity=0.9, epochs=100, criterion="snip").criterion, acdc.criteria.Criterion)
assert_type(acdc.Schedule.imagenet(), acdc.Schedule)
assert_type(acdc.ACDC(sparsity=0.9, schedule="imagenet").schedule, acdc.Schedule)
assert_type(acdc.methods.QuantisedACDC(schedule=acdc.Schedule.imagenet()).schedule, acdc.Schedule)
assert_type(acdc.ACDC.paper(0.9, schedule="imagenet", revive=True), acdc.ACDC)
assert_type(acdc.Schedule.for_epochs(100).phase_at(0, 10), acdc.Phase)
assert_type(acdc.Duration.parse("10ep"), acdc.Duration)
assert_type(acdc.NM(2, 4).sparsity, float)
acdc.methods.GMP(sparsity=0.9, epochs=100, pattern=acdc.Block(4, 4))


def use(sparsifier: acdc.Sparsifier, average: nn.Module, accuracy: Tensor) -> None:
    sparsifier.report_metric(accuracy)
    sparsifier.report_metric(0.9)
    sparsifier.apply_masks(average)
    assert_type(sparsifier.phase, acdc.Phase)
    assert_type(sparsifier.masks, dict[str, Tensor])
    assert_type(sparsifier.layer_sparsity, dict[str, float])
    assert_type(sparsifier.method, acdc.Method)
    assert_type(sparsifier.finish(), acdc.Result)
    assert_type(acdc.keep_masks(average, sparsifier.context.optimizer, exclude=["fc"]), acdc.Sparsifier)
    sparsifier.step = 3  # pyright: ignore[reportAttributeAccessIssue]
    sparsifier.report_metric("0.9")  # pyright: ignore[reportArgumentType]


def read(folder: str | Path) -> None:
    result = acdc.Result.load(folder)
    assert_type(result.sparse, dict[str, Any])
    assert_type(result.dense, dict[str, Any] | None)
    assert_type(result.masks, dict[str, Tensor])
    assert_type(result.sparsity, float)
    result.save(folder)


def take_elsewhere(model: nn.Module, example: Tensor, path: Path) -> None:
    acdc.export.save_sparse(model.state_dict(), path)
    assert_type(acdc.load(path), dict[str, Tensor])
    assert_type(acdc.export.shrink(model, example), nn.Module)
    assert_type(acdc.export.compare_sizes(model, model), acdc.export.SizeComparison)
    assert_type(acdc.export.to_onnx(model, example, path).largest_difference, float | None)
    acdc.export.to_onnx(model, example, path, fold=True)  # pyright: ignore[reportCallIssue]


acdc.ACDC(sparsity=0.9, epochs=100, criterion=3)  # pyright: ignore[reportArgumentType]
acdc.ACDC(sparsity=0.9, schedule=100)  # pyright: ignore[reportArgumentType]
acdc.methods.RigL(sparsity=0.9, epoch=100)  # pyright: ignore[reportCallIssue]
print(acdc.methods.RigLL)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
print(acdc.attack)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
