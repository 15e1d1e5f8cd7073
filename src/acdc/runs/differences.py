"""Compares the settings and the data a run began with to those of now."""

from collections.abc import Mapping, Sequence
from typing import Any

from acdc.runs.records import DataCounts

FREE = ("data.bad_limit", "run.checkpoint_every", "run.keep")  # no number depends on these: a run may go on with others


def first(saved: Any, now: Any, name: str = "") -> str | None:
    """Return the first setting of two recipes, as dictionaries, that differs, in words; None where none does."""
    if name in FREE:
        return None
    if isinstance(saved, dict) and isinstance(now, dict):
        for key in [key for key in {**now, **saved} if name or key not in ("paper", "about", "name")]:
            if difference := first(saved.get(key), now.get(key), f"{name}.{key}" if name else key):
                return difference
        return None
    saved, now = (list(value) if isinstance(value, tuple) else value for value in (saved, now))
    return None if saved == now else f"{name.replace('.options.', '.')} was {saved!r} there and is {now!r} here"


def data(began: DataCounts, now: Mapping[str, Any]) -> str | None:
    """Return in which way the data a run began with are not those of now; None where they are, or nothing is known."""
    for key in ("train", "validation", "test"):
        count = getattr(began, key)
        if count is not None and count != now.get(key, 0):
            return f"{count:,} {key} images as it began, {now.get(key, 0):,} now"
    if began.files is not None and began.files != now.get("files"):
        return "as many images as it began with, but files or classes have other names"
    return None


def free(settings: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split `a.b=value` settings into those that a run may go on with, and the others."""
    fine = [text for text in settings if text.partition("=")[0].strip() in FREE]
    return fine, [text for text in settings if text not in fine]
