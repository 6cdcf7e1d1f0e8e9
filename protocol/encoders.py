"""Which configurations are of encoders, whose tokens see all of a text and which write none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# Values of model_type whose module in mlx-embeddings has another name, or the same.
ENCODERS: Final = {
    "bert": "bert",
    "roberta": "xlm_roberta",
    "xlm-roberta": "xlm_roberta",
    "camembert": "xlm_roberta",
    "modernbert": "modernbert",
    # mlx-embeddings has none of these; named here, they are refused for what they are.
    "albert": "",
    "deberta-v2": "",
    "distilbert": "",
    "electra": "",
    "gte": "",
    "mpnet": "",
    "new": "",
    "nomic_bert": "",
}
# Decoders by their name, which the files turn into encoders.
_TURNED: Final = {"gemma3_text": "gemma3_text"}


def encoder_of(config: Mapping[str, Any]) -> str | None:
    """The module of an encoder, empty if there is none; None: it is no encoder."""
    kind = config.get("model_type")
    if config.get("use_bidirectional_attention") and kind in _TURNED:
        return _TURNED[kind]
    return ENCODERS.get(kind) if isinstance(kind, str) else None
