"""A complete configuration file with every key, its meaning and its default."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gateway.config.keys import (
    DISCOVERY_KEYS,
    GROUP_KEYS,
    GROUPS,
    HOST_KEYS,
    KEYS,
    MODEL_KEYS,
    MODELS,
    SECTIONS,
    Definition,
)
from gateway.config.kinds import toml_text
from gateway.config.models import DEMO_ID
from gateway.config.settings import (
    DiscoverySettings,
    GroupSettings,
    HostSettings,
    ModelSettings,
)

_COLUMNS: Final = 78


def example() -> str:
    """TOML that is valid as it is: it serves the embedded model with all defaults."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from _comment("Bulkhead's configuration. Every key may be left out: these are defaults.")
    yield from _comment('Times are seconds, or text such as "500ms", "30s", "5m", "2h" or "7d".')
    for table, keys in KEYS.items():
        yield from ("", *_comment(SECTIONS[table].about), f"[{table}]")
        yield from _keys(keys)
    # None is in force: there may be no other machine.
    yield from ("", *_comment(HostSettings.about), "# [hosts.studio2]")
    for definition in HOST_KEYS.values():
        yield from ("", *_comment(definition.key.about), *_comment(definition.expectation))
        yield f"# {_assignment(definition)}"
    yield from ("", *_comment(DiscoverySettings.about), f"[{MODELS}]")
    yield from _keys(DISCOVERY_KEYS)
    yield from ("", *_comment(ModelSettings.about), f"[models.{toml_text(DEMO_ID)}]")
    yield from _keys(MODEL_KEYS)
    # One in force would need models that are there.
    yield from ("", *_comment(GroupSettings.about), f"# [{GROUPS}.coding]")
    for line in _keys(GROUP_KEYS):
        yield line if line.startswith("#") or not line else f"# {line}"


def _keys(keys: Mapping[str, Definition]) -> Iterator[str]:
    for definition in keys.values():
        yield ""
        yield from _comment(definition.key.about)
        yield from _comment(definition.expectation)
        yield _assignment(definition)


def _assignment(definition: Definition) -> str:
    """The default. Where there is none, an example: in force only if the key must be given."""
    if definition.default is not None:
        return f"{definition.name} = {definition.kind.write(definition.default)}"
    written = f"{definition.name} = {definition.kind.write(definition.key.example)}"
    return written if definition.required else f"# {written}  # else {definition.key.unset}"


def _comment(text: str) -> Iterable[str]:
    return textwrap.wrap(
        text, _COLUMNS, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )
