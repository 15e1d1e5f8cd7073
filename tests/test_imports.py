"""Importing acdc is cheap and touches nothing, and imports point one way."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import acdc

ROOT = Path(acdc.__file__).parent
ORDER = (
    ("_version",),
    ("errors", "io", "typed_data", "state_dicts", "formatting", "import_path"),
    ("schedule", "schedules"),
    ("sparsity",),
    ("flops",),
    ("core",),
    ("criteria",),
    ("methods",),
    ("models",),
    ("data",),
    ("measure",),
    ("recipes",),
    ("runs",),
    ("export",),
    ("serving",),
    ("integrations",),
    ("theory",),
    ("train",),
    ("report",),
    ("cli",),
)
"""Every part of acdc. It imports itself, its neighbours in the same row and what stands in rows above it."""

ENTRIES = ("__init__", "__main__")  # they only pass on what others hold
PARTS = [part for row in ORDER for part in row]
CORE = PARTS[: PARTS.index("models")]  # what a training loop of one's own needs
OUTER = PARTS[PARTS.index("models") :]
OPTIONAL = ("torchvision", "matplotlib", "sklearn", "jinja2", "lightning", "pytorch_lightning", "transformers",
            "accelerate", "onnx", "onnxscript", "onnxruntime", "tokenizers")  # fmt: skip


def files_of(part: str) -> list[Path]:
    """The source files of one module or subpackage of acdc; none if there is no such thing yet."""
    module = ROOT / f"{part}.py"
    return [module] if module.exists() else sorted((ROOT / part).rglob("*.py"))


def imports_of(path: Path) -> Iterator[str]:
    """Full names of all that a file imports, at its top or anywhere inside; from a package also the names taken."""
    package = ("acdc", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            origin = ".".join(filter(None, (base, node.module)))
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def parts_of_acdc(path: Path) -> set[str]:
    """Which modules and subpackages of acdc a file imports from."""
    found = (name.split(".") for name in imports_of(path))
    return {name[1] for name in found if name[0] == "acdc" and len(name) > 1 and files_of(name[1])}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# Loading


def test_import_loads_no_optional_package_and_no_outer_part() -> None:
    assert "torch" not in run("import sys, acdc; print(*sys.modules)").split()
    loaded = run("import sys, acdc; acdc.attach, acdc.ACDC; print(*sys.modules)").split()
    assert "acdc.core.sparsifier" in loaded
    assert not {name for name in loaded if name.split(".")[0] in OPTIONAL}
    assert not {name for name in loaded if name.startswith(tuple(f"acdc.{part}" for part in OUTER))}
    assert "torch._dynamo" not in loaded, "importing the compiler takes seconds"


@pytest.mark.parametrize("typed", [[], ["--version"], ["--help"], ["ls"], ["ls", "schedules"], ["ls", "data"]])
def test_what_needs_no_torch_does_not_wait_for_it(typed: list[str]) -> None:
    code = f"import sys\nfrom acdc.cli import main\ntry: main({typed})\nexcept SystemExit: pass\nprint(*sys.modules)"
    loaded = run(code).splitlines()[-1].split()
    assert "acdc.cli" in loaded
    assert not {"torch", "numpy", "rich"} & {*loaded}


def test_parts_are_there_after_importing_the_package_alone() -> None:
    assert run("import acdc; print(acdc.methods.names()[0], acdc.models.names() != ())").split() == ["acdc", "True"]


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    assert run("import acdc; print(hasattr(acdc, 'RigLL'), 'attach' in dir(acdc))").split() == ["False", "True"]


def test_import_touches_no_gpu() -> None:
    """Also on a machine without one: initialising CUDA is made to fail."""
    said = run(
        "import torch\n"
        "torch.cuda._lazy_init = lambda: print('CUDA was initialised')\n"
        "import acdc\n"
        "acdc.attach, acdc.ACDC\n"
        "print(torch.cuda.is_initialized())"
    )
    assert said == "False\n"


def test_import_prints_and_warns_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:acdc", "-c", "import acdc; acdc.attach"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_import_draws_no_random_number_and_sets_no_default() -> None:
    said = run(
        "import torch\n"
        "before = torch.get_rng_state(), torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()\n"
        "import acdc\n"
        "acdc.attach, acdc.ACDC\n"
        "after = torch.get_rng_state(), torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()\n"
        "print(torch.equal(before[0], after[0]), before[1:] == after[1:])"
    )
    assert said == "True True\n"


# Direction


def test_the_reader_of_imports_sees_nested_and_relative_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sparsity").mkdir()
    file = tmp_path / "sparsity" / "x.py"
    file.write_text(
        "from acdc import data\nimport os.path\ndef f():\n    from ..train import loop\n    from . import y\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    names = {"acdc", "acdc.data", "os.path", "acdc.train", "acdc.train.loop", "acdc.sparsity", "acdc.sparsity.y"}
    assert set(imports_of(file)) == names


def test_every_module_has_its_place_in_the_order() -> None:
    parts = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in ROOT.rglob("*.py")}
    assert parts - {*ENTRIES} <= {*PARTS}
    assert len(PARTS) == len({*PARTS})


@pytest.mark.parametrize("part", PARTS)
def test_imports_point_one_way(part: str) -> None:
    """Imports inside functions count as well."""
    row = next(index for index, parts in enumerate(ORDER) if part in parts)
    earlier = {*ENTRIES, *(name for parts in ORDER[: row + 1] for name in parts)}
    wrong = {
        f"{path.relative_to(ROOT)} imports acdc.{other}"
        for path in files_of(part)
        for other in parts_of_acdc(path) - earlier
    }
    assert not wrong, "\n".join(sorted(wrong))


@pytest.mark.parametrize("part", ["errors", "schedule", "schedules"])
def test_schedules_need_the_standard_library_only(part: str) -> None:
    (path,) = files_of(part)
    assert {name.split(".")[0] for name in imports_of(path)} <= {*sys.stdlib_module_names, "acdc"}
    assert parts_of_acdc(path) <= {"errors", "schedule", "schedules"}


def test_no_two_modules_share_a_name() -> None:
    """Else one of them is opened for the other, and neither name says what sets it apart."""
    names = Counter(path.name for path in ROOT.rglob("*.py"))
    twice = {name for name, count in names.items() if count > 1} - {"__init__.py"}
    assert not twice


@pytest.mark.parametrize("part", CORE)
def test_the_core_names_no_optional_package(part: str) -> None:
    for path in files_of(part):
        assert not {name.split(".")[0] for name in imports_of(path)} & set(OPTIONAL), path.relative_to(ROOT)


# Names


def test_public_names_exist_once() -> None:
    assert len(acdc.__all__) == len(set(acdc.__all__))
    missing = [name for name in acdc.__all__ if not hasattr(acdc, name)]
    assert not missing


def test_all_the_public_names_are_announced() -> None:
    from types import ModuleType

    public = {name for name, value in vars(acdc).items() if name[0] != "_" and not isinstance(value, ModuleType)}
    assert public <= set(acdc.__all__)
