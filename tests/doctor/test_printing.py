from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import bulkhead, terminal
from tests.support.folders import short_folder

NOBODY = "http://127.0.0.1:1"
STEERING = "steer\x1b[31m\x9b7m"


@pytest.fixture
def arguments() -> Iterator[list[str]]:
    """A taken port, and a model whose path would steer a terminal."""
    with (
        short_folder() as folder,
        socket.socket() as taken,
    ):
        # Nobody listens, so that nobody's answer is waited for.
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        state_dir = str(Path(folder) / "state")
        missing = f"{folder}/{'a long name ' * 9}{STEERING}=m"
        yield ["doctor", "--state-dir", state_dir, "--port", port, "--model", missing]


def test_a_terminal_gets_lines_that_fit(arguments: list[str]) -> None:
    with terminal(*arguments, url=NOBODY) as screen:
        assert screen.exit_status() == 1
        shown = screen.screen
    assert "\x1b[1;31merror" in shown
    assert "\x9b" not in shown
    # Without colours, and without the line that is drawn anew while something is looked at.
    lines = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", shown).replace("\r\n", "\n").split("\n")
    assert max(len(line.rpartition("\r")[2]) for line in lines) <= 80
    assert "another program" in " ".join(" ".join(lines).split())


def test_a_pipe_gets_a_line_for_each(arguments: list[str]) -> None:
    done = bulkhead(*arguments)
    assert (done.returncode, done.stderr) == (1, "")
    assert "\x1b" not in done.stdout
    assert "\x9b" not in done.stdout
    *lines, summary = done.stdout.splitlines()
    assert all(re.match(r"(ok|warning|error) +\w|        -> ", line) for line in lines)
    assert sum(text.startswith("        -> ") for text in lines) == 2
    assert re.fullmatch(r"2 errors, 0 warnings, \d+ ok\. No gateway runs\.", summary)


def test_json_on_a_terminal_is_json(arguments: list[str]) -> None:
    with terminal(*arguments, "--json", url=NOBODY) as screen:
        assert screen.exit_status() == 1
        shown = screen.screen
    assert "\x1b" not in shown
    assert "\x9b" not in shown
    answer = json.loads(shown)
    assert answer["worst"] == "error"
    bad = [finding for finding in answer["findings"] if finding["severity"] != "ok"]
    assert [item["check"] for item in bad] == ["port", "model"]
    assert bad[1]["subject"] == "m"
    assert STEERING in bad[1]["evidence"]


def test_the_help_says_what_the_exit_status_means() -> None:
    done = bulkhead("doctor", "--help")
    assert "5 if there are warnings" in " ".join(done.stdout.split())
    assert bulkhead("doctor", "--no-such").returncode == 2
