"""What `make docs` checks in the HTML of the site, beside MkDocs' own strict mode."""

import runpy
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

CHECK = runpy.run_path(str(ROOT / "docs" / "site" / "check.py"))


def site(folder: Path, body: str, style: str = "") -> Path:
    (folder / "index.html").write_text(f"<h1 id=top>A</h1>{body}")
    (folder / "other.html").write_text("<h2 id=there>B</h2>")
    (folder / "style.css").write_text(style)
    return folder


@pytest.mark.parametrize(
    "body",
    [
        '<a href="other.html#there">x</a>',
        '<a href="#top">x</a>',
        '<a href="https://arxiv.org/abs/1801.05134">x</a>',
        '<img src="data:image/png;base64,AAAA">',
        '<link rel="stylesheet" href="style.css">',
        "<p>2 - 1</p>\n<ul>\n<li>- one</li></ul>",
    ],
)
def test_what_is_in_order(body: str, tmp_path: Path) -> None:
    assert CHECK["problems"](site(tmp_path, body, "a { background: url(data:image/png;base64,AA) }")) == []


@pytest.mark.parametrize(
    ("body", "style", "problem"),
    [
        ('<a href="gone.html">x</a>', "", "index.html links to gone.html, which is not there"),
        ('<a href="other.html#gone">x</a>', "", "index.html links to other.html#gone: that page has no such place"),
        ("<p>Worth .6.\n- one\nmore</p>", "", "index.html has a list inside a paragraph, at: one"),
        ('<script src="https://cdn.example/a.js"></script>', "", "index.html loads https://cdn.example/a.js"),
        ('<link rel="stylesheet" href="//fonts.example/f.css">', "", "index.html loads //fonts.example/f.css"),
        ("", "@import 'https://fonts.example/f.css';", "style.css loads https://fonts.example/f.css"),
        ("", "a { background: url(https://x.example/p.png) }", "style.css loads https://x.example/p.png"),
    ],
)
def test_what_is_not(body: str, style: str, problem: str, tmp_path: Path) -> None:
    assert CHECK["problems"](site(tmp_path, body, style)) == [problem]


def test_an_empty_site_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert CHECK["main"](tmp_path) == 1
    assert "0 pages" in capsys.readouterr().out
