"""Chunks of prefill are bounded in time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.life import LARGEST_CHUNK_TOKENS, LARGEST_CHUNK_TOKENS_ON_CPU
from worker.engines.pace import PrefillPace


@given(
    speeds=st.lists(st.floats(0.5, 1e6), min_size=1, max_size=30),
    rows=st.integers(1, 8),
    largest=st.sampled_from([LARGEST_CHUNK_TOKENS, LARGEST_CHUNK_TOKENS_ON_CPU]),
    decoding=st.booleans(),
)
def test_a_chunk_never_takes_longer_than_its_bound(
    speeds: list[float], rows: int, largest: int, *, decoding: bool
) -> None:
    pace = PrefillPace(largest, alone_s=1.0, beside_decoding_s=0.2)
    believed = 0.0
    for tokens_per_s in speeds:
        pace.observe(1000, 1000 / tokens_per_s)
        tells_little = 1000 / tokens_per_s <= 0.2 and believed * 0.2 / 2 > 1000
        believed = max(believed, tokens_per_s) if tells_little else tokens_per_s
        chunk = pace.chunk(rows, decoding)
        assert 16 <= chunk <= largest
        assert chunk & (chunk - 1) == 0
        bound_s = 0.2 if decoding else 1.0
        assert chunk == 16 or chunk * rows / believed <= bound_s


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


def test_the_first_chunk_of_a_length_shows_no_speed_if_kernels_are_compiled() -> None:
    pace = PrefillPace(alone_s=1.0, compiles=True)
    assert not pace.observe(64, 45.0)
    assert pace.chunk(1, decoding=False) == 64
    assert pace.observe(64, 0.1)
    assert pace.chunk(1, decoding=False) == 256
    assert not pace.observe(256, 20.0)
    assert pace.observe(256, 1.0)
    assert _speed(pace) == 256


def test_the_scores_of_a_chunk_fit_one_array() -> None:
    pace = PrefillPace(2048, pair_elements=32)
    pace.observe(2048, 0.001)
    chunks = {
        context: [pace.chunk(1, decoding=False, context=context) for _ in range(8)][-1]
        for context in (10_000, 30_000, 100_000, 1_000_000)
    }
    assert chunks == {10_000: 2048, 30_000: 2048, 100_000: 512, 1_000_000: 64}
    assert all(32 * chunk * (context + chunk) < 1 << 31 for context, chunk in chunks.items())
    assert [pace.chunk(4, decoding=False, context=30_000) for _ in range(3)][-1] == 512


def _speed(pace: PrefillPace, *, decoding: bool = False) -> int:
    """The chunk that it settles on."""
    return [pace.chunk(1, decoding) for _ in range(8)][-1]


def test_by_itself_it_keeps_the_loop_for_a_second_and_beside_decoding_for_a_fifth() -> None:
    pace = PrefillPace()
    pace.observe(1024, 1.0)
    assert (_speed(pace), _speed(pace, decoding=True)) == (1024, 128)
    pace.observe(1280, 1.0)
    assert _speed(pace, decoding=True) == 256


def test_chunks_without_time_or_tokens_show_no_speed() -> None:
    for tokens, seconds in ((0, 5.0), (100, 0.0), (0, 0.0), (-1, 5.0), (100, -1.0)):
        pace = PrefillPace()
        pace.observe(tokens, seconds)
        assert _speed(pace) == 64, "nothing is known yet"
    pace = PrefillPace()
    # One token in a long time is one; so is half a second for many.
    pace.observe(1, 0.5)
    assert _speed(pace) == 16
    pace.observe(512, 0.5)
    assert _speed(pace) == 1024


def test_few_tokens_tell_the_speed_only_if_they_took_long_or_were_fast() -> None:
    pace = PrefillPace()
    pace.observe(64, 0.1)
    assert _speed(pace) == 512, "64 are enough to tell"
    pace.observe(63, 0.2)
    assert _speed(pace) == 512, "a fifth of a second may be the fixed cost of a step"
    pace.observe(63, 0.05)
    assert _speed(pace) == 1024, "it was faster than that"
    pace.observe(63, 0.21)
    assert _speed(pace) == 256


def test_a_short_prompt_says_nothing_of_a_long_ones_speed() -> None:
    pace = PrefillPace(beside_decoding_s=0.1)
    for _ in range(4):
        pace.observe(64, 0.1, context=16_000)
        # Behind it, with nothing to look back at.
        pace.observe(160, 0.01)
        assert pace.chunk(1, True, context=16_000) == 64
        assert pace.chunk(1, True) > 64


def test_further_on_a_token_may_take_longer_by_all_that_it_looks_at() -> None:
    pace = PrefillPace(beside_decoding_s=0.1)
    pace.observe(1024, 0.1)
    found = [pace.chunk(1, True, context) for context in (0, 1024, 3000, 7000, 100_000) * 4]
    # They take turns, and none is held to another's chunks.
    assert found[-5:] == [1024, 512, 256, 128, 16]
    pace.observe(16, 0.01, context=100_000)
    assert pace.chunk(1, True, context=100_000) <= 64
    pace.observe(100, 0.1, context=100_000)
    found = [pace.chunk(1, True, 7000) for _ in range(4)]
    assert found[-1] == 128, "what was found further on is no reason to go slower"


def test_old_speeds_of_another_prompt_do_not_count() -> None:
    pace = PrefillPace(beside_decoding_s=0.1)
    pace.observe(2048, 0.1, context=10_000)
    for _ in range(8):
        # Since then the machine has got slow.
        pace.observe(64, 0.4, context=3000)
        pace.chunk(1, True, context=3000)
    assert pace.chunk(1, True, context=10_000) == 16


def test_others_may_leave_less_of_the_bound_beside_decoding() -> None:
    pace = PrefillPace(alone_s=1.0, beside_decoding_s=0.2)
    pace.observe(1280, 1.0)
    settled = [[pace.chunk(1, True, share_s=s) for _ in range(4)][-1] for s in (0.3, 0.1, 0.0)]
    assert settled == [256, 128, 16]
    assert [pace.chunk(1, False, share_s=0.0) for _ in range(4)][-1] == 1024


def test_rows_share_a_chunk() -> None:
    pace = PrefillPace(largest=2048)
    pace.observe(4096, 1.0)
    assert [pace.chunk(2, decoding=False) for _ in range(4)][-1] == 1024
    assert [pace.chunk(0, decoding=False) for _ in range(4)][-1] == 2048
    pace.observe(512, 1.0)
    assert pace.chunk(0, decoding=False) == 512


def test_a_failure_of_the_device_shortens_chunks_until_many_have_gone_well() -> None:
    pace = PrefillPace(largest=2048)
    pace.observe(4096, 1.0)
    assert _speed(pace) == 2048
    for _ in range(40):
        pace.observe(4096, 1.0)
    pace.shorten()
    assert [_speed(pace), pace.chunk(4, decoding=False)] == [512, 128]
    settled = []
    for _ in range(4):
        for _ in range(63):
            pace.observe(4096, 1.0)
        before = _speed(pace)
        pace.observe(4096, 1.0)
        settled.append((before, _speed(pace)))
    assert settled == [(512, 1024), (1024, 2048), (2048, 2048), (2048, 2048)]


def test_a_failure_is_one_of_all_rows_and_chunks_stay_long_enough() -> None:
    pace = PrefillPace(largest=2048)
    pace.shorten()
    assert pace.chunk(1, decoding=False) == 16, "a quarter of the first one"
    pace = PrefillPace(largest=2048)
    pace.observe(4096, 1.0)
    for _ in range(4):
        pace.chunk(2, decoding=False)
    pace.shorten()
    assert _speed(pace) == 512, "a quarter of two rows of 1,024"
    for _ in range(8):
        pace.shorten()
        pace.chunk(1, decoding=False)
    assert _speed(pace) == 16


def test_a_chunk_takes_a_short_rest_of_the_prompts_with_it() -> None:
    pace = PrefillPace(largest=2048, beside_decoding_s=0.1)
    pace.observe(1280, 1.0)
    for left, chunk in ((100, 100), (192, 192), (193, 128), (5000, 128)):
        assert min(pace.chunk(1, True, left=left), left) == chunk, "128 tokens fit"
    assert pace.chunk(8, True, left=19) == 19, "16 tokens are the least"
    pace.observe(100_000, 1.0)
    for _ in range(3):
        assert pace.chunk(1, False, left=2300) <= 2048, "the largest chunk"


def test_groups_of_prompts_grow_where_a_step_has_a_fixed_cost() -> None:
    pace = PrefillPace(beside_decoding_s=0.1)
    rows = 8
    for _ in range(12):
        pace.observe(20 * rows, 0.05 + 20 * rows / 50_000)
        rows = max(count for count in range(1, 101) if pace.fits_chunk(count, 20))
    assert rows == 100, "2,000 tokens take 0.09 s"
    pace.observe(2000, 0.8)
    assert not pace.fits_chunk(20, 20), "the machine has become slow"


def test_prompts_fit_one_chunk_within_its_bound() -> None:
    pace = PrefillPace(largest=2048, beside_decoding_s=0.1)
    assert (pace.fits_chunk(1, 64), pace.fits_chunk(2, 64)) == (True, False), "nothing is measured"
    pace.observe(10_000, 1.0)
    assert [rows for rows in (33, 34) if pace.fits_chunk(rows, 30)] == [33], "1,000 tokens"
    assert [rows for rows in (30, 31) if pace.fits_chunk(rows, 33)] == [30]
    pace.observe(100_000, 1.0)
    assert [rows for rows in (64, 65) if pace.fits_chunk(rows, 32)] == [64], "2,048 tokens"
