"""Masses are exponentials, whichever way they are computed."""

from __future__ import annotations

import math

import mlx.core as mx
import pytest

from worker.sampling.distribution import masses

TEMPERATURES = mx.array([[0.1], [0.7], [1.0], [4.0]])


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("least_allowed", [None, mx.array([[-2.0], [-math.inf], [0.0], [-30.0]])])
def test_of_all_magnitudes(on_cpu: bool, least_allowed: mx.array | None) -> None:
    logprobs = mx.broadcast_to(mx.linspace(-100.0, 0.0, 4001), (4, 4001))
    largest = mx.zeros((4, 1))
    made = masses(logprobs, largest, 1 / TEMPERATURES, least_allowed, on_cpu=on_cpu)
    for row, temperature in enumerate([0.1, 0.7, 1.0, 4.0]):
        least = -math.inf if least_allowed is None else least_allowed[row].item()
        for logprob, mass in zip(logprobs[row].tolist(), made[row].tolist(), strict=True):  # type: ignore[arg-type]
            if logprob < least:  # type: ignore[operator]
                assert mass == 0.0
                continue
            exact = math.exp(logprob / temperature)  # type: ignore[operator]
            assert mass == pytest.approx(exact, rel=5e-5, abs=2e-38)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_impossible_tokens_have_no_mass(on_cpu: bool) -> None:
    logprobs = mx.array([[0.0, -math.inf, -1e30]])
    one = mx.ones((1, 1))
    made = masses(logprobs, mx.zeros((1, 1)), one * 1e6, None, on_cpu=on_cpu)[0].tolist()
    assert made[0] == 1.0  # type: ignore[index]
    assert all(0.0 <= item < 1e-37 for item in made[1:])  # type: ignore[index,union-attr]
