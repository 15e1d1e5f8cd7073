"""The page as a browser shows it: both themes, every figure, a phone, print. Needs Chromium: `make browser-test`.

These tests are not part of a plain `pytest` (tests/report/conftest.py); without Chromium they fail, and do not skip.
"""

import re
from pathlib import Path

import pytest

from acdc.report.write import make
from tests.report.browser.chromium import ask, screenshot
from tests.report.comparisons import make_comparison
from tests.report.runs import add_remarks, make_run

KEPT = Path(__file__).parents[3] / "results" / "runs" / "cifar100-wrn28-10-cifar100_20-90-seed0"
COLOURS = """
  const style = (what) => getComputedStyle(document.querySelector(what));
  return { page: style("body").backgroundColor, ink: style("body").color,
           label: style("svg.wide text").fill, button: document.getElementById("theme").textContent };
"""
FIGURES = """
  return [...document.querySelectorAll("figure")].map((figure) => {
    const box = (element) => element.getBoundingClientRect();
    const shown = [...figure.querySelectorAll("svg")].filter((svg) => box(svg).width > 0);
    const letters = shown.flatMap((svg) => [...svg.querySelectorAll("text")]).map(box).filter((b) => b.width > 0);
    const frame = box(figure);
    return { name: figure.id, shown: shown.length, width: shown[0] && box(shown[0]).width,
             height: shown[0] && box(shown[0]).height, letters: letters.length,
             size: Math.min(...letters.map((b) => b.height)),
             outside: letters.filter((b) => b.left < frame.left - 2 || b.right > frame.right + 2).length };
  });
"""
OVERFLOW = "return { page: document.documentElement.scrollWidth, window: innerWidth };"


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every figure there is, and remarks."""
    folder = make_run(tmp_path_factory.mktemp("one") / "run")
    add_remarks(folder, "rate.milestones: 60, 80 come after the last epoch, 11", "x" * 200, unread=13)
    return make([folder])[0]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make([KEPT], tmp_path_factory.mktemp("real") / "report.html")[0]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("many")
    runs = [make_run(base / f"a{seed}", seed=seed, sparse=0.95 + 0.01 * seed) for seed in range(3)]
    runs.append(make_run(base / "b", settings=["method.sparsity=0.95"], sparse=0.93))
    runs.append(make_run(base / "c", settings=["method.sparsity=0.8"], sparse=0.99))
    return make(runs, base / "report.html")[0]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten methods at two sparsities, three seeds each; and one run that failed."""
    out = make_comparison(tmp_path_factory.mktemp("compared") / "c")
    (out / "gmp-90-seed2" / "result.json").unlink()
    return make([out])[0]


