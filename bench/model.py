"""A copy of a model that never ends an answer by itself.

mlx_lm.server has no `ignore_eos`, so all three subjects serve a model without an end-of-sequence
token: each stream then makes exactly the tokens that it is asked for. Nor has it a template, by
which mlx_lm.server would look for calls of tools in what it samples, and fail on some: nobody chats
with it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from bench.results import FailedError

# An empty list stands for "none"; a missing key would be filled in from the tokenizer's class.
_REPLACED: Final[dict[str, dict[str, object]]] = {
    "config.json": {"eos_token_id": []},
    "generation_config.json": {"eos_token_id": []},
    "tokenizer_config.json": {"eos_token": None, "chat_template": None},
    "special_tokens_map.json": {"eos_token": None},
}
_TEMPLATE: Final = "chat_template.*"


def copy_without_end(model: Path, copy: Path) -> None:
    """Fill the folder `copy`; whatever needs no change becomes a link.

    Raises:
        FailedError: `model` is not a model folder.
    """
    if not (model / "config.json").is_file():
        raise FailedError(f"{model} is not a model folder: it has no config.json.")
    copy.mkdir()
    for source in model.resolve().iterdir():
        if source.match(_TEMPLATE):
            continue
        target = copy / source.name
        if source.name in _REPLACED:
            content = json.loads(source.read_text("utf-8"))
            target.write_text(json.dumps({**content, **_REPLACED[source.name]}), "utf-8")
        else:
            target.symlink_to(source)
