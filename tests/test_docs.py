"""Pages that are generated are fresh, and links between pages lead somewhere."""

import re
import runpy
from pathlib import Path

import pytest

from docs import make_recipes

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]


def test_the_methods_page_is_what_the_cards_say() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "make_methods.py"))
    assert (ROOT / "docs" / "methods.md").read_text(encoding="utf-8") == script["page"](), "run docs/make_methods.py"


def test_the_recipes_page_is_what_the_recipes_and_results_say() -> None:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert text == make_recipes.page(), "run python -m docs.make_recipes"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not target.startswith("http"):
            assert (ROOT / page).parent.joinpath(target).exists(), f"{page} links to {target}"
