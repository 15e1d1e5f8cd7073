"""acdc cp: copy a recipe file for editing. Nothing is ever overwritten."""

import argparse
import os
import shlex
import tempfile
from pathlib import Path
from typing import Any

from acdc.errors import UsageError
from acdc.io import default_mode
from acdc.recipes import load
from acdc.recipes.findings import RecipeError


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "cp",
        description="Copy a recipe, comments and all, to a new file. An existing file is never overwritten.",
        allow_abbrev=False,
    )
    parser.add_argument("recipe", help="a name from `acdc ls`, or a file")
    parser.add_argument("file", metavar="FILE", help="the new file, ending in .toml, or a folder to put it in")
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    try:
        source = load.find(args.recipe)
    except RecipeError as error:
        raise UsageError([f"{error.source}: {error.problems[0]}"]) from None
    target = Path(args.file)
    if target.is_dir():
        target /= source.name
    if target.suffix != ".toml":
        raise UsageError([f"FILE {target}: the name of a recipe file must end in .toml; use {target}.toml"])
    try:
        _write_new(target, load.text_of(args.recipe))
    except FileExistsError:
        raise UsageError([f"FILE {target}: it exists, and nothing is overwritten; choose another name"]) from None
    except OSError as error:
        raise UsageError([f"FILE {target}: {error.strerror}; choose a name in a writable folder"]) from None
    print(f"{target}: edit it, then run: acdc check {shlex.quote(str(target))}")
    return 0


def _write_new(target: Path, content: bytes) -> None:
    """Write the whole file or nothing: link to a complete one, which fails if the name is taken."""
    if target.exists() or target.is_symlink():
        raise FileExistsError
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        os.chmod(file.name, default_mode())
        try:
            os.link(file.name, target)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            with target.open("xb") as plain:
                try:
                    plain.write(content)
                except OSError:
                    target.unlink()
                    raise
