"""Places of models on disks that may not answer."""

from __future__ import annotations

import threading
import time

import pytest

from gateway.config import places
from tests.support.faults import no_threads


def _refuses() -> str:
    raise ValueError("There is no model folder b.")


def test_each_place_has_its_answer_or_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_ANSWER_S", 0.2)
    answers, made = threading.Event(), []

    def hangs() -> str:
        made.append(1)
        answers.wait(30)
        return "/dead"

    looks = {"a": lambda: "/a", "b": _refuses, "dead": hangs}
    asked = places.Places()
    for _ in range(2):
        found = asked.locate(looks)
        assert found["a"] == "/a"
        assert str(found["b"]) == "There is no model folder b."
        assert str(found["dead"]).startswith("dead did not answer within ")
    assert len(made) == 1, "and nobody asks again while it hangs"
    answers.set()
    deadline = time.monotonic() + 30
    while isinstance(asked.locate(looks)["dead"], ValueError):
        assert time.monotonic() < deadline


def test_without_threads_nothing_can_be_looked_at() -> None:
    with no_threads():
        (sentence,) = places.Places().locate({"a": lambda: "/a"}).values()
    assert "a can't be looked at" in str(sentence)
