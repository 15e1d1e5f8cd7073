"""These tests need other people's trainers, in an environment of their own: `make test-integrations`.

Elsewhere they are not collected. There, a skipped test is a failure: nothing may go untested unnoticed.
"""

import os
from collections.abc import Generator
from typing import Any

import pytest

if "ACDC_TEST_INTEGRATIONS" not in os.environ:
    collect_ignore_glob = ["test_*.py"]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    report = (yield).get_result()
    if report.skipped:
        report.outcome, report.longrepr = "failed", f"{item.nodeid} was skipped, which counts as a failure here"
