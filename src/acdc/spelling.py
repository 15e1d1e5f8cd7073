"""Which of the words that would have been right was meant. Pure Python."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def did_you_mean(typed: object, known: Iterable[str], *, most: int = 1) -> str:
    """The end of an error's words, from the known word nearest to what was typed; nothing where none is near."""
    folded = {fold(word): word for word in known}
    return meant([folded[near] for near in get_close_matches(fold(str(typed)), folded, n=most)])


def meant(words: Sequence[str]) -> str:
    """The same from words that are known to be near."""
    return f"; did you mean {' or '.join(words)}?" if words else ""


def fold(word: str) -> str:
    """Capitals, hyphens and underscores are no difference."""
    return word.lower().replace("-", "").replace("_", "")
