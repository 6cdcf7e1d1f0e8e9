"""Sampling depends on the request alone."""

from __future__ import annotations

import mlx.core as mx
import pytest

from protocol.messages import Sampling
from worker.sampling import KeyedSampler, SamplingDefaults, make_sampler

VOCABULARY = 16
LOGPROBS = mx.log(mx.softmax(mx.arange(VOCABULARY, dtype=mx.float32)[None] / 4))


def _sampler(**fields: float | int) -> KeyedSampler:
    sampling = Sampling(**{"seed": 1, "temperature": 1.0, **fields})  # type: ignore[arg-type]
    sampler = make_sampler(sampling, SamplingDefaults(), VOCABULARY)
    assert sampler is not None
    return sampler


def _draw(sampler: KeyedSampler, count: int = 200) -> list[int]:
    return [int(sampler(LOGPROBS).item()) for _ in range(count)]


def test_a_seed_repeats_whatever_else_is_drawn() -> None:
    expected = _draw(_sampler())
    mx.random.seed(99)
    disturbed, other = _sampler(), _sampler(seed=2)
    drawn = []
    for _ in range(200):
        drawn.append(int(disturbed(LOGPROBS).item()))
        other(LOGPROBS)
        mx.random.uniform()
    assert drawn == expected


def test_neighbouring_seeds_differ() -> None:
    assert len({tuple(_draw(_sampler(seed=seed), 20)) for seed in range(20)}) == 20


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [({"top_k": 3}, {13, 14, 15}), ({"top_p": 0.3}, {14, 15}), ({"min_p": 0.75}, {14, 15, 13})],
)
def test_filters_bound_what_can_be_drawn(fields: dict[str, float], allowed: set[int]) -> None:
    drawn = set(_draw(_sampler(**fields)))
    assert 1 < len(drawn) <= len(allowed)
    assert drawn <= allowed


def test_the_distribution_is_drawn_from() -> None:
    drawn = _draw(_sampler(), 2000)
    share = sum(each == 15 for each in drawn) / len(drawn)
    assert abs(share - float(mx.exp(LOGPROBS[0, 15]).item())) < 0.04


def test_a_top_k_of_everything_filters_nothing() -> None:
    assert _draw(_sampler(top_k=VOCABULARY)) == _draw(_sampler())


def test_greedy_where_the_temperature_is_0() -> None:
    greedy = SamplingDefaults(temperature=0.0)
    assert make_sampler(Sampling(seed=1), greedy, VOCABULARY) is None
    assert make_sampler(Sampling(seed=1, temperature=0.5), greedy, VOCABULARY) is not None


def test_a_position_to_begin_with() -> None:
    expected = _draw(_sampler(), 50)
    for position in (1, 7, 49):
        sampling = Sampling(seed=1, temperature=1.0)
        late = make_sampler(sampling, SamplingDefaults(), VOCABULARY, position)
        assert late is not None
        assert _draw(late, 50 - position) == expected[position:]
