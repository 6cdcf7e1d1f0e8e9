"""A LoRA adapter on top of a model, in the format that mlx-lm trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from mlx_lm.utils import load_adapters

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapters.safetensors"


class AdapterError(ValueError):
    """Why a folder can't be used as an adapter, in one sentence."""


def check_adapter(folder: Path) -> None:
    """Find what is wrong with the files before mlx-lm does, whose errors name keys alone.

    Raises: AdapterError.
    """
    if not folder.is_dir():
        raise AdapterError(f"There is no folder {folder} for the adapter.")
    config = folder / CONFIG
    if not config.is_file():
        raise AdapterError(f"{folder} has no {CONFIG}: it is not an adapter's folder.")
    try:
        content = json.loads(config.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(f"{config} can't be read: {error}") from error
    if not isinstance(content, dict):
        raise AdapterError(f"{config} must be an object.")
    if "peft_type" in content:
        raise AdapterError(
            f"{folder} is an adapter of PEFT, which mlx-lm doesn't read: it wants those that "
            "mlx_lm.lora trains."
        )
    _check_fields(config, content)
    if not (folder / WEIGHTS).is_file():
        raise AdapterError(f"{folder} has no {WEIGHTS}.")


def add_adapter(model: Any, folder: Path) -> None:
    """Change a model's layers in place; the arrays are read when they are computed.

    Raises:
        AdapterError: it was made for another model.
    """
    try:
        load_adapters(model, str(folder))
    except (KeyError, TypeError, ValueError) as error:
        text = " ".join(str(error).split())
        raise AdapterError(
            f"The adapter in {folder} doesn't match the model: {text or type(error).__name__}"
        ) from error
    # The new layers would drop out, as in training.
    model.eval()


def _check_fields(config: Path, content: dict[str, Any]) -> None:
    if content.get("fine_tune_type", "lora") == "full":
        return
    for key, kind in (("num_layers", int), ("lora_parameters", dict)):
        if not isinstance(content.get(key), kind):
            raise AdapterError(f"{config}: {key} is {content.get(key)!r}.")
