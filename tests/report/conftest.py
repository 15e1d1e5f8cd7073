"""Browser tests run by name only (`make browser-test`): a fresh machine has no Chromium, and no test may be skipped."""

from pathlib import Path

import pytest

from tests.report.runs import make_run

_BROWSER = Path(__file__).with_name("browser")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """tests/report/browser is collected where the command line names it, and nowhere else."""
    if collection_path != _BROWSER:
        return None
    asked = [Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args]
    return None if any(path.resolve().is_relative_to(_BROWSER) for path in asked) else True


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")
