"""Where the ranks of a model run, as the configuration has it."""

from __future__ import annotations

from typing import Any, Final, TypeGuard

from msgspec import Struct

from gateway.config.kinds import UnexpectedError, toml_text

# The gateway's own machine.
LOCAL: Final = "local"
_MOST: Final = 64


class RankPlace(Struct, frozen=True):
    """A host by its name, and the addresses at which the other ranks reach this one there; none: by
    the host's only one, or what leads to it.
    """

    host: str
    interfaces: tuple[str, ...] = ()


class RankPlaces(Struct, frozen=True):
    """The kind of a list of them."""

    @property
    def expected(self) -> str:
        return (
            'a list of ranks such as [{ host = "local" }, { host = "studio2", interfaces = '
            '["10.0.0.2"] }]'
        )

    def read(self, value: object) -> tuple[RankPlace, ...]:
        if not isinstance(value, list) or len(value) > _MOST:
            raise UnexpectedError(value)
        return tuple(_place(each, index) for index, each in enumerate(value))

    def schema(self) -> dict[str, Any]:
        text = {"type": "string", "minLength": 1}
        place = {
            "type": "object",
            "properties": {"host": text, "interfaces": {"type": "array", "items": text}},
            "required": ["host"],
            "additionalProperties": False,
        }
        return {"type": "array", "items": place, "maxItems": _MOST}

    def write(self, value: tuple[RankPlace, ...]) -> str:
        return f"[{', '.join(map(_written, value))}]"


def _place(value: object, index: int) -> RankPlace:
    """Raises: UnexpectedError."""
    if not isinstance(value, dict) or not value.keys() <= {"host", "interfaces"}:
        raise UnexpectedError(value, index)
    host, interfaces = value.get("host"), value.get("interfaces", [])
    if not _is_word(host) or not isinstance(interfaces, list):
        raise UnexpectedError(value, index)
    if not all(map(_is_word, interfaces)):
        raise UnexpectedError(value, index)
    return RankPlace(host, tuple(interfaces))


def _is_word(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value != "" and value.isprintable()


def _written(place: RankPlace) -> str:
    interfaces = ", ".join(map(toml_text, place.interfaces))
    more = f", interfaces = [{interfaces}]" if interfaces else ""
    return f"{{ host = {toml_text(place.host)}{more} }}"
