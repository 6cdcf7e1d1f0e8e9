"""One pass over all rows gives each what its own settings ask for."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.sampling.reference import distribution, filtered
from worker.sampling import batch as batch_module
from worker.sampling.batch import BatchSampler
from worker.sampling.distribution import Filters, _largest
from worker.sampling.settings import RowSampling

SETTINGS = {
    "temperature": RowSampling(1, 0.7),
    "hot": RowSampling(2, 1.8),
    "top_p": RowSampling(3, 1.0, top_p=0.8),
    "wide top_p": RowSampling(4, 1.3, top_p=0.99),
    "top_k": RowSampling(5, 1.0, top_k=7),
    "min_p": RowSampling(6, 1.2, min_p=0.1),
    "top_p and top_k": RowSampling(7, 0.9, top_p=0.7, top_k=30),
    "top_k below top_p": RowSampling(8, 0.9, top_p=0.95, top_k=4),
    "all": RowSampling(9, 1.4, top_p=0.9, top_k=25, min_p=0.05),
}


def _sampler(rows: Sequence[RowSampling | None]) -> BatchSampler[int]:
    sampler = BatchSampler[int](lambda: range(len(rows)))
    for index, sampling in enumerate(rows):
        sampler.add(index, sampling)
    return sampler


def _normalised(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _random_logprobs(vocabulary: int, scale: float, rows: int = 1, seed: int = 1) -> mx.array:
    key = mx.random.key(seed)
    return _normalised(mx.random.normal((rows, vocabulary), key=key) * scale)


def _chi_square(drawn: Sequence[int], probabilities: Sequence[float]) -> tuple[float, int]:
    """The statistic and its degrees of freedom; what is expected less than five times is one."""
    counts = [0] * len(probabilities)
    for index in drawn:
        counts[index] += 1
    classes = [[0.0, 0.0]]
    for count, probability in zip(counts, probabilities, strict=True):
        expected = probability * len(drawn)
        if expected >= 5.0:
            classes.append([float(count), expected])
        else:
            classes[0][0] += count
            classes[0][1] += expected
    if classes[0][1] < 5.0:
        assert classes[0][0] <= 20
        del classes[0]
    return sum((seen - mean) ** 2 / mean for seen, mean in classes), len(classes) - 1


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize(("vocabulary", "scale"), [(64, 1.5), (100, 2.0), (4224, 3.0)])
def test_tokens_come_as_often_as_they_should(
    vocabulary: int, scale: float, on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds are fixed: it fails always or never. 4224 is drawn from in blocks, 100 has none."""
    monkeypatch.setattr(batch_module, "_on_cpu", lambda: on_cpu)
    logprobs = _random_logprobs(vocabulary, scale)
    names = list(SETTINGS)
    copies = 100 if vocabulary < 1000 else 40
    together = copies * len(names)
    sampler = _sampler(
        [
            RowSampling(**{**vars(SETTINGS[names[i % len(names)]]), "seed": i})
            for i in range(together)
        ]
    )
    drawn: dict[str, list[int]] = {name: [] for name in names}
    for _ in range(12):
        tokens = sampler(mx.broadcast_to(logprobs, (together, vocabulary))).tolist()
        for index, token in enumerate(tokens):  # type: ignore[arg-type]
            drawn[names[index % len(names)]].append(token)
    for name, sampling in SETTINGS.items():
        expected = distribution(logprobs[0], sampling)
        assert not [index for index in drawn[name] if expected[index] == 0.0], name
        statistic, freedom = _chi_square(drawn[name], expected)
        # Wilson and Hilferty: the cube root is nearly normal; 4 is one in 30,000.
        spread = 2 / (9 * max(freedom, 1))
        deviation = ((statistic / max(freedom, 1)) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
        assert freedom > 0
        assert deviation < 4, name


LOGIT = st.one_of(
    st.just(-math.inf),
    st.sampled_from([-3.0, 0.0, 0.5, 1.0]),
    st.floats(-30, 30, width=32),
)
SAMPLING = st.builds(
    RowSampling,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.one_of(st.sampled_from([1e-6, 1.0]), st.floats(0.05, 5.0)),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    top_k=st.one_of(st.just(0), st.integers(2, 15)),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 1.0)),
    position=st.integers(0, 1000),
)


@st.composite
def _rows(draw: st.DrawFn) -> tuple[mx.array, list[RowSampling | None]]:
    """Log probabilities of 1 to 6 rows in a type of models, repeated into a larger vocabulary."""
    rows = draw(st.integers(1, 6))
    logits = draw(
        st.lists(
            st.lists(LOGIT, min_size=16, max_size=16).filter(lambda row: max(row) > -math.inf),
            min_size=rows,
            max_size=rows,
        )
    )
    kind = draw(st.sampled_from([mx.float32, mx.bfloat16, mx.float16]))
    copies = draw(st.sampled_from([1, 1, 9, 512]))
    logprobs = _normalised(mx.tile(mx.array(logits), (1, copies)).astype(kind))
    samplings = draw(st.lists(st.one_of(st.none(), SAMPLING), min_size=rows, max_size=rows))
    return logprobs, samplings


