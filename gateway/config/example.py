"""A complete configuration file with every key, its meaning and its default."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

from gateway.config.keys import HEADINGS, Definition, about, keys_of
from gateway.config.kinds import toml_text, written_value
from gateway.config.models import DEMO_ID
from gateway.config.settings import GroupSettings, HostSettings, ModelSettings, Section

_COLUMNS: Final = 78
_NAMES: Final[dict[type[Section], str]] = {
    HostSettings: "[hosts.studio2]",
    ModelSettings: f"[models.{toml_text(DEMO_ID)}]",
    GroupSettings: "[groups.coding]",
}
# There may be no other machine, and no models to group.
_NOT_IN_FORCE: Final = (HostSettings, GroupSettings)


def example() -> str:
    """TOML that is valid as it is: it serves the embedded model with all defaults."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from _comment("Bulkhead's configuration. Every key may be left out: these are defaults.")
    yield from _comment('Times are seconds, or text such as "500ms", "30s", "5m", "2h" or "7d".')
    for heading, section in HEADINGS.items():
        yield from ("", *_comment(about(section)))
        lines = (_NAMES.get(section, heading), *_keys(section))
        if section in _NOT_IN_FORCE:
            yield from (each if each.startswith("#") or not each else f"# {each}" for each in lines)
        else:
            yield from lines


def _keys(section: type[Section]) -> Iterator[str]:
    for definition in keys_of(section).values():
        yield from ("", *_comment(definition.key.about), *_comment(definition.key.expectation))
        yield _assignment(definition)


def _assignment(definition: Definition) -> str:
    """The default. Where there is none, an example: in force only if the key must be given."""
    if definition.default is not None:
        return f"{definition.name} = {written_value(definition.default)}"
    written = f"{definition.name} = {written_value(definition.key.example)}"
    return written if definition.required else f"# {written}  # else {definition.key.unset}"


def _comment(text: str) -> Iterable[str]:
    return textwrap.wrap(
        text, _COLUMNS, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )
