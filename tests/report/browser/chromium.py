"""Headless Chromium, asked by a script inside the page: no driver and no socket, only what `--dump-dom` prints."""

import html
import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # as root, in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--virtual-time-budget=4000",
)
_ASK = """
addEventListener("load", () => setTimeout(async () => {
  let told;
  try { told = { value: await (async () => { PROBE })() }; } catch (error) { told = { error: `${error}` }; }
  parent.postMessage(JSON.stringify(told), "*");
}, 50));
"""
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find() -> str:
    for name in _NAMES:
        if path := shutil.which(name):
            return path
    raise FileNotFoundError("these tests need Chromium: type `apt-get install -y chromium`")


@dataclass(frozen=True)
class Answer:
    value: Any  # what the probe returned
    console: list[str]  # every line the page or the browser wrote to the console


def ask(page: Path, probe: str, *, width: int = 1200, height: int = 900, dark: bool = False) -> Answer:
    """What the JavaScript function body `probe` returns inside the page, in a frame of this width.

    A frame, as Chromium's own windows are never narrower than 500 pixels.
    """
    with tempfile.TemporaryDirectory() as folder:
        inner, outer = Path(folder, "inner.html"), Path(folder, "outer.html")
        script = f"<script>{_ASK.replace('PROBE', probe)}</script>"
        inner.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{script}</body>"), encoding="utf-8")
        outer.write_text(_outer(inner, width, height), encoding="utf-8")
        done = _run(["--dump-dom", f"--window-size={max(width, 600)},{height}", *_theme(dark), outer.as_uri()])
    answer = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
    if not answer:
        raise AssertionError(f"the page never answered:\n{done.stderr[-2000:]}")
    told = json.loads(html.unescape(answer[1]))
    assert "error" not in told, told["error"]
    return Answer(told["value"], re.findall(r"CONSOLE[^\n]*", done.stderr))


def screenshot(page: Path, out: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> Path:
    """The page's first `height` pixels."""
    with tempfile.TemporaryDirectory() as folder:
        outer = Path(folder, "outer.html")
        outer.write_text(_outer(page, width, height), encoding="utf-8")
        size = f"--window-size={max(width, 600)},{height}"
        _run([f"--screenshot={out}", size, *_theme(dark), outer.as_uri()])
    return out


def _outer(page: Path, width: int, height: int) -> str:
    return (
        '<!doctype html><meta name="color-scheme" content="light dark"><body style="margin: 0">'
        f'<iframe src="{page.resolve().as_uri()}" style="border: 0; width: {width}px; height: {height}px"></iframe>'
        '<script>addEventListener("message", (event) => { const pre = document.createElement("pre"); pre.id = "told"; '
        "pre.textContent = event.data; document.body.append(pre); });</script>"
    )


def _theme(dark: bool) -> list[str]:
    return [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]


def _run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [find(), *_FLAGS, f"--user-data-dir={profile}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done
