"""The version of the protocol follows what its messages are made of."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct, defstruct

from protocol.message_base import digest
from protocol.messages import PROTOCOL_VERSION, GatewayMessage, WorkerMessage


def _sample(
    fields: dict[str, object] | None = None, *, tag: str = "s", array_like: bool = False
) -> type[Struct]:
    hints = {
        "part": _Part,
        "number": Annotated[int, Meta(ge=0)],
        "code": Literal["a", "b"],
        "others": tuple[_Part, ...],
        **(fields or {}),
    }
    return defstruct(
        "_Sample", list(hints.items()), tag=tag, array_like=array_like, module=__name__
    )


class _Part(Struct, frozen=True, array_like=True):
    name: str


_Longer = defstruct("_Part", [("name", str), ("more", int, 0)], array_like=True)
_Optional = defstruct("_Part", [("name", str, "")], array_like=True)


def test_the_same_is_the_same() -> None:
    assert digest(_sample()) == digest(_sample())
    assert digest(_sample() | _Part) == digest(_Part | _sample())


@pytest.mark.parametrize(
    "other",
    [
        _sample(tag="t"),
        _sample(array_like=True),
        _sample({"code": Literal["a", "b", "c"]}),
        _sample({"number": int}),
        _sample({"number": Annotated[int, Meta(ge=1)]}),
        _sample({"part": _Longer}),
        _sample({"part": _Optional}),
        _sample({"part": str}),
        _sample({"others": tuple[str, ...]}),
        _sample({"more": int}),
    ],
    ids=[
        *("tag", "array", "code", "bound", "another bound"),
        *("longer part", "optional part", "type", "items", "field"),
    ],
)
def test_every_change_of_type_changes_digest(other: type) -> None:
    assert digest(other) != digest(_sample())


def test_the_version_has_all_messages() -> None:
    assert PROTOCOL_VERSION.endswith(f"-{digest(GatewayMessage | WorkerMessage)}")
