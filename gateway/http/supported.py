"""Refuses what would otherwise be ignored in silence, as the table of parameters says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.http.bodies import ABSENT, NOT_GIVEN
from gateway.http.parameters import PLACES, Parameter, Place, at
from gateway.system.refusal import Refusal

_LONGEST_NEUTRAL: Final = 100

_REFUSED: Final = {place: at(place, "refused") for place in PLACES}
Kind = TypeVar("Kind", bound=Struct)


def refusing(place: Place) -> Callable[[type[Kind]], type[Kind]]:
    """A decorator: the type also decodes what is refused at `place`, for `check_supported`."""

    def extend(kind: type[Kind]) -> type[Kind]:
        extended: type[Any] = msgspec.defstruct(
            kind.__name__,
            # Not built: what is refused anyway may be tens of megabytes of lists.
            [(each.name, _kind(each), ABSENT) for each in _REFUSED[place]],
            bases=(kind,),
            module=kind.__module__,
            namespace={"__doc__": kind.__doc__},
            kw_only=True,
        )
        return extended

    return extend


def _kind(parameter: Parameter) -> Any:
    """For the schema: what is taken of it."""
    about = f"Not supported; {parameter.note}." if parameter.note else "Not supported."
    taken = {"enum": [None, *parameter.neutral], "description": about}
    return Annotated[Raw, Meta(extra_json_schema=taken)]


def check_supported(decoded: Struct, place: Place, path: str = "") -> None:
    """`decoded` is of a type that `refusing(place)` made; `path` leads to it from the body.

    Raises:
        Refusal: it asks for something that this server doesn't do.
    """
    for parameter in _REFUSED[place]:
        text: Raw = getattr(decoded, parameter.name)
        if text is not NOT_GIVEN and not _neutral(parameter, text):
            name = path + parameter.name
            advice = f", or {parameter.note}" if parameter.note else ""
            raise Refusal(
                "invalid_request_error",
                f"{name} is not supported: leave it out{advice}.",
                param=name,
            )


def _neutral(parameter: Parameter, text: Raw) -> bool:
    if len(text) > _LONGEST_NEUTRAL:
        return False
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return value is None or any(_same(value, each) for each in parameter.neutral)


def _same(value: object, neutral: object) -> bool:
    """As JSON has it: to Python 0 is False."""
    if isinstance(value, bool) or isinstance(neutral, bool):
        return value is neutral
    return value == neutral
