"""The configuration in JSON Schema, by which TOML editors complete and check.

Taplo, and Even Better TOML with it, takes it from a first line `#:schema PATH`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.config.keys import MODELS
from gateway.config.settings import ModelSettings, Settings
from gateway.system.notation import TIME_PATTERN


def schema() -> dict[str, Any]:
    """Draft 2020-12. What holds between keys can't be said in it."""
    _, tables = msgspec.json.schema_components([Settings], ref_template="#/$defs/{name}")
    tables = _as_toml(tables)
    top = tables.pop(Settings.__name__)
    del top["properties"]["discovery"]
    # Either the key, or a model of its name.
    top["properties"][MODELS]["properties"] = {
        name: {"anyOf": [key, {"$ref": f"#/$defs/{ModelSettings.__name__}"}]}
        for name, key in tables.pop("DiscoverySettings")["properties"].items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **top,
        "title": "Bulkhead's configuration",
        "$defs": tables,
    }


def _as_toml(schema: Any) -> Any:
    """The same of values as a file has them: TOML knows no null, and times may be text."""
    match schema:
        case {"anyOf": [only, {"type": "null"}], **said}:
            said.pop("default", None)
            return {**_as_toml(only), **said}
        case {"type": "number", **said}:
            return {**said, "type": ["number", "string"], "pattern": TIME_PATTERN}
        case dict():
            return {name: _as_toml(each) for name, each in schema.items()}
        case list():
            return list(map(_as_toml, schema))
        case _:
            return schema
