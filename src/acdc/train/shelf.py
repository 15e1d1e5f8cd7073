"""The recipes that come with acdc, as files: found without anything that it takes to read them."""

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acdc.train.recipe import Recipe


class RecipeError(ValueError):
    """All that is wrong with a recipe; and the recipe without that, if so much of it can be read."""

    def __init__(self, source: str, problems: Iterable[str], recipe: "Recipe | None" = None) -> None:
        self.source, self.problems, self.recipe = source, tuple(problems), recipe
        super().__init__("\n  ".join((f"{source}:", *self.problems)))


def shipped() -> dict[str, Path]:
    """The recipes that come with acdc, by name."""
    folder = Path(str(resources.files("acdc") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def find(name: str) -> Path:
    """A shipped recipe's file, or the file itself where `name` is one."""
    known, path = shipped(), Path(name)
    if name in known:
        return known[name]
    if path.suffix == ".toml" and path.is_file():
        return path
    if path.suffix == ".toml":
        raise RecipeError(name, ["there is no such file; `acdc ls` lists the recipes that come with acdc"])
    if path.is_file():
        raise RecipeError(name, [f"a recipe's file ends in .toml; rename it to {path.name}.toml"])
    from acdc.train.words import did_you_mean

    raise RecipeError(name, [f"no recipe has this name; `acdc ls` lists them{did_you_mean(name, known)}"])
