"""SET: sparse evolutionary training.

Idea       Stay sparse throughout; after each epoch drop the smallest weights and grow others at random.
Step       every epoch, in each layer: drop the ⌊ζ·k⌋ kept weights of smallest |θ|, grow as many of those that were
           pruned, drawn uniformly, which start at 0.
Knobs      sparsity; distribution ("erk": the paper's Erdős–Rényi layers); drop ζ (.3); every ("1ep"); end, as a
           fraction (1); seed.
FLOPs      3·F per sample, counting the remaining weights.
Costs      as AC/DC's compressed phases; a random number per weight at each update.
Reference  Mocanu, Mocanu, Stone, Nguyen, Gibescu, Liotta: Scalable Training of Artificial Neural Networks with Adaptive
           Sparse Connectivity inspired by Network Science. Nature Communications 2018.

The paper drops ζ of the positive and ζ of the negative weights, and its code draws the values of new ones; here both
signs share one threshold, and new weights start at 0, as in RigL.
"""

from dataclasses import dataclass
from typing import ClassVar

from acdc.core.context import MethodContext
from acdc.methods._sparse import SparseThroughout


@dataclass(frozen=True, kw_only=True)
class SET(SparseThroughout):
    """See the module docstring."""

    drop: float = 0.3
    every: str = "1ep"
    end: float = 1.0

    name: ClassVar[str] = "set"
    supports_shards: ClassVar[bool] = True

    def update(self, context: MethodContext) -> None:
        self.replace_weights(context, lambda name: self.random(context, name))
