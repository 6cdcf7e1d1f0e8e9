"""What a process prints is read once, whoever reads it."""

from __future__ import annotations

import os
import threading

import pytest

from gateway.workers.worker_log import OutputPipe


@pytest.fixture
def pipe() -> tuple[int, int]:
    """Where a process prints to, and where that is read."""
    read, write = os.pipe()
    return write, read


def test_lines_come_one_by_one(pipe: tuple[int, int]) -> None:
    write, read = pipe
    os.write(write, b"one\r\n10%\r20%\r\nno end")
    os.close(write)
    assert list(OutputPipe(read).lines()) == ["one", "10%", "20%", "no end"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)


def test_a_line_without_an_end_is_cut(pipe: tuple[int, int]) -> None:
    write, read = pipe
    os.write(write, b"x" * 20_000)
    os.close(write)
    lines = list(OutputPipe(read).lines())
    assert "".join(lines) == "x" * 20_000
    assert len(lines) > 1


def test_another_goes_on_in_the_middle_of_a_line(pipe: tuple[int, int]) -> None:
    write, read = pipe
    for_the_next = os.dup(read)
    first = OutputPipe(read)
    found: list[str] = []
    arrived = threading.Event()

    def read_lines() -> None:
        for line in first.lines():
            found.append(line)
            arrived.set()

    reader = threading.Thread(target=read_lines)
    reader.start()
    os.write(write, b"whole\nbeg")
    assert arrived.wait(60)
    first.stop()
    reader.join(60)
    os.write(write, b"un\nlast")
    os.close(write)
    assert found == ["whole"]
    assert list(OutputPipe(for_the_next, first.rest).lines()) == ["begun", "last"]
    # There is nobody to be told any more.
    first.stop()
