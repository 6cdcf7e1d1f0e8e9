"""Bytes of caches of every architecture, against what mlx-lm's own caches hold."""

from __future__ import annotations

import copy
import importlib
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.models
import pytest
from mlx.utils import tree_map_with_path
from mlx_lm.models.cache import make_prompt_cache

from gateway.memory.caches import cache_shape
from tests.support.architectures import COMPLETE, FORMS, NEED_METAL, PUBLISHED, TINY, WITHOUT_SHAPE

HALF = 2
CHUNK = 2048
# Within a step of the caches, a whole number of steps, and between steps.
TOKENS = [pytest.param(200, marks=pytest.mark.slow), 512, pytest.param(600, marks=pytest.mark.slow)]
# Its compressed entries grow one by one. An estimate has whole steps.
WITHOUT_STEPS = "deepseek_v41"


def _held_bytes(architecture: str, config: dict[str, Any], tokens: int) -> int:
    """The bytes of the caches. MLX knows the shapes of arrays before it computes them, and here
    nothing is computed.
    """
    module = importlib.import_module(f"mlx_lm.models.{architecture}")
    # Some architectures change what they are given.
    model = module.Model(module.ModelArgs.from_dict(copy.deepcopy(config)))
    _convert(model)
    caches = make_prompt_cache(model)
    for begin in range(0, tokens - 1, CHUNK):
        model(mx.zeros((1, min(CHUNK, tokens - 1 - begin)), mx.int32), cache=caches)
    # Windows are cut back to their size with the first token that is generated.
    model(mx.zeros((1, 1), mx.int32), cache=caches)
    return sum(cache.nbytes for cache in caches)


def _convert(model: Any) -> None:
    """To half precision, as mlx-lm's converter does: some parameters stay as they are."""
    may_change = getattr(model, "cast_predicate", lambda _: True)

    def converted(name: str, array: mx.array) -> mx.array:
        changes = may_change(name) and mx.issubdtype(array.dtype, mx.floating)
        return array.astype(mx.bfloat16) if changes else array

    model.update(tree_map_with_path(converted, model.parameters()))


def _check(architecture: str, config: dict[str, Any], tokens: int) -> None:
    if architecture in NEED_METAL and mx.default_device() == mx.cpu:
        pytest.skip("MLX computes it on Metal alone")
    if architecture == WITHOUT_STEPS:
        tokens = 512
    config = {"model_type": architecture, **config}
    expected = _held_bytes(architecture, config, tokens)
    found = cache_shape(config, HALF).sequence_bytes(tokens)
    assert found == pytest.approx(expected, rel=0.05)


def test_every_architecture_has_a_shape_or_a_reason() -> None:
    folder = Path(mlx_lm.models.__path__[0])
    texts = {path.stem: path.read_text() for path in folder.glob("*.py")}
    own = {name for name in texts if re.search(r"^class Model\(", texts[name], re.MULTILINE)}
    assert own <= TINY.keys() | WITHOUT_SHAPE.keys() <= texts.keys()


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("architecture", TINY)
def test_caches_of_every_architecture(architecture: str, tokens: int) -> None:
    _check(architecture, TINY[architecture], tokens)


@pytest.mark.parametrize("name", FORMS)
def test_caches_by_every_form_of_configuration(name: str) -> None:
    _check(*FORMS[name], tokens=600)


@pytest.mark.parametrize("name", PUBLISHED)
def test_caches_of_published_sizes(name: str) -> None:
    _check(*PUBLISHED[name], tokens=8192)


@pytest.mark.parametrize("architecture", COMPLETE)
def test_caches_by_what_files_leave_out(architecture: str) -> None:
    _check(architecture, {}, tokens=512)
