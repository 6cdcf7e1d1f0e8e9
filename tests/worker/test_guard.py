"""What a guard lets pass of a command's output."""

from __future__ import annotations

import os

import pytest

from worker.guard.output import CommandOutput, OutputBound


def test_a_burst_passes_and_a_flood_does_not() -> None:
    bound = OutputBound(0.0)
    line = b"x" * 1024
    passed = sum(len(bound.limit(line, 0.0)) for _ in range(10_000))
    assert passed == 1 << 20
    flood = sum(len(bound.limit(line, index / 1000)) for index in range(20_000))
    assert flood < 20.5 * (256 << 10), "256 KiB a second"
    assert flood > 10 * (256 << 10)


def test_a_flood_of_empty_lines_is_one_too() -> None:
    for end in (b"\n", b"\r"):
        bound = OutputBound(0.0)
        lines = sum(bound.limit(end * 100, index / 1000).count(end) for index in range(20_000))
        assert lines < 60_000, "their number counts too, as each takes time"


def test_dropped_output_is_reported_once() -> None:
    bound = OutputBound(0.0)
    assert bound.limit(b"x" * (2 << 20), 0.0) == b""
    later = bound.limit(b"on", 10.0)
    assert b"2048 KiB" in later
    assert later.endswith(b"on")
    assert bound.limit(b"more", 10.0) == b"more"


def test_looks_at_the_health_path_are_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    lines = (
        b'INFO: 127.0.0.1:5 - "GET /health HTTP/1.1" 200 OK\n',
        b"srv log_server_r: request: GET /health 127.0.0.1 200\n",
        b'INFO: 127.0.0.1:5 - "GET /healthy HTTP/1.1" 404\n',
        b"loaded\n",
    )
    read, write = os.pipe()
    output = CommandOutput(read, "/health")
    os.write(write, b"".join(lines))
    os.close(write)
    assert output.last_line() == "loaded"
    assert capfd.readouterr().out.encode() == b"".join(lines[2:])
