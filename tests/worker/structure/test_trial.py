"""The process in which a grammar is tried."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from llguidance import LLMatcher

from worker.structure import trial
from worker.structure.trial import try_grammar


def test_a_process_that_has_touched_a_gpu_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork(*_: Any) -> int:
        raise AssertionError("CPython forks")

    monkeypatch.setattr(subprocess, "_fork_exec", fork)
    found = try_grammar(LLMatcher.grammar_from_json_schema('{"type": "object"}'))
    assert found.refusal is None
    assert found.bytes >= 0


def test_memory_is_watched_where_the_kernel_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_LOOK_S", 0.001)
    grammar = LLMatcher.grammar_from_json_schema('{"type": "object"}')
    assert try_grammar(grammar).refusal is None
    monkeypatch.setattr(trial, "_MEMORY_BYTES", 1 << 20)
    assert try_grammar(grammar).refusal == "it is too complex, and takes too much memory to compile"


def test_the_wait_for_a_slow_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_LONGEST_S", 0.0)
    found = try_grammar(LLMatcher.grammar_from_json_schema('{"type": "object"}'))
    assert found.refusal == "it takes too long to compile"
