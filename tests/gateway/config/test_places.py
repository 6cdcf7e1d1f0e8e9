"""Places of models on disks that may not answer."""

from __future__ import annotations

import threading
import time

import pytest

from gateway.config import machine_rules as places
from tests.support.faults import no_threads

A, B, DEAD = (places.Sought("path", text) for text in ("a", "b", "dead"))


def _refuses() -> str:
    raise ValueError("There is no model folder b.")


def test_each_place_has_its_answer_or_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_ANSWER_S", 0.2)
    answers, made = threading.Event(), []

    def hangs() -> str:
        made.append(1)
        answers.wait(30)
        return "/dead"

    looks = {A: lambda: "/a", B: _refuses, DEAD: hangs}
    asked = places.Places()
    for _ in range(2):
        found = asked.locate(looks)
        assert found[A] == "/a"
        assert str(found[B]) == "There is no model folder b."
        assert str(found[DEAD]).startswith("dead did not answer within ")
    assert len(made) == 1, "and nobody asks again while it hangs"
    answers.set()
    deadline = time.monotonic() + 30
    while isinstance(asked.locate(looks)[DEAD], ValueError):
        assert time.monotonic() < deadline


def test_same_folder_is_checked_once_per_kind() -> None:
    adapter = places.Sought("adapter", "a")
    found = places.Places().locate({A: lambda: "/a", adapter: _refuses})
    assert found[A] == "/a"
    assert isinstance(found[adapter], ValueError)


def test_without_threads_nothing_can_be_looked_at() -> None:
    with no_threads():
        (sentence,) = places.Places().locate({A: lambda: "/a"}).values()
    assert "a can't be looked at" in str(sentence)
