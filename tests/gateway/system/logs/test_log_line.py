from __future__ import annotations

import json
import logging
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.system.log_lines import (
    about,
    as_json,
    escaped,
    human,
    parsed,
    readable,
    stamp,
    structured,
)


def _record(
    text: str, *arguments: object, number: int = logging.INFO, **extra: object
) -> logging.LogRecord:
    return logging.getLogger("gateway.test").makeRecord(
        "gateway.test", number, "", 0, text, arguments, None, extra=about(**extra)
    )


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def test_a_message_with_its_fields() -> None:
    record = _record(
        "worker %d hangs", 7, number=logging.ERROR, model="größe/eins", pid=7, code=None
    )
    record.created = 1000.25
    line = as_json(structured(record))
    assert json.loads(line) == {
        "time": "1970-01-01T00:16:40.250Z",
        "level": "error",
        "logger": "gateway.test",
        "message": "worker 7 hangs",
        "model": "größe/eins",
        "pid": 7,
    }
    assert readable(line) == "1970-01-01 00:16:40 ERROR   worker 7 hangs"


def test_an_event_is_told_by_its_fields() -> None:
    record = _record(
        "exit", event="exit", model="größe/eins", id=3, reason='it said "no"\nand went', after_s=1.5
    )
    line = structured(record)
    assert "message" not in line
    assert (line["event"], line["id"], line["after_s"]) == ("exit", 3, 1.5)
    assert human(line).endswith(
        r'INFO    event=exit model=größe/eins reason="it said \"no\"\nand went" after_s=1.500'
    )


def test_no_field_can_pass_for_the_level_or_the_time() -> None:
    given = {"time": "never", "level": "debug", "logger": "other", "message": "other", "pid": 7}
    line = structured(_record("text", number=logging.ERROR, **given))
    assert line.pop("time") != "never"
    assert line == {"level": "error", "logger": "gateway.test", "message": "text", "pid": 7}


def test_a_traceback_is_part_of_the_line() -> None:
    record = _record("it failed")
    try:
        raise ValueError("a\x1b[2Jb")
    except ValueError:
        record.exc_info = sys.exc_info()
    line = as_json(structured(record))
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ValueError: a\x1b[2Jb")
    first, second, *_, last = readable(line).splitlines()
    assert first.endswith("it failed")
    assert second == "  Traceback (most recent call last):"
    assert last == r"  ValueError: a\x1b[2Jb"


@given(
    st.text(),
    st.dictionaries(
        st.one_of(st.text(), st.sampled_from(["event", "exception", "message"])),
        st.one_of(st.text(), st.integers(-(2**63), 2**63), st.floats(), st.lists(st.text())),
    ),
)
def test_whatever_is_logged_is_one_line_without_control_characters(
    message: str, values: dict[str, object]
) -> None:
    record = _record("%s", message)
    record.fields = values
    line = structured(record)
    text = as_json(line)
    assert text.isascii()
    assert text.isprintable()
    assert parsed(text) == json.loads(text)
    assert all(word.isprintable() for word in human(line).split("\n"))


@given(st.text())
def test_control_characters_are_written_out(text: str) -> None:
    assert escaped(text).isprintable()
    if text.isprintable():
        assert escaped(text) == text


def test_other_lines_stay_as_they_are() -> None:
    for text in ("Traceback (most recent call last):", "", "[1]", '{"a": 1}', '{"time": 1}'):
        assert parsed(text) is None
        assert readable(text) == text


def test_a_line_with_a_time_that_is_none() -> None:
    assert readable('{"time": "soon", "level": "info", "message": "m"}') == "soon INFO    m"


@given(st.integers(0, 4_000_000_000_000), st.integers(0, 4_000_000_000_000))
def test_stamps_sort_as_times_do(first_ms: int, second_ms: int) -> None:
    first, second = stamp(first_ms / 1000), stamp(second_ms / 1000)
    assert len(first) == len(second)
    assert (first < second) == (first_ms < second_ms)
