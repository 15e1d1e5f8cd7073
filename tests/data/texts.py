"""Made texts for tests of language models: nothing here comes from a data set."""

import random
from pathlib import Path

WORDS = ("the", "a", "cat", "dog", "sees", "hears", "small", "old", "bird", "and", "naïve", "café")


def sentences(count: int, seed: int = 0) -> str:
    """Lines of six words, drawn so that some words follow others more often."""
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        place = draw.randrange(len(WORDS))
        line = []
        for _ in range(6):
            line.append(WORDS[place])
            place = (place * 5 + draw.choice((1, 1, 1, 4))) % len(WORDS)
        lines.append(" ".join(line))
    return "\n".join(lines) + "\n"


def folder(path: Path, train: int = 400, held_out: int = 40) -> Path:
    """A folder with a file for each part."""
    path.mkdir(parents=True, exist_ok=True)
    for seed, (part, count) in enumerate((("train", train), ("valid", held_out), ("test", held_out))):
        (path / f"{part}.txt").write_text(sentences(count, seed), encoding="utf-8")
    return path
