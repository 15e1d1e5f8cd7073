"""Runs stochastic IHT and AC/DC's rounds, and computes what the paper's theorems promise of them.

    result = acdc.theory.iht(acdc.theory.LeastSquares(X, y), k=20)
    print(result.certificate)
    model = acdc.theory.SparseIHTRegressor(k=20).fit(X, y)

It needs numpy and scipy, the estimators scikit-learn, which brings both: pip install "acdc-torch[theory]". Names are
imported when they are asked for. docs/theory.md has the statements, their derivations and the measurements.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acdc.theory.bounds import Bound, GuaranteeWarning, near_stationary, strongly_convex, theorem_1
    from acdc.theory.certificates import Certificate, certify
    from acdc.theory.constants import Constant, Constants
    from acdc.theory.estimators import SparseIHTClassifier, SparseIHTRegressor
    from acdc.theory.hard_thresholding import IHTResult, iht, iht_path
    from acdc.theory.linear_models import LeastSquares, LogisticRegression
    from acdc.theory.problems import Problem
    from acdc.theory.rank_one import RankOne
    from acdc.theory.rounds import acdc_rounds
    from acdc.theory.step_sizes import AdaptiveStep, ConstantStep
    from acdc.theory.truncation import SparseVector, truncate
    from acdc.theory.widening import widened_iht

__all__ = [
    "AdaptiveStep",
    "Bound",
    "Certificate",
    "Constant",
    "ConstantStep",
    "Constants",
    "GuaranteeWarning",
    "IHTResult",
    "LeastSquares",
    "LogisticRegression",
    "Problem",
    "RankOne",
    "SparseIHTClassifier",
    "SparseIHTRegressor",
    "SparseVector",
    "acdc_rounds",
    "certify",
    "iht",
    "iht_path",
    "near_stationary",
    "strongly_convex",
    "theorem_1",
    "truncate",
    "widened_iht",
]

_HOMES = {
    "bounds": ("Bound", "GuaranteeWarning", "near_stationary", "strongly_convex", "theorem_1"),
    "certificates": ("Certificate", "certify"),
    "constants": ("Constant", "Constants"),
    "estimators": ("SparseIHTClassifier", "SparseIHTRegressor"),
    "hard_thresholding": ("IHTResult", "iht", "iht_path"),
    "linear_models": ("LeastSquares", "LogisticRegression"),
    "problems": ("Problem",),
    "rank_one": ("RankOne",),
    "rounds": ("acdc_rounds",),
    "step_sizes": ("AdaptiveStep", "ConstantStep"),
    "truncation": ("SparseVector", "truncate"),
    "widening": ("widened_iht",),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # else every misspelt name would be an Any

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        except ModuleNotFoundError as error:
            package = (error.name or "").split(".")[0]
            if package not in ("numpy", "scipy", "sklearn"):
                raise
            text = f'acdc.theory.{name} needs {package}; type: pip install "acdc-torch[theory]"'
            raise ModuleNotFoundError(text, name=package) from None
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
