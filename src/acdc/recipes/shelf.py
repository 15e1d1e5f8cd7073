"""The recipes that come with acdc, as files: found without anything that it takes to read them."""

from importlib import resources
from pathlib import Path

from acdc.errors import did_you_mean
from acdc.recipes.mistakes import RecipeError, SettingError


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
        raise _not_found(name, "there is no such file; `acdc ls` lists the recipes that come with acdc")
    if path.is_file():
        raise _not_found(name, f"a recipe's file ends in .toml; rename it to {path.name}.toml")
    raise _not_found(name, f"no recipe has this name; `acdc ls` lists them{did_you_mean(name, known)}")


def _not_found(name: str, said: str) -> RecipeError:
    return RecipeError(name, [SettingError("", said)])
