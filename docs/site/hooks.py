"""MkDocs' side of pages.py: adds the pages from outside docs/, and rewrites links as each page is read."""

import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import pages

_SOURCES: dict[str, str] = {}  # the file of the repository behind each page of the site


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for file in files.documentation_pages():
        _SOURCES[file.src_uri] = f"docs/{file.src_uri}"
    for path, uri in pages.PAGES.items():
        if path != "README.md":  # whose parts are in docs/index.md
            _add(files, config, path, (pages.ROOT / path).read_text(encoding="utf-8"), uri)
    for path, uri in pages.PROGRAMS.items():
        _add(files, config, path, pages.of_program(path), uri)
    for notebook in sorted((pages.ROOT / "docs" / "notebooks").glob("*.ipynb")):
        path = f"docs/notebooks/{notebook.name}"
        _add(files, config, path, pages.of_notebook(path), pages.place(path))
    return files


def _add(files: Files, config: MkDocsConfig, path: str, text: str, uri: str) -> None:
    files.append(File.generated(config, uri, content=text))
    _SOURCES[uri] = path


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    source = _SOURCES[page.file.src_uri]
    if page.file.src_uri == "index.md":
        markdown = pages.with_readme(markdown)
    text, copied = pages.with_links(pages.with_tables(markdown), source)
    for path in sorted(copied):
        uri = pages.place(path)
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, content=(pages.ROOT / path).read_bytes()))
    return text
