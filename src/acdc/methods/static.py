"""Static random masks.

Idea       The baseline that sparse training must beat: as many weights, at random places, from first step to last.
Step       θ ← θ − η ∇f(θ) on a support drawn once.
Knobs      sparsity; distribution ("erk", or "uniform"); seed.
FLOPs      3·F per sample, counting the remaining weights.
Costs      as AC/DC's compressed phases.
Reference  Mocanu et al. 2016 for the Erdős–Rényi layers; Evci et al. 2020, who call it "Static", for convolutions. Liu,
           Chen, Chen, Shen, Mocanu, Wang, Pechenizkiy: The Unreasonable Effectiveness of Random Pruning. ICLR 2022.
"""

from dataclasses import dataclass
from typing import ClassVar

from acdc.methods._sparse import RandomStart


@dataclass(frozen=True, kw_only=True)
class Static(RandomStart):
    """See the module docstring."""

    name: ClassVar[str] = "static"
    supports_shards: ClassVar[bool] = True
