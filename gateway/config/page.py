"""The table of docs/configuration.md; `python -m gateway.config.page` prints it."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config.keys import HEADINGS, Definition, about, keys_of


def printed() -> Iterator[str]:
    """The lines, in Markdown."""
    for heading, section in HEADINGS.items():
        yield from (f"### `{heading}`", "", about(section), "")
        yield "| key | default | meaning | expected | a reload |"
        yield "| --- | --- | --- | --- | --- |"
        yield from map(_row, keys_of(section).values())
        yield ""


def _row(definition: Definition) -> str:
    key = definition.key
    default = definition.shown(definition.default)
    if definition.required:
        default = "must be given"
    elif definition.default is not None:
        default = f"`{default}`"
    taken = "needs a restart" if key.restart else "takes it"
    cells = (f"`{definition.name}`", default, key.about, key.expected, taken)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print("\n".join(printed()))