@given(_rows(), st.booleans())
@settings(deadline=None)
def test_filtered_tokens_are_never_chosen(
    given_rows: tuple[mx.array, list[RowSampling | None]], on_cpu: bool
) -> None:
    logprobs, samplings = given_rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_module, "_on_cpu", lambda: on_cpu)
        tokens = _sampler(samplings)(logprobs)
    assert tokens.dtype == mx.uint32
    for row, (token, sampling) in enumerate(zip(tokens.tolist(), samplings, strict=True)):  # type: ignore[arg-type]
        values = logprobs[row].astype(mx.float32)
        values = values - mx.logsumexp(values)
        chosen = values[token].item()
        assert chosen > -math.inf  # type: ignore[operator]
        if sampling is None:
            assert chosen == values.max().item()
            continue
        above = values > chosen
        # To the rounding of sums: a token on the very border may be either.
        mass_above = mx.where(above, mx.exp(values), 0).sum().item()
        assert mass_above < sampling.top_p + 1e-5  # type: ignore[operator]
        assert not sampling.top_k or above.sum().item() < sampling.top_k  # type: ignore[operator]
        least = values.max().item() + math.log(sampling.min_p or 1e-300)  # type: ignore[operator]
        assert chosen >= least - 1e-5  # type: ignore[operator]


@given(st.integers(0, 1000), st.sampled_from([40, 64, 704]), st.floats(0.1, 8.0))
@settings(max_examples=40, deadline=None)
def test_bounds_are_those_of_mlx_lm(seed: int, vocabulary: int, scale: float) -> None:
    logprobs = _random_logprobs(vocabulary, scale, len(SETTINGS), seed)
    samplings = list(SETTINGS.values())
    largest = logprobs.max(axis=-1, keepdims=True)
    bounds = []
    for on_cpu in (True, False):
        filters = Filters(samplings, vocabulary, on_cpu=on_cpu)
        bounds.append(filters.least_allowed(logprobs, largest)[:, 0].tolist())  # type: ignore[index]
    for row, sampling in enumerate(samplings):
        expected = (filtered(logprobs[row], sampling) > -math.inf).tolist()
        values: list[float] = logprobs[row].tolist()  # type: ignore[assignment]
        for least in bounds:
            allowed = [value >= least[row] for value in values]  # type: ignore[index,operator]
            # Sums differ in their last bits: a token that is on the border may be either.
            assert sum(a != b for a, b in zip(allowed, expected, strict=True)) <= (  # type: ignore[arg-type]
                sampling.top_p < 1.0
            )


@pytest.mark.parametrize("vocabulary", [97, 704, 16384])
@pytest.mark.parametrize("count", [1, 5, 64, 97])
def test_the_largest_of_a_row(vocabulary: int, count: int) -> None:
    """Whether they are looked for in all of it, or in some of its blocks; with ties."""
    for values in (
        _random_logprobs(vocabulary, 3.0, 4),
        mx.round(_random_logprobs(vocabulary, 3.0, 4)),
    ):
        expected = mx.sort(values, axis=-1)[:, -count:]
        assert mx.array_equal(_largest(values, count), expected)


def test_almost_no_temperature_is_greedy() -> None:
    logprobs = _random_logprobs(512, 3.0, 8)
    tokens = _sampler([RowSampling(seed, 1e-6) for seed in range(8)])(logprobs)
    assert tokens.tolist() == mx.argmax(logprobs, axis=-1).tolist()


def test_nothing_but_numbers_that_are_none_ends_no_batch() -> None:
    """A model that computes NaN for one row: the others go on."""
    logprobs = mx.concatenate([mx.full((1, 64), math.nan), _random_logprobs(64, 3.0)])
    for sampling in SETTINGS.values():
        broken, sound = _sampler([sampling, sampling])(logprobs).tolist()  # type: ignore[misc]
        assert 0 <= broken < 64
        (alone,) = _sampler([sampling])(logprobs[1:]).tolist()  # type: ignore[misc]
        assert sound == alone


def test_a_row_is_the_same_whoever_shares_its_batch() -> None:
    chance = random.Random(1)
    rows: list[RowSampling | None] = [*SETTINGS.values(), None, *SETTINGS.values()]
    for vocabulary, scale in ((704, 0.5), (704, 4.0), (8192, 3.0)):
        steps = [_random_logprobs(vocabulary, scale, len(rows), step) for step in range(6)]
        alone = []
        for index, row in enumerate(rows):
            sampler = _sampler([row])
            alone.append([int(sampler(step[index : index + 1]).item()) for step in steps])
        present = list(range(len(rows)))
        together = BatchSampler[int](lambda present=present: present)  # type: ignore[misc]
        for index, row in enumerate(rows):
            together.add(index, row)
        drawn: dict[int, list[int]] = {index: [] for index in present}
        # All keep their positions, whatever their order in the batch and how many are left.
        for number, step in enumerate(steps):
            if number == 3:
                for gone in chance.sample(present, 5):
                    present.remove(gone)
                    together.remove(gone)
            chance.shuffle(present)
            tokens = together(step[mx.array(present)]).tolist()
            for index, token in zip(present, tokens, strict=True):  # type: ignore[arg-type]
                drawn[index].append(token)
        for index, tokens in drawn.items():
            assert tokens == alone[index][: len(tokens)]
        assert {len(values) for values in drawn.values()} == {3, 6}


def test_a_row_that_goes_on_elsewhere() -> None:
    steps = [_random_logprobs(704, 3.0, 1, step) for step in range(10)]
    for sampling in SETTINGS.values():
        sampler = _sampler([sampling])
        whole = [sampler(step).item() for step in steps]
        for cut in (1, 4, 9):
            rest = _sampler([sampling.again_after(cut)])
            assert [rest(step).item() for step in steps[cut:]] == whole[cut:]


def test_rows_that_nobody_announced() -> None:
    with pytest.raises(RuntimeError, match="3 rows are to be sampled, not 2"):
        _sampler([None, None])(_random_logprobs(64, 1.0, 3))
