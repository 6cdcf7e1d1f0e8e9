"""From nothing to a chat: by `bulkhead search` and `bulkhead run`, and by HTTP."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs
import psutil
import pytest
from selenium.webdriver.common.keys import Keys

from tests.cli.screen import screen
from tests.cli.terminal import bulkhead, terminal
from tests.support.browser import Browser, missing
from tests.support.folders import short_folder
from tests.support.gateway import Gateway, eventually
from tests.support.hub import Answer, Hub
from tests.support.ports import free_port
from tests.support.shapes import DEMO

SMALL, OTHER, HUGE = "mlx-community/Tiny3-4B-4bit", "mlx-community/Tiny3-9B-4bit", "org/Tiny3-900B"
ANSWER = "Bulkhead"


def demo_files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(dict.fromkeys((SMALL, OTHER, HUGE), demo_files())) as running:
        running.told[SMALL] = {"downloads": 9000}
        huge = {"parameters": {"BF16": 10**12}, "total": 10**12}
        running.told[HUGE] = {"safetensors": huge, "usedStorage": 2 * 10**12}
        yield running


@pytest.fixture
def home(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty home, with a port of its own for the gateway that a command starts."""
    with short_folder() as name:
        folder = Path(name)
        for variable in list(os.environ):
            if variable.startswith(("BULKHEAD_", "HF_")):
                monkeypatch.delenv(variable)
        monkeypatch.setenv("HOME", name)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        settings = platformdirs.user_config_path("bulkhead") / "config.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text(
            f'[gateway]\nport = {free_port()}\n[workers]\nspare = 0\n[memory]\nbudget = "4GB"\n'
        )
        yield folder


def chatted(*arguments: str, keys: str = "") -> str:
    """What a terminal shows of `run`, to the end of a chat with one question."""
    with screen("run", *arguments, url=None, columns=100) as running:
        if keys:
            running.shows("Which one")
            running.type(keys)
        running.shows("is ready. /help shows the commands.")
        running.type("What is Bulkhead?\r")
        running.waits_until(lambda: ANSWER in running.text.partition("What is Bulkhead?")[2])
        running.type("\x04")
        assert running.exit_status() == 0, running.text
        return running.printed


def gateways() -> list[int]:
    """The processes of the gateways in this test's home."""
    found = []
    for child in psutil.Process().children(recursive=True):
        # A process that ends meanwhile is none.
        with suppress(psutil.NoSuchProcess):
            if "serve" in child.cmdline() and child.environ().get("HOME") == os.environ["HOME"]:
                found.append(child.pid)
    return found


def listed(*arguments: str) -> list[dict[str, Any]]:
    found = bulkhead(*arguments, "--json")
    assert found.returncode == 0, found.stderr
    results: list[dict[str, Any]] = json.loads(found.stdout)["results"]
    return results


def test_from_an_empty_home_to_a_chat_by_a_loose_name(home: Path, hub: Hub) -> None:
    printed = chatted("tiny3", "4b")
    assert "No gateway ran: one serves at http://127.0.0.1:" in printed
    assert "It will fit" in printed
    assert any(f"/{SMALL}/resolve" in text for text in hub.asked)
    assert not any(OTHER in text for text in hub.asked)
    assert gateways() == []
    # Now it is here, and nobody is asked.
    hub.searches.clear()
    again = bulkhead("run", "tiny3", stdin="What is Bulkhead?\n")
    assert again.returncode == 0, again.stderr
    assert ANSWER in again.stdout
    assert hub.searches == []
    assert gateways() == []


@pytest.mark.slow
def test_several_are_asked_for_at_a_terminal_and_listed_elsewhere(home: Path, hub: Hub) -> None:
    refused = bulkhead("run", "tiny3", stdin="What is Bulkhead?\n")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert SMALL in refused.stderr
    assert OTHER in refused.stderr
    assert HUGE not in refused.stderr, "it never fits"
    assert "Name one of them" in refused.stderr
    chatted("tiny3", keys="2\r")
    assert any(f"/{OTHER}/resolve" in text for text in hub.asked)
    assert not any(f"/{SMALL}/resolve" in text for text in hub.asked)


def test_no_name_and_no_model(home: Path, hub: Hub) -> None:
    refused = bulkhead("run")
    assert refused.returncode == 2
    assert "Well-known models, by a list of" in refused.stderr
    assert "Qwen3-4B-4bit" in refused.stderr
    assert "Qwen3-235B-A22B-4bit" not in refused.stderr, "it never fits into 4 GB"
    assert (hub.asked, gateways()) == ([], [])
    kinds = [entry["fits"] for entry in listed("search")]
    assert set(kinds) == {"now", "never"}
    assert hub.asked == []


