from __future__ import annotations

import pytest

from worker.engines.pace import PrefillPace

_TOKENS_PER_S = 1000


@pytest.fixture
def steady_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunks of prompts are those of a machine of always the same speed."""
    observe = PrefillPace.observe

    def observe_steadily(pace: PrefillPace, tokens: int, _seconds: float, context: int = 0) -> bool:
        return observe(pace, tokens, tokens / _TOKENS_PER_S, context)

    monkeypatch.setattr(PrefillPace, "observe", observe_steadily)
