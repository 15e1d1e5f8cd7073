"""Check a built site: nothing that a page loads comes from another host, no link from page to page is broken, and no
list was read as part of a paragraph, as it is where Markdown wants an empty line before it.

MkDocs checks the links of Markdown; this reads the HTML that came of it: python docs/site/check.py site
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

_OUTSIDE = re.compile(r"(?:https?:)?//")
_STYLE_URL = re.compile(r"""url\(\s*["']?((?:https?:)?//[^)"']+)|@import\s+["']((?:https?:)?//[^"']+)""")
_SWALLOWED = re.compile(r"<p>(?:(?!</p>).)*?\n(?:[-*]|\d+\.) ((?:(?!</p>|\n).)*)", re.DOTALL)


class _Page(HTMLParser):
    """A page's anchors, its links, and what a browser loads for it without being asked."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids, self.links, self.loaded = set[str](), list[str](), list[str]()
        self.swallowed = _SWALLOWED.findall(text)
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.ids.update(values[key] for key in ("id", "name") if key in values)
        if tag == "a":
            self.links += [values["href"]] if "href" in values else []
        else:
            self.loaded += [values[key] for key in ("src", "href", "data", "poster") if key in values]


def problems(site: Path) -> list[str]:
    """Return a line for each thing from outside that a page loads, each link that leads nowhere, and each lost list."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name} loads {link}" for link in page.loaded if _OUTSIDE.match(link)]
        found += [f"{name} has a list inside a paragraph, at: {item}" for item in page.swallowed]
        if path.name == "404.html":  # its links begin with /, as it may be shown at any address
            continue
        for link in (*page.links, *page.loaded):
            target, anchor = urldefrag(unquote(link))
            if re.match(r"[a-z]+:|//", target):
                continue
            file = (path.parent / target).resolve() if target else path
            if not file.is_file():
                found.append(f"{name} links to {link}, which is not there")
            elif anchor and file in pages and anchor not in pages[file].ids:
                found.append(f"{name} links to {link}: that page has no such place")
    for path in sorted(site.rglob("*.css")):
        urls = _STYLE_URL.findall(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)} loads {url or imported}" for url, imported in urls]
    return found


def main(site: Path) -> int:
    found = problems(site.resolve())
    for line in found:
        print(line, file=sys.stderr)
    pages = len(list(site.rglob("*.html")))
    print(f"{pages} pages in {site}/, {'all links lead somewhere' if not found else f'{len(found)} problems'}")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
