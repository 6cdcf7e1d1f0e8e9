"""`bulkhead top` on its screen, before a real gateway."""

from __future__ import annotations

import asyncio
import html
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from textual.pilot import Pilot

from gateway.cli import main
from gateway.cli.client import GatewayClient
from gateway.cli.top_screen import Top
from tests.cli.canned import CannedGateway
from tests.cli.terminal import bulkhead, terminal
from tests.support.gateway import START_S, Gateway
from tests.support.streams import open_stream

NOBODY = "http://127.0.0.1:1"
LONG = {"max_tokens": 1000, "ignore_eos": True}
# How a terminal gets back the screen that it had before.
OLD_SCREEN = "\x1b[?1049l"


class Screen:
    """What a person would see, and the keys that they have."""

    def __init__(self, pilot: Pilot[None]) -> None:
        self._pilot = pilot

    @property
    def lines(self) -> list[str]:
        found: defaultdict[int, str] = defaultdict(str)
        drawn = re.findall(
            r'-line-(\d+)\)">([^<]*)</text>', self._pilot.app.export_screenshot(simplify=False)
        )
        for line, text in drawn:
            found[int(line)] += html.unescape(text).replace("\xa0", " ")
        return [found[index] for index in sorted(found)]

    @property
    def text(self) -> str:
        """Without its line breaks, which depend on the terminal's width."""
        return " ".join(" ".join(self.lines).split())

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def resize(self, width: int, height: int) -> None:
        await self._pilot.resize_terminal(width, height)

    async def shows(self, *texts: str) -> None:
        """Wait until all of it is there."""
        await self._until(lambda: all(text in self.text for text in texts), texts)

    async def hides(self, text: str) -> None:
        await self._until(lambda: text not in self.text, text)

    async def ends(self) -> None:
        async with asyncio.timeout(START_S):
            while self._pilot.app.is_running:
                await asyncio.to_thread(time.sleep, 0.05)

    async def _until(self, condition: Callable[[], bool], wanted: object) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            assert self._pilot.app.is_running, "it has ended"
            assert time.monotonic() < deadline, f"{wanted} never came; there is: {self.lines}"
            await self._pilot.pause(0.05)


@asynccontextmanager
async def top(url: str, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Screen]:
    with GatewayClient(url) as client:
        async with Top(client).run_test(size=size) as pilot:
            yield Screen(pilot)


@pytest.mark.slow
async def test_steers_a_model_and_asks_before_it_cuts_anything_off(gateway: Gateway) -> None:
    await asyncio.to_thread(gateway.order, "unload")
    async with top(gateway.url) as screen:
        await screen.shows(f"serving, pid {gateway.pid}", "Budget", "demo", "unloaded")
        await screen.press("l")
        await screen.shows("demo is ready.", "loading → ready")
        pid = gateway.worker_pid()
        stream = open_stream(gateway, "Tell me a story.", **LONG)
        await screen.shows("Requests: 1 active")
        await screen.press("k")
        await screen.shows("Kill demo? It interrupts 1 running request,")
        await screen.press("n")
        await screen.hides("Kill demo?")
        assert gateway.worker_pid() == pid
        await screen.press("k", "y")
        await screen.shows("demo is ")
        await asyncio.to_thread(stream.join)
        assert stream.done
        assert gateway.worker_pid() != pid
        await screen.press("r")
        await screen.shows("Restart demo?")
        await screen.press("y")
        await screen.shows("demo is ready.")
        await screen.press("u", "y")
        await screen.shows("demo is unloaded.")
        await screen.press("escape")
        await screen.hides("demo is unloaded.")
    assert gateway.model()["state"] == "unloaded"


async def test_refusal_is_shown_and_the_view_goes_on(fleet: Gateway) -> None:
    await asyncio.to_thread(fleet.order, "kill", "slow", force=True)
    async with top(fleet.url) as screen:
        await screen.shows("org/my model", "broken", "slow")
        await screen.press("down", "l")
        await screen.shows("slow: load ordered.", "starting")
        await screen.press("l")
        await screen.shows("slow: the last load is not over yet.")
        await screen.press("down", "l")
        await screen.shows("'broken' can't be loaded:")
        await screen.shows("failed", "names no model_type")