@pytest.fixture(scope="module")
def budgets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six methods at three sparsities over five budgets; one of them collapsed, and one misses a budget."""
    base = tmp_path_factory.mktemp("budgets")
    names, variants = ("acdc", "gmp", "rigl", "top_kast", "dense"), {"chosen": ("acdc", ("method.gradual=true",))}
    epochs = (5, 10, 20, 50, 100)
    outs = [make_comparison(base / f"{n}", names, (0.9, 0.95, 0.98), (0, 1), variants, n) for n in epochs]
    for file in outs[0].glob("acdc-98-*/result.json"):
        file.write_text(re.sub(r'"test_accuracy": [\d.]+', '"test_accuracy": 0.1', file.read_text()))
    for file in outs[4].glob("rigl-*/result.json"):
        file.unlink()
    return make(outs, base / "report.html")[0]


@pytest.fixture(params=["one", "real", "many", "compared", "budgets"])
def page(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def brightness(colour: str) -> float:
    return sum(float(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3]) / 3


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_follows_the_system_s_theme(page: Path, dark: bool) -> None:
    answer = ask(page, COLOURS, dark=dark)
    assert answer.console == []
    ground, ink, label = (brightness(answer.value[key]) for key in ("page", "ink", "label"))
    assert (ground < 60) == dark
    assert (ink > 180) == dark
    assert (label > 120) == dark
    assert answer.value["button"] == "Theme: system"


def test_the_button_goes_through_the_themes(one: Path) -> None:
    click = """
      const button = document.getElementById("theme"), seen = [];
      for (let i = 0; i < 3; i++) {
        button.click();
        seen.push([button.textContent, getComputedStyle(document.body).backgroundColor]);
      }
      return seen;
    """
    (light, dark, system) = ask(one, click, dark=True).value
    assert [words for words, _ in (light, dark, system)] == ["Theme: light", "Theme: dark", "Theme: system"]
    assert brightness(light[1]) > 200
    assert brightness(dark[1]) < 60
    assert system[1] == dark[1]


@pytest.mark.parametrize("width", [1200, 900, 700, 400])
def test_every_figure_is_seen_and_its_letters_can_be_read(page: Path, width: int) -> None:
    answer = ask(page, FIGURES, width=width)
    assert answer.console == []
    assert answer.value
    for figure in answer.value:
        assert figure["shown"] == 1, figure
        assert figure["width"] > 250, figure
        assert figure["height"] > 90, figure
        assert figure["letters"] > 5, figure
        assert figure["size"] >= 8, figure
        assert figure["outside"] == 0, figure


@pytest.mark.parametrize("width", [1200, 700, 400, 320])
def test_the_page_is_no_wider_than_the_window(page: Path, width: int) -> None:
    value = ask(page, OVERFLOW, width=width).value
    assert value["window"] == width
    assert value["page"] <= width


def test_a_table_that_goes_on_shows_it_by_a_shadow_at_its_edge(real: Path, tmp_path: Path) -> None:
    from PIL import Image

    probe = """
      const box = document.querySelector("#table-models .scroll").getBoundingClientRect();
      return { right: box.right, top: box.top + scrollY, height: box.height };
    """
    dark = {}
    for width in (1200, 400):
        place = ask(real, probe, width=width).value
        bottom = round(place["top"] + place["height"])
        picture = Image.open(screenshot(real, tmp_path / f"{width}.png", width=width, height=bottom)).convert("L")
        right = round(place["right"]) - 1
        edge = picture.crop((right - 1, round(place["top"]) + 2, right, bottom - 2)).tobytes()
        dark[width] = sorted(edge)[len(edge) // 2]  # most of it is no letter
    assert dark[1200] == 255  # the whole table is there
    assert dark[400] < 220


def test_a_wide_table_scrolls_by_itself_on_a_phone(real: Path) -> None:
    probe = """
      const box = document.querySelector("#table-models .scroll");
      return { inside: box.scrollWidth, shown: box.clientWidth };
    """
    value = ask(real, probe, width=400).value
    assert value["inside"] > value["shown"] > 300


NAMES = """
  const shown = [...document.querySelectorAll("#FIGURE svg")].find((svg) => svg.getBoundingClientRect().width > 0);
  const boxes = [...shown.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
  const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
  const touching = [];
  boxes.forEach(([one, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
    if (over(a, b)) touching.push([one, other]);
  }));
  return { touching, names: boxes.map(([text]) => text.trim()) };
"""


@pytest.mark.parametrize("width", [1200, 800, 400])
def test_no_two_names_of_the_frontier_touch(compared: Path, width: int) -> None:
    value = ask(compared, NAMES.replace("FIGURE", "frontier"), width=width).value
    assert value["touching"] == []
    assert value["names"].count("AC/DC") == 2, "once at each sparsity"
    assert "STR (91.3 %)" in value["names"]


@pytest.mark.parametrize("figure", ["budget", "budget-flops"])
@pytest.mark.parametrize("width", [1200, 800, 400])
def test_no_two_names_of_the_budgets_touch(budgets: Path, figure: str, width: int) -> None:
    value = ask(budgets, NAMES.replace("FIGURE", figure), width=width).value
    assert value["touching"] == []
    assert value["names"].count("chosen") == value["names"].count("dense") == 3, "once at each sparsity"


def test_the_comparison_s_table_sorts_and_the_failed_run_is_named(compared: Path) -> None:
    probe = """
      const table = document.querySelector("#table-several table");
      table.tHead.rows[0].cells[4].querySelector("button").click();
      return { first: [...table.tBodies[0].rows].slice(0, 2).map((row) => row.cells[0].textContent),
               notes: document.querySelector(".notes").textContent };
    """
    value = ask(compared, probe).value
    assert value["first"] == ["dense", "AC/DC"]
    assert "gmp-90-seed2 is left out" in value["notes"]


def test_a_click_on_a_column_sorts_by_it(many: Path) -> None:
    probe = """
      const table = document.querySelector("#table-several table");
      const column = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent.trim() === "sparse");
      const read = () => [...table.tBodies[0].rows].map((row) => row.cells[column].textContent);
      const head = table.tHead.rows[0].cells[column];
      head.querySelector("button").click();
      const down = read(), said = head.getAttribute("aria-sort");
      head.querySelector("button").click();
      return { down, said, up: read(), then: head.getAttribute("aria-sort") };
    """
    value = ask(many, probe).value
    assert value["down"] == ["99.00", "96.00 ± 1.00", "93.00"]
    assert value["up"] == value["down"][::-1]
    assert (value["said"], value["then"]) == ("descending", "ascending")


def test_printed_it_is_light_and_has_no_button(one: Path) -> None:
    """Print's own rules, as the browser reads them, and the dark ones are for screens only."""
    probe = """
      const rules = [...document.styleSheets[0].cssRules].filter((rule) => rule.media);
      const dark = rules.filter((rule) => /--page: #14/.test(rule.cssText)).map((rule) => rule.media.mediaText);
      const print = rules.filter((rule) => rule.media.mediaText === "print").map((rule) => rule.cssText).join("");
      return { dark, print };
    """
    value = ask(one, probe).value
    assert len(value["dark"]) == 2
    assert all(media.startswith("screen") for media in value["dark"])
    assert "#theme { display: none; }" in value["print"]


def test_a_page_that_fails_would_be_seen(one: Path, tmp_path: Path) -> None:
    """The console is read, and a script from elsewhere is not run."""
    text = one.read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    broken.write_text(text.replace("</main>", '<script src="https://example.org/x.js"></script></main>'))
    answer = ask(broken, "console.error('seen'); return 1;")
    assert any("seen" in line for line in answer.console)
    assert any("Content Security Policy" in line for line in answer.console)


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (400, False)])
def test_screenshots_are_not_empty(page: Path, tmp_path: Path, width: int, dark: bool) -> None:
    path = screenshot(page, tmp_path / "page.png", width=width, height=2400, dark=dark)
    assert path.stat().st_size > 40_000
