"""Listings on terminals of several widths and in pipes, before a live gateway and a dead one."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.canned import CannedGateway
from tests.cli.screen import screen
from tests.cli.terminal import environment
from tests.support.gateway import Gateway

NOBODY = "http://127.0.0.1:1"
LONG = "mlx-community/Qwen3-Coder-480B-A35B-Instruct-4bit-DWQ-v2"
IDS = (LONG, "demo")
HOSTS = ("studio2", "the-other-studio-downstairs.example.org")
MOST = 999_999_999_999

# Verbs one after another in one process, each with its exit status: a start takes a second.
SEVERAL = """
import sys
from gateway.cli import main
for line in sys.argv[1:]:
    print("$", line, flush=True)
    try:
        main(line.split(), prog_name="bulkhead")
    except SystemExit as ended:
        sys.stderr.flush()
        print("=", ended.code, flush=True)
"""
COMMAND = (sys.executable, "-c", SEVERAL)
LISTINGS = ("models", "list", "status", "key list", "usage")
OTHERS = ("show demo", "config show", "events -n 5", "--help")


@pytest.fixture(scope="module")
def crowded() -> Any:
    """Values as long as they get."""
    with CannedGateway() as server:
        server.will_answer("/v1/models", {"data": [_listed(identifier) for identifier in IDS]})
        server.will_answer("/admin/v1/library", {"models": [_entry(text) for text in IDS]})
        server.will_answer("/admin/v1/library/demo", _entry("demo"))
        server.will_answer("/admin/v1/status", _status())
        server.will_answer(
            "/admin/v1/keys", {"keys": [_key(text) for text in ("laptop", LONG)], "required": True}
        )
        counts = {
            "requests": MOST,
            "prompt_tokens": MOST,
            "cached_tokens": MOST,
            "completion_tokens": MOST,
        }
        usage = [{"name": text, "today": counts, "month": counts} for text in ("laptop", LONG)]
        server.will_answer("/admin/v1/usage", {"keys": usage})
        server.will_stream("/admin/v1/events", [])
        yield server


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_nothing_is_cut_on_a_terminal(columns: int, crowded: CannedGateway, tmp_path: Path) -> None:
    more = {"BULKHEAD_CONFIG": _configuration(tmp_path)}
    listings = (*LISTINGS, *OTHERS)
    with screen(
        *listings, command=COMMAND, url=crowded.url, columns=columns, lines=400, more=more
    ) as seen:
        assert seen.exit_status() == 0
    shown = _sections(seen.text)
    assert {verb: status for verb, (status, _) in shown.items()} == dict.fromkeys(listings, "0")
    assert "…" not in seen.text
    for verb in LISTINGS:
        rows = shown[verb][1]
        if verb == "status":
            rows = rows[rows.index("") + 1 :]
        # A name that is too long for its column goes on below.
        names = "".join(row.split()[0] for row in rows if row[:1].strip())
        assert LONG in names, rows
        if columns == 200:
            assert any(LONG in row for row in rows), rows
    text = "\n".join("\n".join(rows) for _, rows in shown.values())
    for name in ("1,048,576", "999 GB", "mxfp8-g32", "text, vision, tools", "2030-01-31", "-1,000"):
        assert name in text, name
    spaceless = re.sub(r"\s", "", text)
    assert spaceless.count("999,999,999,999") >= 16 or columns == 80
    assert "EADDRINUSE" in text


@pytest.mark.parametrize("columns", [40, 50])
def test_a_narrow_terminal_has_all_of_it_too(columns: int, crowded: CannedGateway) -> None:
    listings = ("models", "list", "status", "key list")
    with screen(*listings, command=COMMAND, url=crowded.url, columns=columns, lines=400) as seen:
        assert seen.exit_status() == 0
    shown = _sections(seen.text)
    assert {verb: status for verb, (status, _) in shown.items()} == dict.fromkeys(listings, "0")
    assert "…" not in seen.text
    for verb, names in (
        ("models", IDS),
        ("list", IDS),
        ("status", (*IDS, *HOSTS)),
        ("key list", ("laptop", LONG)),
    ):
        rows = shown[verb][1]
        # What is said of a name stands beside it or below it, and is indented there.
        named = "".join(row.split()[0] for row in rows if row[:1].strip())
        assert all(name in named for name in names), rows
        assert all(row in ("", row[:columns].rstrip()) for row in rows)
    stated = "\n".join(shown["status"][1])
    for text in (
        "pid 4194304",
        "context 1,048,576",
        "holds 999 GB",
        "cached 100%",
        "waiting 100000",
    ):
        assert stated.count(text) >= 2, text
    assert stated.count("12.0 GB") == 2
    for text in ("state unloaded", "size 999 GB", "context 1,048,576", "last used 99 d ago"):
        assert "\n".join(shown["models"][1]).count(text) == 2, text
        assert "\n".join(shown["list"][1]).count(text) == 2, text


def test_a_pipe_gets_a_row_a_line(crowded: CannedGateway, tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, *LISTINGS, "config show"],
        env={**environment(crowded.url), "BULKHEAD_CONFIG": _configuration(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "…" not in done.stdout
    shown = _sections(done.stdout)
    for verb, rows_each in (("models", 1), ("list", 1), ("key list", 1), ("usage", 2)):
        heading, *rows = shown[verb][1]
        assert len(rows) == 2 * rows_each, rows
        assert len({len(re.split(r"\s{2,}", row.strip())) for row in rows}) <= 2
        assert any(row.startswith(LONG) for row in rows), heading
    assert sum(row.startswith(LONG) for row in shown["status"][1]) >= 2
    values = shown["config show"][1]
    assert any(row.startswith(f'models."{LONG}".path ') for row in values), values


def test_every_listing_reports_a_dead_gateway(tmp_path: Path) -> None:
    verbs = ("status", "models", "list", "show m", "key list", "usage", "events", "load m", "bench")
    more = {"BULKHEAD_STATE_DIR": str(tmp_path)}
    with screen(*verbs, command=COMMAND, url=NOBODY, columns=120, lines=100, more=more) as seen:
        assert seen.exit_status() == 0
    shown = _sections(seen.text)
    assert {verb: status for verb, (status, _) in shown.items()} == dict.fromkeys(verbs, "3")
    for _, rows in shown.values():
        assert "start one with `bulkhead serve`" in " ".join(rows)


@pytest.mark.parametrize("columns", [80, 200])
def test_a_real_gateway(columns: int, fleet: Gateway, tmp_path: Path) -> None:
    verbs = ("models", "list", "status", "usage", "show broken", "events -n 3", "unload slow")
    more = {"BULKHEAD_STATE_DIR": str(tmp_path)}
    with screen(
        *verbs, command=COMMAND, url=fleet.url, columns=columns, lines=200, more=more
    ) as seen:
        assert seen.exit_status() == 0
    shown = _sections(seen.text)
    assert {verb: status for verb, (status, _) in shown.items()} == dict.fromkeys(verbs, "0")
    assert "…" not in seen.text
    for verb in ("models", "status"):
        assert any(row.startswith("org/my model ") for row in shown[verb][1])


def _sections(text: str) -> dict[str, tuple[str, list[str]]]:
    """Exit status and rows of each verb."""
    shown = {}
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        verb, *rows = part.rstrip().splitlines()
        assert rows[-1].startswith("= "), part
        shown[verb.rstrip()] = (rows[-1][2:].strip(), rows[:-1])
    return shown


def _listed(model_id: str) -> dict[str, Any]:
    return {
        "id": model_id,
        "state": "unloaded",
        "max_model_len": 1_048_576,
        "aliases": ["default", "claude-sonnet-4-5-20250929"],
        "last_used_at": time.time() - 99 * 86400,
    }


def _entry(model_id: str) -> dict[str, Any]:
    return {
        "source": f"owner/{model_id}",
        "ids": [model_id],
        "path": f"/Volumes/Models/{model_id}",
        "size_bytes": 999_000_000_000,
        "quantization": "mxfp8-g32",
        "context_tokens": 1_048_576,
        "abilities": ["text", "vision", "tools"],
        "last_used_at": time.time() - 99 * 86400,
        "state": "unloaded",
    }


def _status() -> dict[str, Any]:
    worker = {
        "pid": 4194304,
        "footprint_bytes": 999_000_000_000,
        "weight_bytes": 999_000_000_000,
        "cache_bytes": 0,
        "buffer_bytes": 0,
        "last_step_age_s": 40000.0,
    }
    model = {
        "state": "unloaded",
        "queue_depth": 100_000,
        "active_requests": 100_000,
        "restarts": 100_000,
        "context_tokens": 1_048_576,
        "floor_bytes": 999_000_000_000,
        "lent_bytes": 999_000_000_000,
        "wanted_bytes": 999_000_000_000,
        "prompt_cache": {"hit_rate": 1.0},
        "worker": worker,
        "last_exit": {
            "at": 0.0,
            "reason": "it ended unexpectedly",
            "code": 1,
            "log_tail": ["x" * 250 + " EADDRINUSE"],
        },
    }
    return {
        "version": "1.0.0",
        "pid": 1,
        "uptime_s": 1e7,
        "state": "serving",
        "memory": {
            "total_bytes": 999_000_000_000,
            "available_bytes": 999_000_000_000,
            "granted_bytes": 0,
        },
        "models": [{"id": identifier, **model} for identifier in IDS],
        "hosts": [
            {
                "name": host,
                "ssh": host,
                "reachable": True,
                "version": "1.0.0",
                "budget_bytes": 12_000_000_000,
                "held_bytes": 999_000_000_000,
                "free_bytes": 0,
                "ranks": 64,
            }
            for host in HOSTS
        ],
    }


def _key(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "models": [LONG, "demo"],
        "priority": -1000,
        "rpm": 1_000_000,
        "tpm": 1_000_000_000,
        "concurrent": 1000,
        "share": 100,
        "created_at": 1.7e9,
        "expires_at": time.mktime((2030, 1, 31, 12, 0, 0, 0, 0, -1)),
    }


def _configuration(folder: Path) -> str:
    file = folder / "config.toml"
    file.write_text(f'[models."{LONG}"]\npath = "demo"\n', "utf-8")
    return str(file)
