"""`python -m bench.guesses`: tokens a second with guesses over those without.

Engines of a worker in this process, one that guesses and one that doesn't, take turns with whole
answers. Where mlx-lm's batch generator can make the same text, it takes turns with them. The first
round isn't counted. Prompts aren't either: the time begins when all rows have their first token.
With `--shape 8b` the models are of eight billion weights in 4 bits, for a GPU.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.generate import BatchGenerator
from mlx_lm.models import qwen3

from bench.copying import EIGHT_BILLION, copying_prompt, make_copying_model
from bench.machine import describe_machine
from bench.models import random_qwen3
from gateway.config.model_folders import DEMO_FOLDER
from protocol.requests import Constraint, Generate, Sampling, TextPrompt
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import CacheRoom, Context, measure
from worker.engines.row_computer import make_draft
from worker.engines.sequence import Sequence, Token
from worker.load.loading import LoadedModel, load
from worker.prompt_cache.path import Paths
from worker.runtime.prompts import PreparedRequest, prepare
from worker.runtime.warm import WarmUp
from worker.sampling.settings import RowSampling

_CONTEXT_TOKENS: Final = 2048
# A model has so many times the layers of its draft model, or the draft model has so many of those
# of a large model.
_DEEP: Final = 8
_SHALLOW_LAYERS: Final = 3
_DRAFT_TOKENS: Final = 7
_PROMPT_TOKENS: Final = 32
_LEAST_ID: Final = 10
_LARGEST_ID: Final = 600
_KEYS: Final = [f"key_number_{index}" for index in range(10)]
_OBJECT: Final = Constraint(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {key: {"enum": [1, 2, 3]} for key in _KEYS},
            "required": _KEYS,
            "additionalProperties": False,
        }
    ),
)


class Model(NamedTuple):
    """A model with an engine that guesses, whose steps are measured, and one that doesn't."""

    model: Any
    guessing: BatchedEngine
    plain: BatchedEngine


class Case(NamedTuple):
    """Answers: `rows` makes the sequences of so many rows. `greedy`: mlx-lm can make them."""

    name: str
    model: Model
    rows: Callable[[int], list[Sequence]]
    greedy: bool = False


@dataclass
class Run:
    """The texts of all rows, and the tokens after each row's first one with their seconds."""

    texts: dict[str, list[int]]
    tokens: int = 0
    seconds: float = 0.0
    right: int = 0
    wrong: int = 0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@dataclass
class Measured:
    """The runs of one case with so many rows, round by round."""

    case: Case
    rows: int
    guessing: list[Run] = field(default_factory=list)
    plain: list[Run] = field(default_factory=list)
    mlx_lm: list[Run] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.guesses", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--tokens", type=int, default=192, metavar="N", help="of an answer")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4], metavar="N")
    parser.add_argument("--shape", choices=["8b"], help="large models, for a GPU")
    parsed = parser.parse_args()
    print(f"{describe_machine()}; {parsed.tokens} tokens, medians of {parsed.rounds - 1} rounds\n")
    with tempfile.TemporaryDirectory() as name:
        _print_head()
        for case in (_large if parsed.shape else _small)(Path(name), parsed):
            measured = [Measured(case, rows) for rows in parsed.rows]
            for number in range(parsed.rounds):
                for item in measured:
                    _take_turns(item, backwards=number % 2 == 1)
            _print(measured)
    return 0


def _small(folder: Path, parsed: argparse.Namespace) -> Iterator[Case]:
    tokens, most_rows = parsed.tokens, max(parsed.rows)
    copying, demo = map(_read, (make_copying_model(folder / "copying"), DEMO_FOLDER))
    yield Case("copied", _model(copying.model, most_rows), partial(_copied, tokens), greedy=True)
    model = _model(demo.model, most_rows, ends=demo.eos_token_ids)
    yield Case("predicted", model, _predicted(model, partial(_free, tokens)), greedy=True)
    yield Case("never right", model, _mistaken(model, partial(_free, tokens, sampled=True)))
    yield Case("ten keys", model, partial(_objects, demo, tokens))
    drafted = _deepened(demo.config, demo.model, _DEEP * len(demo.model.layers))
    yield from _drafted(drafted, demo.model, tokens, most_rows)


