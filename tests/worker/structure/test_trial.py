"""The process in which a grammar is tried."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from llguidance import LLMatcher

from worker.structure.trial import try_grammar


def test_a_process_that_has_touched_a_gpu_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork(*_: Any) -> int:
        raise AssertionError("CPython forks")

    monkeypatch.setattr(subprocess, "_fork_exec", fork)
    found = try_grammar(LLMatcher.grammar_from_json_schema('{"type": "object"}'))
    assert found.refusal is None
    assert found.bytes >= 0