@pytest.mark.slow
def test_a_folder_and_a_repository(home: Path, hub: Hub) -> None:
    folder = shutil.copytree(DEMO, home / "my-model")
    done = bulkhead("run", str(folder), stdin="What is Bulkhead?\n")
    assert done.returncode == 0, done.stderr
    assert ANSWER in done.stdout
    assert hub.asked == []
    done = bulkhead("run", OTHER, stdin="What is Bulkhead?\n")
    assert done.returncode == 0, done.stderr
    assert ANSWER in done.stdout
    assert hub.searches == []


@pytest.mark.slow
def test_from_an_empty_home_to_an_agent(
    home: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program := home / "claude").write_text("#!/bin/sh\nenv\nexit 7\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}:/usr/bin:/bin")
    several = bulkhead("launch", "claude", "tiny3")
    assert several.returncode == 2
    assert SMALL in several.stderr
    assert "Name one of them: bulkhead launch claude NAME" in several.stderr
    assert not any("/resolve" in text for text in hub.asked)
    assert gateways() == []
    done = bulkhead("launch", "claude", "tiny3", "4b", "--context", "4096")
    assert done.returncode == 7, done.stderr
    assert "\nANTHROPIC_MODEL=Tiny3-4B-4bit\n" in done.stdout
    assert f"{SMALL}, " in done.stderr
    assert "It will fit" in done.stderr
    assert "Tiny3-4B-4bit: 4,096 tokens of context take" in done.stderr
    assert not any(OTHER in text for text in hub.asked)
    assert gateways() == []
    # Now it is here, and nobody is asked.
    hub.searches.clear()
    done = bulkhead("launch", "claude", "--context", "4096", "--", "-p")
    assert done.returncode == 7, done.stderr
    assert "\nANTHROPIC_MODEL=Tiny3-4B-4bit\n" in done.stdout
    assert hub.searches == []


@pytest.mark.slow
def test_unlaunchable_client_is_refused(
    home: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = bulkhead("launch", "codex", "tiny3", "4b")
    assert (missing.returncode, "isn't installed" in missing.stderr) == (127, True)
    assert hub.searches == [], "an agent that isn't there pulls nothing"
    (program := home / "claude").write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}:/usr/bin:/bin")
    nobody = bulkhead("launch", "claude", "nobody", "has", "this")
    assert (nobody.returncode, "try fewer words" in nobody.stderr) == (4, True)
    assert gateways() == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_its_gateway_ends_with_it(home: Path, number: signal.Signals) -> None:
    with terminal("run", str(DEMO), url=None) as running:
        running.expect("is ready. /help shows the commands.")
        assert len(gateways()) == 1
        os.kill(running.pid, number)
        assert running.exit_status() == 128 + number
    assert gateways() == []


@pytest.mark.slow
def test_model_that_cannot_run_is_refused(home: Path, hub: Hub) -> None:
    nobody = bulkhead("run", "nobody", "has", "this")
    assert (nobody.returncode, "try fewer words" in nobody.stderr) == (4, True)
    long = bulkhead("run", "x" * 300)
    # `run` first says that it has started a gateway.
    assert (long.returncode, long.stderr.count("\n")) == (4, 2)
    empty = bulkhead("run", str(home))
    assert (empty.returncode, "has no config.json" in empty.stderr) == (4, True)
    never = bulkhead("run", "900b")
    assert (never.returncode, "None of these models" in never.stderr) == (1, True)
    hub.search_answers = [Answer(status=429)]
    busy = bulkhead("run", "tiny3")
    assert (busy.returncode, "too often" in busy.stderr) == (1, True)
    away = bulkhead("run", "tiny3", "--url", "http://127.0.0.1:9")
    assert away.returncode == 3
    assert gateways() == []


