"""Shifts of positions follow their rows."""

from __future__ import annotations

from copy import deepcopy

from mlx_lm.models.cache import KVCache

from worker.mlx_lm.added_caches import RowShifts, shift_row
from worker.mlx_lm.caches import bytes_of
from worker.mlx_lm.row_caches import rows_caches


def test_rows_join_and_leave() -> None:
    shifts = RowShifts.merge([RowShifts([3]), RowShifts(), RowShifts([-5])])
    assert shifts.array.tolist() == [[3], [0], [-5]]
    others = deepcopy(shifts)
    others.filter([2, 0])
    shifts.extend(others)
    assert shifts.array.tolist() == [[3], [0], [-5], [-5], [3]]
    shifts.filter([1, 4])
    assert shifts.array.tolist() == [[0], [3]]
    assert shifts.extract(1).array.tolist() == [[3]]


def test_they_are_no_cache_of_tokens() -> None:
    shifts = RowShifts([3])
    assert shifts.empty()
    assert bytes_of([shifts]) == (0, 0)
    assert rows_caches([shifts]) == [shifts]


def test_the_shift_of_a_single_row() -> None:
    caches = [KVCache(), RowShifts()]
    shift_row(caches, 7)
    assert caches[1].array.tolist() == [[7]]
