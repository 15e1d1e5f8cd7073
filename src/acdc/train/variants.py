"""Several settings of one method in one comparison: NAME=METHOD:setting=value,setting=value."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from acdc import methods
from acdc.errors import did_you_mean

EXAMPLE = "--variant distilled=acdc:train.distill=0.5"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
# What the comparison itself settles, and what to type instead.
_SETTLED = {
    "method.name": "the method stands before the colon",
    "method.sparsity": "methods are compared at --sparsities",
    "run.seeds": "all are trained with --seeds",
    "run.baseline": "add dense to --methods",
    "run.finetune": "twins are not fine-tuned in a comparison",
}


@dataclass(frozen=True)
class Variant:
    """A method under a name of its own, with settings over those of the whole comparison."""

    name: str
    method: str  # or "dense"
    settings: tuple[str, ...] = ()


def known() -> tuple[str, ...]:
    return (*methods.names(), "dense")


def read(texts: Sequence[str], problems: list[str]) -> list[Variant]:
    """Those that can be read; all that is wrong with the others goes to `problems`."""
    found: list[Variant] = []
    for text in texts:
        name, equals, rest = text.partition("=")
        method, colon, said = rest.partition(":")
        name, method, settings = name.strip(), method.strip(), _settings(said)
        wrong = ""
        if not (equals and colon and settings):
            wrong = f"expected NAME=METHOD:setting=value,..., for example {EXAMPLE}"
        elif not _NAME.fullmatch(name):
            wrong = "expected a name of letters, digits and . _ + - before the first ="
        elif method not in known():
            wrong = f"{method} is no method; expected one of {', '.join(known())}{did_you_mean(method, known())}"
        elif name in known():
            wrong = f"{name} is a method by itself; type another name before the ="
        elif name in [one.name for one in found]:
            wrong = f"{name} is the name of another variant; type another before the ="
        if wrong:
            problems.append(f"--variant {text}: {wrong}")
            continue
        keys = [setting.partition("=")[0].strip() for setting in settings]
        settled = [f"--variant {text}: {key} is settled: {_SETTLED[key]}" for key in keys if key in _SETTLED]
        problems += settled
        if not settled:
            found.append(Variant(name, method, settings))
    return found


def _settings(text: str) -> tuple[str, ...]:
    """Split at commas, but not inside brackets and quotes. A key without a table is a knob of the method."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if letter in "\"'" and quote in ("", letter):
            quote = "" if quote else letter
        elif not quote:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    said = [part.strip() for part in parts if part.strip()]
    return tuple(part if "." in part.partition("=")[0] else f"method.{part}" for part in said)
