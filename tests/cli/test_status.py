from __future__ import annotations

import json
import os
import re
import signal
from typing import Any

from tests.cli.canned import CannedGateway
from tests.cli.terminal import bulkhead, started, terminal
from tests.support.gateway import Gateway, eventually


def test_shows_gateway_memory_and_models_in_plain_text(gateway: Gateway) -> None:
    gateway.load()
    pid = gateway.worker_pid()
    done = bulkhead("status", url=gateway.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert f"serving, pid {gateway.pid}" in lines[0]
    budget = r"Budget [\d.]+ GB: workers hold [\d.]+ MB, granted [\d.]+ MB; pressure \w+$"
    assert re.match(budget, lines[1])
    prompts = r"Prompts: \S+ \w+ kept in memory, \S+( \w+)? on disk"
    assert re.match(rf"{prompts}(; \d+% of [\d,]+ tokens were found there)?$", lines[2])
    assert lines[5].split()[:3] == ["demo", "ready", str(pid)]
    headings = [line.split()[0] for line in lines if line]
    assert {"model", "memory", "(gateway)", "total"} < set(headings)


def test_the_rows_of_memory_add_up_to_the_total(gateway: Gateway) -> None:
    gateway.load()
    memory = eventually(lambda: _complete(gateway.status()["memory"]))
    assert memory["spare_bytes"] == 0
    held = sum(
        memory[f"{text}_bytes"]
        for text in ("footprint", "gateway", "other", "stranded", "available")
    )
    assert held == memory["total_bytes"]
    worker = gateway.model()["worker"]
    parts_bytes = sum(worker[f"{text}_bytes"] for text in ("weight", "cache", "buffer"))
    assert 0 < worker["weight_bytes"] <= parts_bytes < worker["footprint_bytes"]
    shown = bulkhead("status", url=gateway.url).stdout
    for row in ("demo", "(spare workers)", "(gateway)", "(other programs)", "(stranded)", "total"):
        assert f"\n{row} " in shown


def _complete(memory: dict[str, Any]) -> dict[str, Any] | None:
    """Once everything has been read; there need not be a card."""
    read = (size for name, size in memory.items() if not name.startswith("card_"))
    return None if None in read else memory


def test_takes_the_address_as_an_option(gateway: Gateway) -> None:
    done = bulkhead("status", "--url", f"{gateway.url}/", url="http://127.0.0.1:1")
    assert done.returncode == 0


def test_status_shows_a_single_model(gateway: Gateway) -> None:
    gateway.load()
    shown = bulkhead("status", "demo", url=gateway.url)
    assert "\ndemo " in shown.stdout
    (found,) = json.loads(bulkhead("status", "demo", "--json", url=gateway.url).stdout)
    assert (found["id"], found["state"]) == ("demo", "ready")
    unknown = bulkhead("status", "domo", url=gateway.url)
    assert (unknown.returncode, unknown.stdout) == (4, "")


def test_json_is_the_answer_of_the_gateway(gateway: Gateway) -> None:
    gateway.load()
    done = bulkhead("status", "--json", url=gateway.url)
    assert done.returncode == 0
    printed, asked = json.loads(done.stdout), gateway.status()
    assert printed.keys() == asked.keys()
    assert printed["models"][0].keys() == asked["models"][0].keys()
    assert printed["models"][0]["worker"]["pid"] == gateway.worker_pid()


def test_tells_how_a_worker_died(gateway: Gateway) -> None:
    gateway.load()
    os.kill(gateway.worker_pid(), signal.SIGKILL)
    eventually(lambda: gateway.model()["last_exit"])
    done = bulkhead("status", url=gateway.url)
    assert "demo: the last worker ended by SIGKILL at " in done.stdout


def test_is_coloured_on_a_terminal(gateway: Gateway) -> None:
    with terminal("status", url=gateway.url) as screen:
        assert screen.exit_status() == 0
        assert "\x1b[1m" in screen.screen


def test_says_whose_turn_is_next_while_several_share_a_model(canned: CannedGateway) -> None:
    sharers = [("alice", 0, 1), ("", 1, 0), ("b", 0, 0), ("c", 1, 1), ("d", 0, 3), ("e", 0, 1)]
    for listed in (sharers, sharers[:1]):
        model = {
            "id": "demo",
            "state": "ready",
            "sharers": [
                {
                    "name": name,
                    "share": 1,
                    "cost_s": 2.0,
                    "active_requests": running,
                    "queue_depth": waiting,
                }
                for name, running, waiting in listed
            ],
        }
        canned.will_answer("/admin/v1/status", {"models": [model]})
    shown = " ".join(bulkhead("status", url=canned.url).stdout.split())
    assert "demo: shared, next turn first: alice took 2.0 s, 0 run, 1 wait; (gateway) took" in shown
    assert "c took 2.0 s, 1 run, 1 wait; d took 2.0 s, 0 run, 3 wait; 1 more" in shown
    assert "shared" not in bulkhead("status", url=canned.url).stdout, "nobody to share with"


def test_foreign_text_is_shown_literally(canned: CannedGateway) -> None:
    canned.will_answer(
        "/admin/v1/status",
        {
            "version": "9",
            "pid": 1,
            "uptime_s": 200000.0,
            "state": "serving",
            "memory": {
                "total_bytes": 64_000_000_000,
                "available_bytes": 9_000_000_000,
                "granted_bytes": 0,
                "budget_bytes": 48_000_000_000,
                "footprint_bytes": None,
                "stranded_bytes": 3_000_000_000,
                "pressure": "warning",
            },
            "models": [
                {
                    "id": "[bold]a-model-with-a-name-that-is-far-too-long-for-a-column[/bold]",
                    "state": "stopping",
                    "reason": "\x1b[2Jcleared :smile: [red]not red[/red]",
                    "queue_depth": 100,
                    "active_requests": 32,
                    "restarts": 3,
                    "worker": {"pid": 4194304, "footprint_bytes": 999, "last_step_age_s": 400.0},
                    "last_exit": {
                        "at": 0.0,
                        "code": 7,
                        "signal": None,
                        "reason": "ended unexpectedly while ready",
                        "log_tail": ["one", "two", "three", "\x1b[31mfour " + "x" * 100],
                    },
                }
            ],
        },
    )
    done = bulkhead("status", url=canned.url)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "[bold]" in done.stdout
    assert ":smile: [red]not red[/red]" in done.stdout
    assert "Budget 48.0 GB" in done.stdout
    assert re.search(
        r"^\(stranded\) +3\.0 GB\s*\n\(available\) +9\.0 GB\s*\ntotal +64\.0 GB", done.stdout, re.M
    )
    assert "the last worker ended with code 7 at " in done.stdout.replace(" \n", " ")
    assert "| one" not in done.stdout
    assert "  | three\n  | [31mfour xxx" in done.stdout
    assert "7m" in done.stdout
    assert "up 2 d" in done.stdout


def test_watches_until_it_is_interrupted(gateway: Gateway) -> None:
    with started("status", "--watch", url=gateway.url) as running:
        assert running.stdout is not None
        shown = 0
        while shown < 2:
            shown += running.stdout.readline().startswith("Bulkhead ")
        running.send_signal(signal.SIGINT)
        assert running.wait(120) == 130