def test_without_a_hub_there_is_what_is_here(
    home: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bulkhead("pull", SMALL).returncode == 0
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for line in (("search", "nobody"), ("run", "nobody")):
        done = bulkhead(*line)
        assert done.returncode == 1
        first, rest = done.stderr.strip().split("\n\n", 1)
        # `run` first says that it has started a gateway.
        error = first.splitlines()[-1]
        known, here = rest.rsplit("\n\n", 1)
        assert "Well-known models, by a list of" in known
        assert "mlx-community/Qwen3-4B-4bit" in known
        assert here == f"On this machine: {SMALL.rpartition('/')[2]}."
        assert error.startswith("bulkhead: http://127.0.0.1:9 can't be reached: ")
        assert "[Errno" not in error
        assert "HF_ENDPOINT" in error
        assert "hub.folder" in error
    assert gateways() == []


@pytest.mark.slow
def test_search_without_a_gateway(home: Path) -> None:
    found = listed("search", "tiny3")
    assert [entry["repository"] for entry in found] == [SMALL, OTHER, HUGE]
    assert [entry["fits"] for entry in found] == ["now", "now", "never"]
    assert found[0]["weight_bytes"] == (DEMO / "model.safetensors").stat().st_size
    told = bulkhead("search", "tiny3").stdout.splitlines()
    assert told[0].split() == ["model", "size", "fits", "downloads", "changed", "notes"]
    assert told[1].split()[0] == SMALL
    nothing = bulkhead("search", "nothing-at-all")
    assert (nothing.returncode, "no model" in nothing.stderr) == (1, True)


@pytest.fixture
def gateway(hub: Hub, tmp_path: Path) -> Iterator[Gateway]:
    running = Gateway(
        config=f'[hub]\nendpoint = "{hub.url}"\n[memory]\nbudget = "4GB"\n',
        environment={"HF_HUB_CACHE": str(tmp_path / "cache")},
    )
    yield running
    assert running.stop() == 0, running.log


@pytest.mark.slow
def test_the_gateway_searches_beside_its_requests(gateway: Gateway, hub: Hub) -> None:
    answer = gateway.client.get("/admin/v1/search", params={"q": "Tiny3 4B"}).json()
    assert (answer["query"], answer["dated"]) == ("tiny3 4b", None)
    assert [result["repository"] for result in answer["results"]] == [SMALL]
    assert 0 < answer["free_bytes"] <= answer["possible_bytes"]
    assert gateway.client.get("/admin/v1/search").json()["dated"] is not None

    hub.search_answers = [Answer(status=429, headers={"retry-after": "7"})]
    busy = gateway.client.get("/admin/v1/search", params={"q": "tiny3"})
    assert (busy.status_code, busy.headers["retry-after"]) == (503, "7")
    assert busy.json()["error"]["code"] == "hub_unavailable"
    hub.search_answers = [Answer(body=b"<html>")]
    nonsense = gateway.client.get("/admin/v1/search", params={"q": "tiny3"})
    assert (nonsense.status_code, "retry-after" in nonsense.headers) == (503, False)
    assert gateway.client.get("/admin/v1/search", params={"q": "x" * 201}).status_code == 400

    hub.search_answers = [Answer(stall=True)]
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(gateway.client.get, "/admin/v1/search", params={"q": "tiny3"})
        eventually(lambda: not hub.search_answers)
        assert gateway.say("What is Bulkhead?")
        assert not slow.done()
        assert slow.result().status_code == 503
    assert hub.searches


@pytest.mark.slow
def test_run_uses_the_gateway_that_serves(gateway: Gateway, hub: Hub) -> None:
    done = bulkhead("run", "tiny3", "9b", url=gateway.url, stdin="What is Bulkhead?\n")
    assert done.returncode == 0, done.stderr
    assert ANSWER in done.stdout
    assert "No gateway ran" not in done.stderr
    assert gateway.model("Tiny3-9B-4bit")["state"] == "ready"
    found = gateway.client.get("/admin/v1/search", params={"q": "9b"}).json()
    assert found["results"][0]["served_as"] == "Tiny3-9B-4bit"
    elsewhere = bulkhead("run", "/nowhere", url=gateway.url)
    assert (elsewhere.returncode, "config reload" in elsewhere.stderr) == (4, True)


@pytest.mark.slow
@pytest.mark.outside_our_hands("Chromium and its driver are processes of others")
def test_from_an_empty_home_to_a_chat_by_the_page(hub: Hub, tmp_path: Path) -> None:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    gateway = Gateway(
        models=(),
        config=f'[hub]\nendpoint = "{hub.url}"\n[memory]\nbudget = "4GB"\n',
        environment={"HF_HUB_CACHE": str(tmp_path / "cache")},
    )
    with Browser() as page:
        page.open(f"{gateway.url}/ui")
        page.sees("[aria-labelledby=search]", "Well-known models, by a list of")
        page.sees("[data-repository='mlx-community/Qwen3-4B-4bit']", "fits now")
        page.sees("[data-repository='mlx-community/Qwen3-235B-A22B-4bit']", "doesn't fit")
        assert hub.asked == [], "nothing is fetched for the list"
        hub.search_answers = [Answer(status=502)]
        page.type("[type=search]", "tiny3 4b" + Keys.ENTER)
        page.sees("[aria-labelledby=search] [role=alert]", "answers 502")
        page.sees("[aria-labelledby=search]", "Well-known models, by a list of")
        page.type("[type=search]", "tiny3 4b" + Keys.ENTER)
        page.click(f"[aria-label='Pull {SMALL}']")
        page.click(".pulls [aria-label='Chat with Tiny3-4B-4bit']")
        page.type("#message", "What is Bulkhead?" + Keys.ENTER)
        page.sees(".message.assistant .text", ANSWER)
    assert gateway.stop() == 0, gateway.log
