"""The group of ranks that compute with mlx.distributed, and the split of a model between them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from protocol.life import Ranks, RankSplit
from protocol.messages import PROTOCOL_VERSION
from protocol.model_files import undivided
from worker.mlx_lm.macos import evaluate_apart
from worker.mlx_lm.models import splits_of, splittable
from worker.system.errors import ModelError, one_sentence


def versions() -> dict[str, str]:
    """The versions that must be the same in all ranks."""
    return {"protocol": PROTOCOL_VERSION, "mlx": version("mlx"), "mlx-lm": version("mlx-lm")}


def join(ranks: Ranks, rank: int) -> Any:
    """Make a group with the other ranks. Waits until all ranks are there.

    Raises:
        ModelError: MLX has no such back end here, or the ranks can't reach each other.
    """
    if not mx.distributed.is_available(ranks.backend):
        raise ModelError(
            f'backend: MLX has no "{ranks.backend}" on this machine: ring is everywhere, jaccl '
            "where there is RDMA over Thunderbolt, nccl with CUDA."
        )
    with (
        tempfile.TemporaryDirectory(prefix="bulkhead-ranks-") as folder,
        _environment(_variables(ranks, rank, Path(folder))),
    ):
        try:
            group = mx.distributed.init(strict=True, backend=ranks.backend)
        except RuntimeError as error:
            raise ModelError(
                f"The ranks can't reach each other: {one_sentence(error)}", permanent=False
            ) from error
    if group.size() != ranks.size or group.rank() != rank:
        raise ModelError(
            f"mlx.distributed made a group of {group.size()} with rank {group.rank()}, and not "
            f"rank {rank} of {ranks.size}."
        )
    return group


def _variables(ranks: Ranks, rank: int, folder: Path) -> dict[str, str]:
    """The environment variables that mlx.launch would set for this rank."""
    first = ranks.addresses[0][0]
    variables = {"MLX_RANK": str(rank)}
    match ranks.backend:
        case "ring":
            return {**variables, "MLX_HOSTFILE": _file(folder / "hosts.json", ranks.addresses)}
        case "jaccl":
            devices = _file(folder / "devices.json", ranks.devices)
            return {**variables, "MLX_IBV_DEVICES": devices, "MLX_JACCL_COORDINATOR": first}
        case "nccl":
            host, _, port = first.rpartition(":")
            return {
                **variables,
                "MLX_WORLD_SIZE": str(ranks.size),
                "NCCL_HOST_IP": host,
                "NCCL_PORT": port,
            }


def _file(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables in the `with` block, in which the group is made. Afterwards their
    old values are restored, since the files that they name are gone.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def split_model(model: Any, config: dict[str, Any], group: Any, split: RankSplit) -> None:
    """Reduce a model, whose weights aren't read yet, to the part of this rank.

    Raises:
        ModelError: mlx-lm can't split the model in this way.
    """
    kind = str(config.get("model_type"))
    splits = splits_of(model)
    if split not in splits:
        raise ModelError(_refusal(kind, split, next(iter(splits), None)))
    try:
        if split == "tensor" and (reason := undivided(config, group.size())) is not None:
            raise ValueError(reason)
        splits[split](group)
        if not mx.cuda.is_available():
            # Commands on CUDA have no time limit that a wait for other ranks could exceed.
            evaluate_apart(model)
    except (ValueError, RuntimeError) as error:
        raise ModelError(
            f'split: a {kind} can\'t be split over {group.size()} ranks by "{split}": '
            f"{one_sentence(error)}"
        ) from error


def _refusal(kind: str, split: str, other: str | None) -> str:
    if other is not None:
        return f'split: mlx-lm can\'t split a {kind} by "{split}", but it can by "{other}".'
    return (
        f"mlx-lm can't split a {kind} over ranks. Those that it can, by tensors: "
        f"{', '.join(splittable())}."
    )
