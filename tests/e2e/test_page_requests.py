"""Finished requests on the page, and what its log says of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.browser import Browser, missing
from tests.support.gateway import START_S, Gateway, chat_body, eventually
from tests.support.streams import open_stream

pytestmark = pytest.mark.outside_our_hands("Chromium and its driver are processes of others")

ROW = ".finished tbody tr"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    running = Gateway()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with Browser() as running:
        yield running


@pytest.fixture
def page(browser: Browser, gateway: Gateway) -> Iterator[Browser]:
    browser.open(f"{gateway.url}/ui#overview")
    browser.driver.refresh()
    browser.sees(".connection", "live")
    yield browser
    assert browser.errors() == []


def _ask(gateway: Gateway, model: str = "demo") -> int:
    body = chat_body("What is Bulkhead?", model, max_tokens=20)
    return gateway.client.post("/v1/chat/completions", json=body).status_code


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_finished_requests_stand_beside_the_running_ones(
    page: Browser, gateway: Gateway, scheme: str
) -> None:
    page.scheme(scheme)
    assert _ask(gateway) == 200
    page.sees(f"{ROW}:first-child", "answered")
    # One comes while the page is looked at.
    assert _ask(gateway, "nobody") == 404
    page.sees(f"{ROW}:first-child .bad", "model_not_found: There is no model 'nobody'")
    page.find(f"{ROW}:nth-child(2) button").send_keys(Keys.ENTER)
    page.sees(f"{ROW}.life .phases", "prompt was read")
    page.sees(f"{ROW}.life .phases", "tokens came")
    width = "return document.querySelector('.line-in-time .tokens').getBoundingClientRect().width"
    assert page.driver.execute_script(width) > 2
    for size in (1440, 390):
        page.resize(size, 800)
        assert page.findings() == []
        taken = "return document.documentElement.scrollWidth"
        assert page.driver.execute_script(taken) <= size
    page.resize(1280, 1000)
    page.click(f"{ROW}:nth-child(2) td")
    page.until(lambda: not page.there(f"{ROW}.life"))
    page.click(f"{ROW}:first-child button")
    page.sees(f"{ROW}.life", "It never reached a model.")


def test_the_end_of_a_worker_is_seen_in_a_life(page: Browser, gateway: Gateway) -> None:
    stream = open_stream(gateway, "Tell me a story.", max_tokens=600, ignore_eos=True)
    eventually(lambda: stream.text, START_S)
    os.kill(gateway.worker_pid(), signal.SIGKILL)
    assert stream.join().done
    page.sees(f"{ROW}:first-child", "+ 600")
    page.click(f"{ROW}:first-child button")
    page.sees(f"{ROW}.life .phases", "waited for another worker")
    page.sees(f"{ROW}.life .phases", "was read anew")
    assert page.there(".line-in-time .parked")


def test_the_log_says_how_requests_ended(page: Browser, gateway: Gateway) -> None:
    assert (_ask(gateway), _ask(gateway, "nobody")) == (200, 404)
    page.driver.execute_script("location.hash = 'logs'")
    page.sees(".log", "POST /v1/chat/completions: 200, demo, ")
    page.sees(".log", " + 20 tokens, ")
    page.sees(".log", " s: There is no model 'nobody'; there are: demo.")
