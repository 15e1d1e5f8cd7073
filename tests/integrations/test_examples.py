"""The examples run as they are. In this process: importing a trainer takes as long as its example."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("huggingface", "dense   loss"),
        ("lightning_module", "dense   accuracy"),
        ("accelerate_loop", "dense   accuracy"),
    ],
)
def test_it_runs(
    name: str, ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [f"{name}.py", str(tmp_path / "out")])
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[-1].startswith(ends)