def _large(folder: Path, parsed: argparse.Namespace) -> Iterator[Case]:
    tokens, most_rows = parsed.tokens, max(parsed.rows)
    copying = _read(make_copying_model(folder / "copying", EIGHT_BILLION, bits=4))
    yield Case("copied", _model(copying.model, most_rows), partial(_copied, tokens), greedy=True)
    model = _model(random_qwen3(EIGHT_BILLION), most_rows)
    yield Case("never right", model, _mistaken(model, partial(_free, tokens, sampled=True)))
    small = random_qwen3({**EIGHT_BILLION, "num_hidden_layers": _SHALLOW_LAYERS})
    deep = _deepened(vars(small.args), small, EIGHT_BILLION["num_hidden_layers"])
    yield from _drafted(deep, small, tokens, most_rows)


def _drafted(model: Any, draft: Any, tokens: int, most_rows: int) -> Iterator[Case]:
    """Texts that don't repeat themselves, with a draft model that is always right, and with one
    that never is.
    """
    for name, drafter in (("drafted", draft), ("drafted wrong", _Rolled(draft))):
        made = _model(model, most_rows, drafter)
        yield Case(name, made, partial(_free, tokens, sampled=True))


class _Rolled:
    """A model that holds another token for the likeliest."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        return mx.roll(self._model(tokens, cache=cache), 1, axis=-1)


def _deepened(config: dict[str, Any], model: Any, layers: int) -> Any:
    """A Qwen3 that makes the same text with more layers: the others add nothing."""
    arguments = qwen3.ModelArgs.from_dict({**config, "num_hidden_layers": layers})
    deep = qwen3.Model(arguments)
    deep.set_dtype(model.model.norm.weight.dtype)
    for layer in deep.layers[len(model.layers) :]:
        for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
            linear.weight = mx.zeros_like(linear.weight)
    if isinstance(model.layers[0].mlp.up_proj, nn.QuantizedLinear):
        nn.quantize(deep, group_size=64, bits=4)
    deep.load_weights(tree_flatten(model.parameters()), strict=False)
    mx.eval(deep.parameters())
    return deep


def _read(folder: Path) -> LoadedModel:
    return load(str(folder), lambda _done, _total: None, lambda: False)


def _model(model: Any, most_rows: int, drafter: Any = None, *, ends: Iterable[int] = ()) -> Model:
    caches = Caches(model)
    room = CacheRoom(measure(caches.run, caches.make))
    draft = None if drafter is None else make_draft(model, drafter, _DRAFT_TOKENS)
    guessing, plain = (
        BatchedEngine(model, ends, most_rows, room, guesses=guesses, draft=draft)
        for guesses in (True, False)
    )
    for engine in (guessing, plain):
        warming = WarmUp(engine, None, room, _CONTEXT_TOKENS, _LARGEST_ID)
        warming.start(awaited=False)
        while not warming.is_over:
            warming.go_on(lambda: False)
    return Model(model, guessing, plain)


def _copied(tokens: int, rows: int) -> list[Sequence]:
    return [_sequence(index, copying_prompt(tokens, seed=index), tokens) for index in range(rows)]


def _free(tokens: int, rows: int, *, sampled: bool = False) -> list[Sequence]:
    """Answers to prompts of random tokens. Sampled ones are so hot that they don't repeat
    themselves.
    """
    made = []
    for index in range(rows):
        draw = random.Random(index)
        prompt = [draw.randrange(_LEAST_ID, _LARGEST_ID) for _ in range(_PROMPT_TOKENS)]
        made.append(_sequence(index, prompt, tokens, RowSampling(index, 1.5) if sampled else None))
    return made


def _sequence(
    at: int, prompt: list[int], tokens: int, sampling: RowSampling | None = None
) -> Sequence:
    return Sequence(f"row {at}", prompt, tokens, sampling, ignore_eos=True)


def _objects(model: LoadedModel, tokens: int, rows: int) -> list[Sequence]:
    made = []
    for index in range(rows):
        generate = Generate(
            request_id=f"row {index}",
            prompt=TextPrompt("An object: "),
            sampling=Sampling(seed=index, temperature=1.0),
            max_tokens=2 * tokens,
            constraint=_OBJECT,
        )
        paths = Paths(b"", None, needs_snapshots=False)
        prepared = prepare(generate, model, Context(_CONTEXT_TOKENS), paths)
        assert isinstance(prepared, PreparedRequest)
        made.append(replace(prepared.sequence, path=None))
    return made


def _predicted(
    model: Model, make: Callable[[int], list[Sequence]]
) -> Callable[[int], list[Sequence]]:
    """Sequences whose answers are predicted: by the text of a run without guesses."""
    return _with_predictions(model, make, lambda text: text)


def _mistaken(
    model: Model, make: Callable[[int], list[Sequence]]
) -> Callable[[int], list[Sequence]]:
    """Sequences with a guess for each token, always a wrong one: each three tokens of the answer
    stand in the prediction, and another token after them than in the answer.
    """

    def mislead(text: list[int]) -> list[int]:
        stretches = zip(text, text[1:], text[2:], text[3:], strict=False)
        wrong = ((*stretch, _other(token)) for *stretch, token in stretches)
        return [number for stretch in wrong for number in stretch]

    return _with_predictions(model, make, mislead)


def _other(token: int) -> int:
    return _LEAST_ID if token != _LEAST_ID else _LEAST_ID + 1


def _with_predictions(
    model: Model,
    make: Callable[[int], list[Sequence]],
    predict: Callable[[list[int]], list[int]],
) -> Callable[[int], list[Sequence]]:
    found: dict[int, list[Sequence]] = {}

    def rows(count: int) -> list[Sequence]:
        if count not in found:
            texts = _run(model.plain, make(count)).texts
            found[count] = [
                replace(values, prediction=tuple(predict(texts[values.request_id])))
                for values in make(count)
            ]
        return found[count]

    return rows


def _take_turns(measured: Measured, *, backwards: bool) -> None:
    case, rows = measured.case, measured.case.rows(measured.rows)
    turns = [
        lambda: measured.guessing.append(_run(case.model.guessing, rows)),
        lambda: measured.plain.append(_run(case.model.plain, rows)),
    ]
    if case.greedy:
        turns.append(lambda: measured.mlx_lm.append(_run_mlx_lm(case.model.model, rows)))
    for turn in reversed(turns) if backwards else turns:
        turn()


def _run(engine: BatchedEngine, rows: list[Sequence]) -> Run:
    for row in rows:
        engine.add(row)
    return _timed(rows, engine.step, lambda: engine.active + engine.waiting > 0)


def _run_mlx_lm(model: Any, rows: list[Sequence]) -> Run:
    generator = BatchGenerator(model, completion_batch_size=len(rows))
    uids = generator.insert(
        [row.token_ids for row in rows], max_tokens=[values.max_tokens for values in rows]
    )
    names = dict(zip(uids, (row.request_id for row in rows), strict=True))
    left = set(uids)

    def step() -> list[Token]:
        made = generator.next()[1]
        left.difference_update(item.uid for item in made if item.finish_reason is not None)
        return [Token(names[item.uid], item.token, item.finish_reason, 0) for item in made]

    run = _timed(rows, step, lambda: bool(left))
    generator.close()
    return run


def _timed(
    rows: list[Sequence], step: Callable[[], list[Token]], goes_on: Callable[[], bool]
) -> Run:
    run = Run({row.request_id: [] for row in rows})
    began: float | None = None
    while goes_on():
        made = step()
        for token in made:
            run.texts[token.request_id].append(token.token_id)
            run.right += token.guessed
            run.wrong += token.rejected
        if began is not None:
            run.tokens += len(made)
            run.seconds = time.perf_counter() - began
        elif all(run.texts.values()):
            began = time.perf_counter()
    return run


def _print_head() -> None:
    heads = "rows | guesses, tokens/s | none | ratio | mlx-lm | ratio | right | wrong | same text"
    print(f"| answers | {heads} |")
    print("| --- |" + " ---: |" * 9)


def _print(measured: list[Measured]) -> None:
    for item in measured:
        guessing, plain = _rate(item.guessing), _rate(item.plain)
        cells = [f"{guessing:.0f}", f"{plain:.0f}", f"{guessing / plain:.2f}", "", ""]
        if item.mlx_lm:
            cells[3:] = [f"{_rate(item.mlx_lm):.0f}", f"{guessing / _rate(item.mlx_lm):.2f}"]
        last, texts = item.guessing[-1], item.plain[-1].texts
        same = sum(last.texts[name] == text for name, text in texts.items())
        cells += [str(last.right), str(last.wrong), f"{same} of {item.rows}"]
        print(f"| {item.case.name} | {item.rows} | {' | '.join(cells)} |", flush=True)


def _rate(runs: list[Run]) -> float:
    return statistics.median(run.rate for run in runs[1:])


if __name__ == "__main__":
    sys.exit(main())
