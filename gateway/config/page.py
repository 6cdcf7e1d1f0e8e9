"""The table of docs/configuration.md; `python -m gateway.config.page` prints it."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config.keys import (
    DISCOVERY_KEYS,
    GROUP_KEYS,
    HOST_KEYS,
    KEYS,
    MODEL_KEYS,
    MODELS,
    SECTIONS,
    Definition,
)
from gateway.config.settings import (
    DiscoverySettings,
    GroupSettings,
    HostSettings,
    ModelSettings,
)


def printed() -> Iterator[str]:
    """The lines, in Markdown."""
    tables = [(f"[{name}]", SECTIONS[name].about, keys) for name, keys in KEYS.items()]
    tables.append(("[hosts.NAME]", HostSettings.about, HOST_KEYS))
    tables.append((f"[{MODELS}]", DiscoverySettings.about, DISCOVERY_KEYS))
    tables.append(("[models.ID]", ModelSettings.about, MODEL_KEYS))
    tables.append(("[groups.NAME]", GroupSettings.about, GROUP_KEYS))
    for heading, about, keys in tables:
        yield from (f"### `{heading}`", "", about, "")
        yield "| key | default | meaning | expected | a reload |"
        yield "| --- | --- | --- | --- | --- |"
        yield from map(_row, keys.values())
        yield ""


def _row(definition: Definition) -> str:
    key = definition.key
    if definition.required:
        default = "must be given"
    elif definition.default is None:
        default = str(key.unset)
    else:
        default = f"`{definition.kind.write(definition.default)}`"
    taken = "needs a restart" if key.restart else "takes it"
    cells = (f"`{definition.name}`", default, key.about, definition.kind.expected, taken)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print("\n".join(printed()))
