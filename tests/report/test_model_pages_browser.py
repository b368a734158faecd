"""The pages of a model in a real browser: phones, dark screens, paper, keyboards."""

import numpy as np
import pandas as pd
import pytest

from cirm import cli
from tests.browser import OUTSIDE, OVERLAPS

pytestmark = pytest.mark.integration

NAMES = ("inspect", "evaluate", "adapt")
SCREENS = [(1200, "light"), (1200, "dark"), (390, "light"), (390, "dark")]
# Text whose contrast with the page is below what WCAG asks for.
FAINT = """
(() => {
  const often = {willReadFrequently: true};
  const probe = document.createElement("canvas").getContext("2d", often);
  const light = color => {
    probe.fillStyle = "#fff"; probe.fillStyle = color;
    probe.clearRect(0, 0, 1, 1); probe.fillRect(0, 0, 1, 1);
    const parts = [...probe.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255)
      .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * parts[0] + .7152 * parts[1] + .0722 * parts[2];
  };
  const page = light(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll("p, li, th, td, dt, dd, h1, h2, summary, text")]
    .filter(e => e.checkVisibility() && e.textContent.trim() && !e.closest(".shape"))
    .filter(e => {
      const style = getComputedStyle(e);
      const own = light(e.tagName === "text" ? style.fill : style.color);
      const ratio = (Math.max(own, page) + .05) / (Math.min(own, page) + .05);
      return ratio < 4.5;
    }).map(e => e.textContent);
})()
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages that the commands write, with many columns and many places."""
    folder = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(0)
    places = [*(f"place {n}" for n in range(12)), "new"]
    for name, agreement in zip(places, [*np.linspace(0.95, 0.5, 12), 0.1], strict=True):
        ill = rng.random(250) < 0.5
        agrees = rng.random(250) < agreement
        columns = {f"lab {n}": rng.normal(size=250) + ill / (1 + n) for n in range(12)}
        columns["scanner"] = np.where(ill == agrees, "new", "old")
        columns["outcome"] = np.where(ill, "ill", "well")
        pd.DataFrame(columns).to_csv(folder / f"{name}.csv", index=False)
    new, files = folder / "new.csv", [folder / f"{name}.csv" for name in places[:-1]]
    model, place = ["--model", folder / "m.cirm"], ["--out", folder / "new.cirm"]
    commands = [
        ["fit", *files, "--target", "outcome", "--order", "sequential", *model],
        ["inspect", folder / "m.cirm", "--report", folder / "inspect.html"],
        ["evaluate", new, *model, "--report", folder / "evaluate.html"],
        ["adapt", new, *model, *place, "--report", folder / "adapt.html"],
    ]
    for words in commands:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
            patch.setattr("sys.argv", ["cirm", *map(str, words)])
            cli.main()
        assert stop.value.code == 0
    return folder


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_a_page_is_readable_on_every_screen(browser, pages, name, width, scheme):
    path = pages / f"{name}.html"
    browser.open(path, width, scheme)
    assert browser.run(OVERLAPS) == []
    assert browser.run(OUTSIDE) == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run(FAINT) == []
    asked = {
        sent["request"]["url"] for sent in browser.reported("Network.requestWillBeSent")
    }
    assert asked == {path.as_uri()}
    assert not browser.reported("Log.entryAdded", "Runtime.exceptionThrown")


def test_every_figure_is_described_and_its_marks_tell_more(browser, pages):
    browser.open(pages / "inspect.html")
    assert browser.run(
        "[...document.querySelectorAll('figure svg')].every(s => "
        "s.getAttribute('role') === 'img' && s.getAttribute('aria-label').length > 30)"
    )
    assert browser.run("document.querySelectorAll('svg .mark title').length") >= 2 * 26


TABLE = "[...document.querySelectorAll('table[data-sorted]')][0]"


def read_column(browser, place):
    cells = f"[...{TABLE}.tBodies[0].rows].map(row => row.cells[{place}].textContent)"
    return [float(text.removesuffix(" %")) for text in browser.run(cells)]


def test_a_long_table_is_sorted_by_click_and_by_keyboard(browser, pages):
    browser.open(pages / "inspect.html")
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    before = read_column(browser, 1)
    assert len(before) == 13 and before != sorted(before)
    button = f"{TABLE}.tHead.rows[0].cells[1].querySelector('button')"
    browser.run(f"{button}.click()")
    assert read_column(browser, 1) == sorted(before)
    browser.run(f"{button}.focus()")
    browser.press("Enter")
    assert read_column(browser, 1) == sorted(before, reverse=True)
    heading = f"{TABLE}.tHead.rows[0].cells[1].getAttribute('aria-sort')"
    assert browser.run(heading) == "descending"


def test_short_tables_are_not_sorted_and_internals_are_folded(browser, pages):
    browser.open(pages / "inspect.html")
    assert browser.run(
        "[...document.querySelectorAll('table')].map(t => "
        "[t.tBodies[0].rows.length > 10, t.querySelector('th button') !== null])"
        ".every(([isLong, hasButtons]) => isLong === hasButtons)"
    )
    assert browser.run("document.querySelectorAll('details:not([open])').length") >= 4


def test_on_paper_all_is_unfolded_and_light(browser, pages):
    browser.open(pages / "inspect.html", 1200, "dark")
    height = "document.querySelector('section:last-of-type').offsetHeight"
    folded = browser.run(height)
    browser.ask("Emulation.setEmulatedMedia", media="print")
    color = browser.run("getComputedStyle(document.body).backgroundColor")
    unfolded = browser.run(height)
    browser.ask("Emulation.setEmulatedMedia", media="")
    assert color == "rgb(255, 255, 255)"
    assert unfolded > folded + 300
