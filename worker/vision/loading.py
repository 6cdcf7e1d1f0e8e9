"""A folder of files to a model that looks at pictures, as far as mlx-vlm knows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from worker import mlx_vlm
from worker.vision.model import VisionModel
from worker.vision.processor import PictureProcessor

_PARTS: Final = ("vision_config", "vision_tower", "mm_vision_tower")


class NoVisionError(Exception):
    """A model that can't look at pictures; the text says why."""


def load_vision(folder: Path) -> tuple[VisionModel, dict[str, Any], PictureProcessor]:
    """The model, whose weights are read when they are used; its configuration; its processor.

    Raises:
        NoVisionError: mlx-vlm doesn't know it, or it has no eyes.
        Exception: its files can't be understood; architectures fail in as many ways as they have.
    """
    config = json.loads((folder / "config.json").read_text("utf-8"))
    kind = mlx_vlm.kind_of(config)
    if not any(config.get(each) for each in _PARTS):
        raise NoVisionError(f"a model of type {kind} has no part that looks at pictures")
    if config.get("model_file") is not None:
        raise NoVisionError("its files bring code of their own, which is not run")
    if not mlx_vlm.knows(kind):
        raise NoVisionError(f"mlx-vlm doesn't know models of type {kind}")
    model = mlx_vlm.read_model(folder)
    if not hasattr(model, "language_model") or not hasattr(model, "get_input_embeddings"):
        raise NoVisionError(f"models of type {kind} answer in a way that isn't supported")
    processor = mlx_vlm.read_processor(folder)
    return VisionModel(model), config, PictureProcessor(processor, config)
