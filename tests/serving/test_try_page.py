"""The page to try a row by hand, in a real browser."""

import pytest

from tests.serving.server import serve

TOKEN = "a-token-that-nobody-guesses"
READY = "!document.getElementById('form').hidden"
ANSWER = "document.getElementById('answer').textContent"
SET = "document.querySelector('[name={}]').value = {!r}"
SEND = "document.getElementById('send').click()"

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_a_row_is_filled_in_and_predicted(browser, client, row, width, scheme):
    browser.open(client.address + "/", width, scheme)
    browser.wait(READY)
    assert browser.run("document.title") == "Predictions of outcome"
    for name, value in (("marker", "2.5"), ("scanner", "new"), ("visit", "2024-03-01")):
        browser.run(SET.format(name, value))
    browser.run(SET.format("patient", "17"))
    browser.run(SET.format("age", "51,5"))
    browser.run(SET.format("smoker", "true"))
    browser.run(SEND)
    text = browser.wait(ANSWER)
    (wanted,) = client.predict([row])[1]["predictions"]
    assert text.startswith(wanted["prediction"])
    assert f"{100 * wanted['probability']:.1f} %" in text
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert not browser.reported("Log.entryAdded", "Runtime.exceptionThrown")
    asked = {
        sent["request"]["url"].removeprefix(client.address)
        for sent in browser.reported("Network.requestWillBeSent")
        if not sent["request"]["url"].startswith("data:")  # icons of the browser
    }
    assert asked <= {"/", "/openapi.json", "/predict", "/favicon.ico"}


def test_a_wrong_value_is_marked_and_focused(browser, client):
    browser.open(client.address + "/")
    browser.wait(READY)
    browser.run(SET.format("age", "old"))
    browser.run(SEND)
    assert "column 'age' has the value 'old'" in browser.wait(ANSWER)
    assert browser.run("document.activeElement.name") == "age"
    assert browser.run("document.activeElement.getAttribute('aria-invalid')") == "true"


def test_the_page_works_by_keyboard_and_every_field_has_a_label(browser, client):
    browser.open(client.address + "/")
    browser.wait(READY)
    assert browser.run(
        "[...document.querySelectorAll('input, select')].filter(f => f.offsetParent)"
        ".every(f => f.labels.length === 1)"
    )
    for _ in range(15):  # a date has several stops
        browser.press("Tab")
        if browser.run("document.activeElement.id") == "send":
            break
    browser.press("Enter")
    assert " %" in browser.wait(ANSWER)


def test_a_server_with_a_token_asks_for_it(browser, model_file):
    with serve(model_file, TOKEN) as client:
        browser.open(client.address + "/")
        browser.wait("!document.getElementById('token').hidden")
        assert browser.run("document.getElementById('form').hidden")
        fill = "document.querySelector('#token input').value = {!r}"
        unlock = "document.getElementById('unlock').click()"
        browser.run(fill.format("wrong"))
        browser.run(unlock)
        assert browser.wait(ANSWER) == "This token is wrong."
        browser.run(fill.format(TOKEN))
        browser.run(unlock)
        browser.wait(READY)
        browser.run(SEND)
        browser.wait(f"({ANSWER}).includes(' %')")
