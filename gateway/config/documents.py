"""Documents made from the definitions of the keys: an example, a JSON schema, tables in Markdown.

If the first line of a TOML file is `#:schema PATH`, Taplo checks the file by that JSON schema, and
so does the editor extension Even Better TOML. `python -m gateway.config.documents` prints the
tables of docs/configuration.md.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from gateway.config.key import Section, toml_text, written_value
from gateway.config.model_folders import DEMO_ID
from gateway.config.model_settings import (
    COMMAND_KEYS,
    GroupSettings,
    HostSettings,
    ModelSettings,
    UpstreamSettings,
)
from gateway.config.settings import Settings
from gateway.config.tables import HEADINGS, MODELS, KeyDefinition, about, keys_of
from gateway.system.notation import TIME_PATTERN

_COLUMNS: Final = 78
_COMMAND: Final = "[models.whisper]"
_NAMES: Final[dict[type[Section], str]] = {
    HostSettings: "[hosts.studio2]",
    UpstreamSettings: "[upstreams.box]",
    ModelSettings: f"[models.{toml_text(DEMO_ID)}]",
    GroupSettings: "[groups.coding]",
}
# The example has these tables as comments, as there may be no other machine, and no models to
# group.
_NOT_IN_FORCE: Final = (HostSettings, UpstreamSettings, GroupSettings)


def example() -> str:
    """A valid configuration file in TOML, which serves the demo model with all defaults."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from _comment("Bulkhead's configuration. Every key may be left out: these are defaults.")
    yield from _comment('Times are seconds, or text such as "500ms", "30s", "5m", "2h" or "7d".')
    for heading, section in HEADINGS.items():
        yield from ("", *_comment(about(section)))
        if section is ModelSettings:
            left_out = ("command", *COMMAND_KEYS)
            yield from (_NAMES[section], *_keys(section, without=left_out))
            yield from ("", *_comment("A model that is a command: docs/other-servers.md"))
            of_workers = (name for name in keys_of(section) if name not in left_out)
            yield from _commented((_COMMAND, *_keys(section, without=tuple(of_workers))))
            continue
        lines = (_NAMES.get(section, heading), *_keys(section))
        yield from _commented(lines) if section in _NOT_IN_FORCE else lines


def _commented(lines: Iterable[str]) -> Iterator[str]:
    yield from (line if line.startswith("#") or not line else f"# {line}" for line in lines)


def _keys(section: type[Section], without: tuple[str, ...] = ()) -> Iterator[str]:
    for name, definition in keys_of(section).items():
        if name in without:
            continue
        yield from ("", *_comment(definition.key.about), *_comment(definition.key.expectation))
        yield _assignment(definition)


def _assignment(definition: KeyDefinition) -> str:
    """The line of a key, with its default. A key without a default has its example, as a comment
    unless the key is required. A command without an example would be no command.
    """
    if definition.name == "command":
        return f"{definition.name} = {written_value(definition.key.example)}"
    if definition.default is not None:
        return f"{definition.name} = {written_value(definition.default)}"
    written = f"{definition.name} = {written_value(definition.key.example)}"
    return written if definition.required else f"# {written}  # else {definition.key.unset}"


def _comment(text: str) -> Iterable[str]:
    return textwrap.wrap(
        text, _COLUMNS, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )


def schema() -> dict[str, Any]:
    """The JSON schema of the configuration file, of draft 2020-12. A schema can't express rules
    between keys.
    """
    _, tables = msgspec.json.schema_components([Settings], ref_template="#/$defs/{name}")
    tables = _as_toml(tables)
    top = tables.pop(Settings.__name__)
    model = tables[ModelSettings.__name__]
    del model["required"]
    model["anyOf"] = [{"required": ["path"]}, {"required": ["command"]}]
    del top["properties"]["discovery"]
    # The name of a key in [models] may also be the id of a model.
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
    """`schema` with the values that TOML has: no null, and text as well as numbers for times."""
    match schema:
        case {"anyOf": [only, {"type": "null"}], **details}:
            details.pop("default", None)
            return {**_as_toml(only), **details}
        # Of all numbers only times are described.
        case {"type": "number", "description": _, **details}:
            return {**schema, "type": ["number", "string"], "pattern": TIME_PATTERN}
        case dict():
            return {name: _as_toml(inner) for name, inner in schema.items()}
        case list():
            return list(map(_as_toml, schema))
        case _:
            return schema


def key_tables() -> Iterator[str]:
    """Lines of Markdown, with a Markdown table for each table of the configuration file."""
    for heading, section in HEADINGS.items():
        yield from (f"### `{heading}`", "", about(section), "")
        yield "| key | default | meaning | expected | a reload |"
        yield "| --- | --- | --- | --- | --- |"
        yield from map(_row, keys_of(section).values())
        yield ""


def _row(definition: KeyDefinition) -> str:
    key = definition.key
    default = definition.shown(definition.default)
    if definition.required:
        default = "must be given"
    elif definition.default is not None:
        default = f"`{default}`"
    reload = "needs a restart" if key.restart else "takes it"
    cells = (f"`{definition.name}`", default, key.about, key.expected, reload)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print("\n".join(key_tables()))
