"""Chunks of prefill are bounded in time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.chunks import LARGEST_TOKENS, LARGEST_TOKENS_ON_CPU
from worker.engines.pace import PrefillPace


@given(
    speeds=st.lists(st.floats(0.5, 1e6), min_size=1, max_size=30),
    rows=st.integers(1, 8),
    largest=st.sampled_from([LARGEST_TOKENS, LARGEST_TOKENS_ON_CPU]),
    decoding=st.booleans(),
)
def test_a_chunk_never_takes_longer_than_its_bound(
    speeds: list[float], rows: int, largest: int, *, decoding: bool
) -> None:
    pace = PrefillPace(largest, alone_s=1.0, beside_decoding_s=0.2)
    for tokens_per_s in speeds:
        pace.observe(1000, 1000 / tokens_per_s)
        chunk = pace.chunk(rows, decoding)
        assert 16 <= chunk <= largest
        assert chunk & (chunk - 1) == 0
        bound_s = 0.2 if decoding else 1.0
        assert chunk == 16 or chunk * rows / tokens_per_s <= bound_s


def test_a_steady_speed_is_used() -> None:
    pace = PrefillPace(alone_s=1.0)
    chunks = []
    for _ in range(6):
        pace.observe(100, 0.1)
        chunks.append(pace.chunk(1, decoding=False))
    assert chunks[-1] == 512
    assert chunks == sorted(chunks)


def test_a_short_prompt_that_took_the_fixed_cost_of_a_step_says_nothing_of_the_speed() -> None:
    pace = PrefillPace(alone_s=1.0)
    pace.observe(5, 0.01)
    assert pace.chunk(1, decoding=True) == 64
    pace.observe(1000, 0.1)
    pace.observe(5, 0.01)
    assert pace.chunk(1, decoding=True) == 256


def test_a_machine_too_slow_for_its_chunk_is_believed_however_small_the_chunk() -> None:
    pace = PrefillPace(beside_decoding_s=0.2)
    pace.observe(40, 2.0)
    assert pace.chunk(1, decoding=True) == 16
