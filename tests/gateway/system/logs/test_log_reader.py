"""Files, a writer that rotates them, and a reader beside it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.system.log_files import OLDER_FILES, LogReader, RotatedFile, rotated_paths
from gateway.system.log_lines import stamp
from tests.support.folders import short_folder

FILE_BYTES = 200


class Writer:
    """Numbers its lines; their lengths differ."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written: list[str] = []
        self._file = self._open()

    def write(self, length: int) -> None:
        line = f"{len(self.written)} {'x' * length}"
        self.written.append(line)
        self._file.handle(logging.LogRecord("test", logging.INFO, "", 0, line, None, None))

    def restart(self) -> None:
        self._file.close()
        self._file = self._open()

    def close(self) -> None:
        self._file.close()

    def _open(self) -> RotatedFile:
        return RotatedFile(self.path, pytest.fail, file_bytes=FILE_BYTES)


@contextmanager
def _folder() -> Iterator[Path]:
    """Hypothesis runs many examples within one of pytest's."""
    with short_folder() as folder:
        yield Path(folder)


def _everything(reader: LogReader) -> list[str]:
    lines: list[str] = []
    while new := reader.read():
        lines += new
    return lines


STEPS = st.lists(
    st.one_of(st.integers(0, 90), st.sampled_from(["read", "read all", "restart"])), max_size=60
)


@given(before=st.lists(st.integers(0, 90), max_size=20), count=st.integers(0, 20), steps=STEPS)
def test_every_line_once_whatever_is_rotated_meanwhile(
    before: list[int], count: int, steps: list[int | str]
) -> None:
    with _folder() as folder:
        writer = Writer(folder / "a.log")
        for length in before:
            writer.write(length)
        with LogReader(writer.path) as reader:
            read = reader.last(count)
            kept = "".join(
                rotated_path.read_text()
                for rotated_path in reversed(rotated_paths(writer.path))
                if rotated_path.exists()
            ).splitlines()
            assert read == kept[max(0, len(kept) - count) :]
            first = len(writer.written) - len(read)

            # As far behind as a reader may be: within the files that are kept.
            unread_bytes = 0
            for step in steps:
                if step == "restart":
                    writer.restart()
                elif step == "read":
                    read += reader.read()
                elif step == "read all" or unread_bytes > FILE_BYTES:
                    read += _everything(reader)
                    unread_bytes = 0
                if isinstance(step, int):
                    writer.write(step)
                    unread_bytes += step
            assert read + _everything(reader) == writer.written[first:]
        writer.close()


@given(lengths=st.lists(st.integers(0, 90), min_size=10, max_size=40))
def test_reading_in_the_middle_of_each_rotation(lengths: list[int]) -> None:
    read: list[str] = []
    rename = os.rename
    with _folder() as folder, LogReader(folder / "a.log") as reader:

        def rename_and_read(*arguments: str) -> None:
            read.extend(_everything(reader))
            rename(*arguments)
            read.extend(_everything(reader))
            with LogReader(folder / "a.log") as another:
                last = another.last(3)
            # The newest that are there, without a gap and without doubles.
            assert last == (written := writer.written[:-1])[len(written) - len(last) :]

        with mock.patch("os.rename", rename_and_read):
            writer = Writer(folder / "a.log")
            for length in lengths:
                writer.write(length)
            writer.close()
        assert read + _everything(reader) == writer.written


def test_a_reader_beside_a_writer_that_never_pauses(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.log")
    read: list[str] = []
    # The writer is ahead by no more than what is kept.
    room = threading.Semaphore(8)

    def write() -> None:
        for number in range(3000):
            assert room.acquire(timeout=30)
            writer.write(number % 40)

    with LogReader(writer.path) as reader:
        thread = threading.Thread(target=write)
        thread.start()
        while thread.is_alive() or len(read) < len(writer.written):
            new = reader.read()
            read += new
            for _ in new:
                room.release()
        thread.join()
    writer.close()
    assert read == writer.written


def test_a_reader_that_is_too_slow_misses_lines_but_none_comes_twice(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.log")
    writer.write(10)
    with LogReader(writer.path) as reader:
        for _ in range(100):
            writer.write(50)
        numbers = [int(line.split()[0]) for line in _everything(reader)]
    writer.close()
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 100
    assert len(numbers) > OLDER_FILES


def test_a_log_that_comes_later(tmp_path: Path) -> None:
    with LogReader(tmp_path / "a.log") as reader:
        assert (reader.last(10), reader.read()) == ([], [])
        writer = Writer(tmp_path / "a.log")
        writer.write(1)
        assert reader.read() == writer.written
    writer.close()


def test_an_unfinished_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\ntw")
    with LogReader(path) as reader, path.open("a") as file:
        assert reader.last(10) == ["one"]
        assert reader.read() == []
        file.write("o\nthree\n")
        file.flush()
        assert reader.read() == ["two", "three"]


def test_a_log_that_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\ntwo\n")
    with LogReader(path) as reader:
        path.write_text("new\n")
        assert reader.read() == ["new"]


@pytest.mark.parametrize("length", [10, 65535, 65536, 200_000])
def test_lines_longer_than_a_block(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.log"
    lines = ["", "a" * length, "b", "ü" * length, ""]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    with LogReader(path) as reader:
        assert reader.last(None) == lines
    with LogReader(path) as reader:
        assert reader.last(2) == lines[-2:]


def test_since_begins_at_a_time_and_keeps_what_has_none(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    lines = [f"{stamp(1.0)} a", f"{stamp(2.0)} b", "torn", f'{{"time": "{stamp(3.0)}", "c": 1}}']
    path.write_text("\n".join([*lines, ""]))
    for since, number, expected in (
        (stamp(1.0), None, lines),
        (stamp(1.001), None, lines[1:]),
        (stamp(2.5), None, lines[2:]),
        (stamp(4.0), None, []),
        (stamp(1.0), 1, lines[-1:]),
    ):
        with LogReader(path) as reader:
            assert reader.last(number, since) == expected
