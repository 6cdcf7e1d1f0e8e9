"""What was proven of a model's cached prompts adds up over its workers, until a clear."""

from __future__ import annotations

from pathlib import Path

from gateway.workers.cache_failures import CacheFailures
from gateway.workers.cache_proof import CacheProof
from protocol.life import CacheProven, CacheQuarantined

QUARANTINED = CacheQuarantined(blocks=3, blocks_bytes=300, source="", why="")


def test_proofs_add_up(tmp_path: Path) -> None:
    proof = CacheProof("m", CacheFailures(tmp_path / "failures.json"))
    assert proof.state is None
    proof.record_proven(CacheProven(blocks=2, tokens=0))
    proof.record_proven(CacheProven(blocks=1, tokens=512))
    assert proof.state is not None
    assert (proof.state.proven_blocks, proof.state.proven_tokens) == (3, 512)
    assert proof.state.last_at > 0


def test_a_clear_forgets_what_was_wrong(tmp_path: Path) -> None:
    proof = CacheProof("m", CacheFailures(tmp_path / "failures.json"))
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


def test_a_cache_that_is_off_stays_off_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "failures.json"
    for expected in (1, 2):
        proof = CacheProof("m", CacheFailures(path))
        proof.record_proven(CacheProven(blocks=8, tokens=0, failures=1, off=expected == 2))
        assert proof.failures == expected
    later, other = (CacheProof(model_id, CacheFailures(path)) for model_id in ("m", "n"))
    assert later.state is not None
    assert (later.state.failures, bool(later.state.off)) == (2, True)
    assert (other.failures, other.state) == (0, None)
    later.clear()
    assert CacheProof("m", CacheFailures(path)).failures == 0
