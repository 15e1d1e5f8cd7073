"""Differences between the settings and data that a run started with and the current ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from acdc.runs.records import DataCounts

FREE = ("data.bad_limit", "run.checkpoint_every", "run.keep")  # no result depends on these: a run may change them


def first(saved: Any, now: Any, name: str = "") -> str | None:
    """Describe the first setting that differs between two recipes, as dictionaries; return None if none does."""
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
    """Describe how the data has changed since a run started; return None if it has not, or nothing is known."""
    if began.vocabulary is not None and began.vocabulary != now.get("vocabulary"):
        return "its vocabulary was another one, so the same numbers mean other tokens"
    unit = "images" if began.vocabulary is None else "tokens"
    for key in ("train", "validation", "test"):
        count = getattr(began, key)
        if count is not None and count != now.get(key, 0):
            return f"{count:,} {key} {unit} at the start, {now.get(key, 0):,} now"
    if began.text is not None and began.text != now.get("text"):
        return "the number of tokens is the same, but the text is another one"
    if began.files is not None and began.files != now.get("files"):
        return "the number of images is the same, but files or classes have other names"
    return None


def free(settings: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split `a.b=value` settings into those that a run may continue with, and the others."""
    fine = [text for text in settings if text.partition("=")[0].strip() in FREE]
    return fine, [text for text in settings if text not in fine]
