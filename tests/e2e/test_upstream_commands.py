"""What commands and the page do with a model of an upstream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.cli.terminal import bulkhead
from tests.support.browser import Browser, missing
from tests.support.gateway import Gateway, eventually
from tests.support.upstreams import behind, listed

pytestmark = pytest.mark.slow

ANSWER = "Bulkhead"


@pytest.fixture(scope="module")
def first() -> Iterator[Gateway]:
    with behind(models=("demo",)) as box, behind(box=box) as first:
        eventually(lambda: listed(first))
        # Only a model that is loaded tells its context.
        box.load()
        eventually(lambda: listed(first)["box/demo"]["max_model_len"] == 4096)
        yield first


@pytest.fixture(autouse=True)
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that stands in for Claude Code, and tells what it was given."""
    (program := tmp_path / "claude").write_text("#!/bin/sh\nenv\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("name", ["box/demo", "demo", "dem"])
def test_run_chats_with_it_and_leaves_its_load_to_the_upstream(first: Gateway, name: str) -> None:
    done = bulkhead("run", name, url=first.url, stdin="What is Bulkhead?\n")
    assert done.returncode == 0, done.stderr
    assert ANSWER in done.stdout


@pytest.mark.parametrize("name", ["box/demo", "demo"])
def test_launch_tells_the_agent_the_name_it_was_given(first: Gateway, name: str) -> None:
    done = bulkhead("launch", "claude", name, "--context", "4096", url=first.url)
    assert done.returncode == 0, done.stderr
    assert f"\nANTHROPIC_MODEL={name}\n" in done.stdout
    assert "\nCLAUDE_CODE_MAX_CONTEXT_TOKENS=4096\n" in done.stdout
    assert "box/demo is used as it is" in done.stderr


def test_launch_says_if_the_context_there_is_too_short(first: Gateway) -> None:
    done = bulkhead("launch", "claude", "demo", url=first.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "needs 32,768 tokens of context, and box/demo has 4,096" in done.stderr
    assert "can't be changed from here" in done.stderr
    printed = bulkhead("launch", "claude", "demo", "--print", url=first.url)
    assert "export ANTHROPIC_MODEL=demo\n" in printed.stdout
    assert "have the operator of its upstream load it with more" in printed.stderr


@pytest.mark.parametrize("name", ["box/demo", "demo"])
def test_orders_say_whose_model_it_is(first: Gateway, name: str) -> None:
    done = bulkhead("load", name, url=first.url)
    assert done.returncode == 1
    assert "'box/demo' is a model of an upstream" in done.stderr


@pytest.mark.outside_our_hands("Chromium and its driver are processes of others")
def test_the_page_chats_and_connects(first: Gateway) -> None:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with Browser() as page:
        page.open(f"{first.url}/ui#playground")
        page.type("#message", "What is Bulkhead?" + Keys.ENTER)
        page.sees(".message.assistant .text", ANSWER)
        page.open(f"{first.url}/ui#connect/box/demo")
        page.sees("[aria-labelledby=client-claude]", "ANTHROPIC_MODEL=box/demo")
        page.sees("[aria-labelledby=client-claude]", "operator of its upstream")
        assert page.errors() == []
