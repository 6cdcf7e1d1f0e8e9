"""The configuration in JSON Schema, by which TOML editors complete and check.

Taplo, and Even Better TOML with it, takes it from a first line `#:schema PATH`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.config.keys import (
    DISCOVERY_KEYS,
    GROUP_KEYS,
    GROUPS,
    HOST_KEYS,
    HOSTS,
    KEYS,
    MODEL_KEYS,
    MODELS,
    SECTIONS,
    Definition,
)
from gateway.config.settings import GroupSettings, HostSettings, ModelSettings


def schema() -> dict[str, Any]:
    """Draft 2020-12. What holds between keys can't be said in it."""
    tables = {name: _table(SECTIONS[name].about, keys) for name, keys in KEYS.items()}
    model = _table(ModelSettings.about, MODEL_KEYS)
    tables[HOSTS] = {
        "description": "Other machines by their names.",
        "type": "object",
        "propertyNames": {"minLength": 1},
        "additionalProperties": _table(HostSettings.about, HOST_KEYS),
    }
    tables[MODELS] = {
        "description": "The models by their ids.",
        "type": "object",
        "propertyNames": {"minLength": 1},
        # A table of that name is a model.
        "properties": {
            name: {"anyOf": [_key(each), model]} for name, each in DISCOVERY_KEYS.items()
        },
        "additionalProperties": model,
    }
    tables[GROUPS] = {
        "description": "Groups of models by their names.",
        "type": "object",
        "propertyNames": {"minLength": 1},
        "additionalProperties": _table(GroupSettings.about, GROUP_KEYS),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Bulkhead's configuration",
        **_object(tables),
    }


def _table(about: str, keys: Mapping[str, Definition]) -> dict[str, Any]:
    table = {"description": about, **_object({name: _key(each) for name, each in keys.items()})}
    if required := [each.name for each in keys.values() if each.required]:
        table["required"] = required
    return table


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _key(definition: Definition) -> dict[str, Any]:
    said = {
        "description": f"{definition.key.about} {definition.expectation}",
        **definition.kind.schema(),
    }
    if definition.default is not None:
        default = definition.default
        said["default"] = list(default) if isinstance(default, tuple) else default
    if (example := definition.key.example) is not None:
        said["examples"] = [list(example) if isinstance(example, tuple) else example]
    return said
