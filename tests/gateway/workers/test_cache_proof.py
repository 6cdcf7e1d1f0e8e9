"""What was proven of a model's cached prompts adds up over its workers, until a clear."""

from __future__ import annotations

from gateway.workers.cache_proof import CacheProof
from protocol.life import CacheProven, CacheQuarantined

QUARANTINED = CacheQuarantined(blocks=3, blocks_bytes=300, source="", why="")


def test_proofs_add_up() -> None:
    proof = CacheProof()
    assert proof.state is None
    proof.record_proven(CacheProven(blocks=2, tokens=0))
    proof.record_proven(CacheProven(blocks=1, tokens=512))
    assert proof.state is not None
    assert (proof.state.proven_blocks, proof.state.proven_tokens) == (3, 512)
    assert proof.state.last_at > 0


def test_a_clear_forgets_what_was_wrong() -> None:
    proof = CacheProof()
    proof.clear()
    for off in (False, True):
        proof.record_quarantined(QUARANTINED)
        proof.record_proven(CacheProven(blocks=8, tokens=0, failures=1, off=off))
    assert proof.state is not None
    assert (proof.failures, proof.state.quarantined_blocks) == (2, 6)
    assert "a clear of the prompt cache turns it on again" in proof.state.off
    proof.clear()
    assert (proof.failures, proof.state.quarantined_blocks, proof.state.off) == (0, 0, "")
    assert (proof.state.proven_blocks, proof.quarantined_blocks) == (16, 6)
