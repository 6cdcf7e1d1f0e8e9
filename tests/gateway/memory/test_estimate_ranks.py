"""What a model takes that several ranks of this machine compute."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from safetensors import safe_open

from gateway.memory.estimate.estimate import Estimate, estimate, model_key
from gateway.memory.estimate.options import Options
from gateway.memory.estimate.ranks import part_of
from gateway.system.memory import BackEnd
from gateway.system.memory_reading import Footprint, together
from tests.support.shapes import DEMO

PROCESS = 50_000_000
ALONE = Options()
TWO = Options(ranks=2, ranks_here=2)


def _estimate(options: Options) -> Estimate:
    return estimate(DEMO, 1024, 512, PROCESS, None, BackEnd.CPU, options)


def test_every_rank_is_a_process_and_has_the_embedding_whole() -> None:
    alone, two = _estimate(ALONE), _estimate(TWO)
    with safe_open(DEMO / "model.safetensors", framework="numpy") as file:
        outside = [each for each in file.keys() if ".layers." not in each]  # noqa: SIM118
        outside_bytes = sum(file.get_tensor(each).nbytes for each in outside)
    assert two.weight_bytes == alone.weight_bytes + outside_bytes
    assert two.process_bytes == 2 * PROCESS
    assert two.working_bytes == 2 * alone.working_bytes
    # The heads are divided.
    assert two.shape == alone.shape
    assert sum(each.bytes for each in two.lines) == two.floor_bytes


def test_one_rank_in_each_memory_takes_its_part_alone() -> None:
    here = _estimate(msgspec.structs.replace(TWO, ranks_here=1))
    both = _estimate(TWO)
    assert both.weight_bytes == 2 * here.weight_bytes
    assert both.process_bytes == 2 * here.process_bytes
    assert both.token_bytes == 2 * here.token_bytes


@pytest.mark.parametrize(
    ("config", "ranks", "split", "expected"),
    [
        # Of five layers the first of two ranks has three.
        ({"num_hidden_layers": 5}, 2, "pipeline", (0.6, 0.6)),
        ({"num_hidden_layers": 5}, 4, "tensor", (0.25, 0.25)),
        # A latent can't be divided.
        ({"num_hidden_layers": 5, "kv_lora_rank": 8}, 4, "tensor", (0.25, 1.0)),
    ],
)
def test_the_part_of_the_rank_that_has_most(
    config: dict[str, Any], ranks: int, split: Any, expected: tuple[float, float]
) -> None:
    part = part_of(config, ranks, split)
    assert (part.weights, part.cache) == expected


def test_measurements_are_of_as_many_ranks() -> None:
    keys = {model_key(DEMO, None, each) for each in (ALONE, TWO, Options(ranks=4, ranks_here=4))}
    assert len(keys) == 3


def test_footprints_add_up_and_of_cards_the_fullest_counts() -> None:
    assert together([Footprint(3, 4), Footprint(5, 6)]) == Footprint(8, 10)
    assert together([Footprint(3, None, 7), Footprint(5, None, 9)]) == Footprint(8, None, 9)
