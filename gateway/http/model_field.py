"""The field that names the model of a request that is passed on. The server must find no other one:
it may serve models that the client's key doesn't allow.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_plus

import msgspec
from msgspec import Raw

from gateway.http.errors import invalid

# Go's servers ignore the case of a field's name, and PHP's and Node's take brackets for a list.
_SPELLINGS: Final = re.compile(r"[\s\[]*model\s*([\[\]].*)?", re.I | re.S)

# With these OpenRouter and LiteLLM are told of other models, addresses and keys.
_OTHERS: Final = (
    *("models", "fallbacks", "context_window_fallbacks", "content_policy_fallbacks", "model_list"),
    *("preset", "user_config", "api_base", "base_url", "api_key"),
)


def may_mean_model(name: str) -> bool:
    """Whether some server takes a field of this name for `model`."""
    return _SPELLINGS.fullmatch(name) is not None


def set_model(fields: dict[str, Raw], model: str) -> None:
    """Name the model in a JSON object. Raises: Refusal: the object names another one."""
    for name in fields:
        if name != "model" and may_mean_model(name):
            raise invalid(f"{name[:40]!r} may mean the model: send model alone.", "model")
        check_other(name)
    fields["model"] = Raw(msgspec.json.encode(model))


def check_other(field: str) -> None:
    """Raises: Refusal: the field leads to other models than `model`."""
    if field.lower().partition("[")[0] in _OTHERS:
        raise invalid(f"{field[:40]} may lead to another model: send model alone.", field[:40])


def check_query(query: bytes) -> None:
    """Raises: Refusal: the query string names a model."""
    for each in re.split("[&;]", query.decode("latin-1")):
        name = unquote_plus(each.partition("=")[0])
        check_other(name)
        if may_mean_model(name):
            raise invalid("The address has a parameter model: name the model in the body.", "model")
