"""What a request asks of sampling, and the numbers that its choices are made with."""

from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.requests import Sampling, SamplingDefaults
from worker.sampling.settings import RowSampling, make_row_sampling, uniforms

VOCABULARY = 16
DEFAULTS = SamplingDefaults()
AUTHOR = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1)


def test_settings_of_the_request_override_those_of_the_author() -> None:
    sampling = Sampling(seed=5, temperature=1.5, top_p=0.5, top_k=3, min_p=0.2)
    assert make_row_sampling(sampling, AUTHOR, 100, 7) == RowSampling(5, 1.5, 0.5, 3, 0.2, 7)
    assert make_row_sampling(Sampling(seed=5), AUTHOR, 100) == RowSampling(5, 0.6, 0.9, 20, 0.1)


@pytest.mark.parametrize(
    ("sampling", "defaults"),
    [
        (Sampling(seed=1), SamplingDefaults(temperature=0.0)),
        (Sampling(seed=1, temperature=0.0), DEFAULTS),
        (Sampling(seed=1, temperature=1e-9), DEFAULTS),
        (Sampling(seed=1, top_k=1), DEFAULTS),
    ],
)
def test_greedy(sampling: Sampling, defaults: SamplingDefaults) -> None:
    assert make_row_sampling(sampling, defaults, VOCABULARY) is None


@pytest.mark.parametrize(
    "defaults",
    [
        SamplingDefaults(top_k=VOCABULARY),
        SamplingDefaults(top_k=-1),
        SamplingDefaults(top_p=0.0),
        SamplingDefaults(top_p=3.0),
        SamplingDefaults(min_p=-0.5),
    ],
)
def test_settings_that_filter_nothing(defaults: SamplingDefaults) -> None:
    assert make_row_sampling(Sampling(seed=1), defaults, VOCABULARY) == RowSampling(1)


def test_a_least_share_beyond_1_leaves_the_likeliest() -> None:
    sampling = make_row_sampling(Sampling(seed=1), SamplingDefaults(min_p=7.0), VOCABULARY)
    assert sampling is not None
    assert sampling.min_p == 1.0


@given(st.integers(0, 2**64 - 1), st.integers(0, 1000), st.integers(0, 1000))
def test_numbers_go_on_where_they_were(seed: int, first: int, more: int) -> None:
    whole = RowSampling(seed)
    rest = whole.again_after(first).again_after(more)
    assert rest.position == first + more
    assert rest.stream() == whole.stream()


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**20), st.floats(1e-30, 1e30))
def test_a_number_never_reaches_either_end(stream: int, position: int, total: float) -> None:
    total_float32 = mx.array(total, dtype=mx.float32)
    for number in uniforms(stream, position):
        part = mx.array(number, dtype=mx.float32) * total_float32
        assert 0.0 < part.item() < total_float32.item()  # type: ignore[operator]


def test_the_largest_and_the_least_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for mixed in (0, 2**64 - 1):
        monkeypatch.setattr("worker.sampling.settings._splitmix64", lambda _, mixed=mixed: mixed)
        for number in uniforms(0, 0):
            for total in (1.0, 1.0000001, 1.9999999, 3e-20, 7e19):
                whole = mx.array(total, dtype=mx.float32)
                part = mx.array(number, dtype=mx.float32) * whole
                assert 0.0 < part.item() < whole.item()  # type: ignore[operator]


def test_neighbouring_seeds_and_positions_differ() -> None:
    streams = [RowSampling(seed).stream() for seed in range(50)]
    drawn = {uniforms(stream, position) for stream in streams for position in range(50)}
    assert len(drawn) == 2500
