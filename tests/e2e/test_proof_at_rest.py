"""A real worker at rest proves the prompts that requests found."""

from __future__ import annotations

import pytest

from tests.support.gateway import Gateway, eventually

# Some hundred tokens, so that the prompt has whole blocks.
LONG = "The quick brown fox jumps over the lazy dog. " * 40


@pytest.mark.slow
def test_a_prompt_that_was_found_is_proven_at_rest() -> None:
    gateway = Gateway()
    for _ in range(2):
        body = {"model": "demo", "prompt": LONG, "max_tokens": 4}
        answer = gateway.client.post("/v1/completions", json=body).raise_for_status().json()
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    eventually(lambda: (gateway.model()["cache_proof"] or {}).get("proven_tokens"), within_s=240)
    proof = gateway.model()["cache_proof"]
    assert proof["proven_blocks"] > 0
    assert (proof["failures"], proof["quarantined_blocks"], proof["off"]) == (0, 0, "")
    assert gateway.stop() == 0, gateway.log
