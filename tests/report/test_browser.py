"""The page of a run in a real browser."""

import pytest

from cirm.report import PageSection, PngPicture, build_run_page, render_html_page
from cirm.report.markup import EscapedHtml
from tests.browser import OUTSIDE, OVERLAPS, SIZES

SCREENS = [(1100, "light"), (1100, "dark"), (390, "light"), (700, "light")]
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def report(tmp_path_factory, records, png):
    path = tmp_path_factory.mktemp("page") / "report.html"
    text = build_run_page(
        records,
        "Coloured digits, one environment after another",
        "cirm run --dataset colored --learner erm",
        ["A note."],
        [PngPicture(png, "Dots.")],
        chance=50.0,
        axis="colour flip of the unseen environment",
        trained_at=(0.1, 0.2),
    )
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_page_asks_for_nothing_and_complains_of_nothing(
    browser, report, width, scheme
):
    browser.open(report, width, scheme)
    asked = {
        sent["request"]["url"].split(",")[0]
        for sent in browser.reported("Network.requestWillBeSent")
    }
    assert asked == {report.as_uri(), "data:image/png;base64"}
    assert not browser.reported(
        "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"
    )


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_figures_have_content_and_no_text_lies_on_another(
    browser, report, width, scheme
):
    browser.open(report, width, scheme)
    sizes = browser.run(SIZES)
    assert len(sizes) == 1 + 1 + 13 + 1 + 1
    assert all(size > 0 for figure in sizes for size in figure)
    assert browser.run(OVERLAPS) == []
    assert browser.run(OUTSIDE) == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")


def test_the_page_is_dark_where_the_reader_wants_it(browser, report):
    seen = []
    for scheme in ("light", "dark"):
        browser.open(report, 1100, scheme)
        seen.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert seen == ["rgb(255, 255, 255)", "rgb(20, 24, 28)"]


def test_settings_are_on_paper_too(browser, report):
    browser.open(report)
    if not browser.run("CSS.supports('selector(::details-content)')"):
        pytest.skip("this Chromium cannot unfold for paper; that came with 131")
    height = "document.querySelector('details').getBoundingClientRect().height"
    folded = browser.run(height)
    browser.ask("Emulation.setEmulatedMedia", media="print")
    assert browser.run(height) > folded + 50


def test_a_stray_outside_address_is_refused_by_the_page_itself(browser, tmp_path):
    stray = EscapedHtml('<img src="http://127.0.0.1:9/x.png" alt="">')
    path = tmp_path / "stray.html"
    path.write_text(
        render_html_page("T", "lead", [PageSection("", (stray,))]), encoding="utf-8"
    )
    browser.open(path)
    failed = browser.reported("Network.loadingFailed")
    assert [failure.get("blockedReason") for failure in failed] == ["csp"]
