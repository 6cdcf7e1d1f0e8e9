"""Tokenizers with a chat template and special tokens of one's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlx_lm.utils import load_tokenizer

from tests.support.shapes import DEMO

_ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def templated(
    folder: Path,
    template: str,
    tokens: Sequence[str] = (),
    model_type: str = "llama",
    **settings: str,
) -> Any:
    """mlx-lm's wrapper of the demo model's tokenizer with these `tokens` in place of its tags, as
    that of a model of this type; the `settings` go to tokenizer_config.json.
    """
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    first = len(tokenizer["model"]["vocab"])
    special = [each for each in tokenizer["added_tokens"] if each["special"]]
    tokenizer["added_tokens"] = special + [
        {"id": first + at, "content": each, "special": True, **_ADDED}
        for at, each in enumerate(tokens)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((DEMO / "tokenizer_config.json").read_text())
    config |= {"chat_template": template, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(folder)
