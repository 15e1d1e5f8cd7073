# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What type checkers make of the public names. Nothing here is Any, and each ignored line is an error they find."""

from typing import assert_type

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
assert_type(acdc.ACDC.paper(0.9, schedule="imagenet", revive=True), acdc.ACDC)
assert_type(acdc.Schedule.for_epochs(100).phase_at(0, 10), acdc.Phase)
assert_type(acdc.Duration.parse("10ep"), acdc.Duration)
assert_type(acdc.NM(2, 4).sparsity, float)
acdc.methods.GMP(sparsity=0.9, epochs=100, pattern=acdc.Block(4, 4))

acdc.ACDC(sparsity=0.9, epochs=100, criterion=3)  # pyright: ignore[reportArgumentType]
acdc.methods.RigL(sparsity=0.9, epoch=100)  # pyright: ignore[reportCallIssue]
print(acdc.methods.RigLL)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
print(acdc.attack)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