async def test_every_width_shows_how_to_quit(gateway: Gateway) -> None:
    done = CliRunner().invoke(main, ["top", "--help"])
    assert "Press q to quit" in done.output
    async with top(gateway.url, (30, 30)) as screen:
        # Of the keys it is the last that a small screen cuts.
        await screen.shows("q quit ? help l load u")
        await screen.press("question_mark", "end")
        await screen.shows("Escape or q closes")


@pytest.mark.parametrize("size", [(60, 20), (200, 50)])
async def test_other_screens_show_models_events_and_keys(
    gateway: Gateway, size: tuple[int, int]
) -> None:
    await asyncio.to_thread(gateway.load)
    async with top(gateway.url, size) as screen:
        await screen.shows("demo", "ready", "Events", "loading → ready", "q quit")


@pytest.mark.slow
async def test_stands_any_size(gateway: Gateway) -> None:
    async with top(gateway.url) as screen:
        await screen.shows("serving")
        for size in ((1, 1), (5, 3), (40, 2), (3, 60), (40, 10)):
            await screen.resize(*size)
            await screen.press("down", "k", "pagedown", "question_mark", "end", "escape", "up", "n")
        await screen.resize(80, 24)
        await screen.shows("serving", "demo", "Events", "q quit")


@pytest.mark.slow
async def test_goes_on_when_the_gateway_comes_back() -> None:
    first = Gateway()
    port = str(urlsplit(first.url).port)
    async with top(first.url, (80, 40)) as screen:
        await screen.shows("unloaded")
        await screen.press("l")
        await screen.shows("demo is ready.", "loading → ready")
        await asyncio.to_thread(first.stop)
        await screen.shows("No answer for ", "No gateway answers at")
        assert f"pid {first.pid}" in screen.text
        assert "loading → ready" in screen.text
        second = await asyncio.to_thread(Gateway, "--port", port)
        try:
            await screen.shows(f"pid {second.pid}")
            await screen.hides("trying again")
            assert "loading → ready" in screen.text
        finally:
            assert await asyncio.to_thread(second.stop) == 0


async def test_waits_for_a_gateway() -> None:
    async with top(NOBODY) as screen:
        await screen.shows(f"Bulkhead at {NOBODY}", "No answer for ", "No gateway answers")
        await screen.press("k", "down", "y", "l")


async def test_says_what_else_answers(canned: CannedGateway) -> None:
    async with top(canned.url) as screen:
        await screen.shows("is not a Bulkhead gateway")


async def test_help_tells_the_keys(gateway: Gateway) -> None:
    async with top(gateway.url, (60, 20)) as screen:
        await screen.press("question_mark")
        await screen.shows("end the process without a drain")
        await screen.press("end")
        await screen.shows("Escape or q closes this.")
        await screen.press("escape")
        await screen.shows("Events")
        await screen.press("question_mark", "ctrl+c")
        await screen.ends()


async def test_an_error_of_its_own_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_client: GatewayClient) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(GatewayClient, "status", broken)
    with pytest.raises(ZeroDivisionError):
        async with top(NOBODY) as screen:
            await screen.shows("this never comes")


def test_quits_and_gives_the_screen_back(gateway: Gateway) -> None:
    with terminal("top", url=gateway.url) as screen:
        screen.expect("q quit")
        screen.type("q")
        screen.expect(OLD_SCREEN)
        assert screen.exit_status() == 0


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_signal_restores_the_screen(gateway: Gateway, sent: signal.Signals) -> None:
    with terminal("top", url=gateway.url) as screen:
        screen.expect("q quit")
        os.kill(screen.pid, sent)
        screen.expect(OLD_SCREEN)
        assert screen.exit_status() == 0


def test_needs_a_terminal(gateway: Gateway) -> None:
    done = bulkhead("top", url=gateway.url)
    assert (done.returncode, done.stdout) == (2, "")
    assert "top needs a terminal" in done.stderr
    assert "`bulkhead status`" in done.stderr


def test_a_dumb_terminal_is_refused(gateway: Gateway) -> None:
    with terminal("top", url=gateway.url, kind="dumb") as screen:
        assert screen.exit_status() == 2
        assert "TERM=dumb" in screen.screen
        assert "\x1b" not in screen.screen


def test_other_verbs_do_without_its_screen() -> None:
    # The list of verbs imports each of them.
    command = [sys.executable, "-X", "importtime", "-m", "gateway", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "top " in done.stdout
    assert "gateway.cli.client" in done.stderr
    assert "textual" not in done.stderr
