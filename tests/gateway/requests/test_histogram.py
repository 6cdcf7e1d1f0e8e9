from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.system.tasks import Histogram

_SECONDS = st.floats(0, 1e6)


@given(
    st.lists(_SECONDS, min_size=1, max_size=20, unique=True).map(sorted),
    st.lists(_SECONDS, max_size=50),
)
def test_each_bucket_has_what_is_at_most_its_bound(
    bounds: list[float], values: list[float]
) -> None:
    histogram = Histogram(tuple(bounds))
    # Values on a bound belong to it.
    values += bounds
    for value in values:
        histogram.observe(value)
    expected = [(bound, sum(number <= bound for number in values)) for bound in bounds]
    assert histogram.buckets() == [*expected, (math.inf, len(values))]
    assert histogram.sum == pytest.approx(sum(values))
