"""The base of all messages, packed token ids, a digest of types, and addresses."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import Meta, Struct
from msgspec.structs import fields


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of the messages. Each message is a frame of its own."""


LARGEST_TOKEN_ID: Final = (1 << 32) - 1
BYTES_PER_TOKEN: Final = 4
TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST_TOKEN_ID)]


def pack(token_ids: Iterable[int]) -> bytes:
    """Pack token ids from 0 to `LARGEST_TOKEN_ID` as little-endian 32-bit words.

    Raises:
        OverflowError: an id is out of range.
    """
    return _little_endian(array("I", token_ids)).tobytes()


def unpack(packed: bytes) -> list[int]:
    """The reverse of `pack`. Raises: ValueError: the length is not a multiple of four."""
    words = array("I")
    words.frombytes(packed)
    return _little_endian(words).tolist()


def _little_endian(words: array[int]) -> array[int]:
    if sys.byteorder == "big":
        words.byteswap()
    return words


_DIGITS = 8


def digest(kinds: Any) -> str:
    """A digest of all values that these types allow. It is the same in every version of Python."""
    described: dict[str, str] = {}
    top = _shape(kinds, described)
    lines = [top, *(f"{name}: {text}" for name, text in sorted(described.items()))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_DIGITS]


def _shape(kind: Any, described: dict[str, str]) -> str:
    """The shape of a type as text. It has the names of structs, whose parts go into `described`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " | ".join(sorted(_shape(argument, described) for argument in arguments))
    if origin is Literal:
        return " | ".join(sorted(map(repr, arguments)))
    if origin is Annotated:
        return " ".join([_shape(arguments[0], described), *map(_bounds, arguments[1:])])
    if origin is not None:
        parts = (
            "..." if argument is ... else _shape(argument, described) for argument in arguments
        )
        return f"{origin.__name__}[{', '.join(parts)}]"
    if isinstance(kind, type) and issubclass(kind, Struct) and kind.__name__ not in described:
        described[kind.__name__] = ""  # A struct may contain itself.
        described[kind.__name__] = "; ".join(_parts(kind, described))
    return "None" if kind is NoneType else str(kind.__name__)


def _parts(kind: type[Struct], described: dict[str, str]) -> Iterator[str]:
    config = kind.__struct_config__
    yield f"{config.tag_field}={config.tag} {config.array_like} {config.forbid_unknown_fields}"
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        may_lack = "" if field.required else "?"
        yield f"{field.encode_name}{may_lack}: {_shape(hints[field.name], described)}"


def _bounds(meta: Meta) -> str:
    return f"{meta.ge}..{meta.le}"


# sizeof(sockaddr_un.sun_path) less the terminating zero, by <sys/un.h> of each system.
MAX_SOCKET_PATH_BYTES: Final = 103 if sys.platform == "darwin" else 107


class EndpointError(Exception):
    """The endpoint's path can't be a Unix socket."""


def endpoint(path: Path) -> str:
    """The ZeroMQ address of a socket file.

    Raises:
        EndpointError: the path is longer than the system allows, or isn't UTF-8.
    """
    try:
        length = len(str(path).encode())
    except UnicodeEncodeError as error:
        raise EndpointError(f"the path {path} is not UTF-8: choose another folder") from error
    if length > MAX_SOCKET_PATH_BYTES:
        raise EndpointError(
            f"the socket path {path} has {length} bytes, the system allows "
            f"{MAX_SOCKET_PATH_BYTES}: choose a shorter state folder"
        )
    return f"ipc://{path}"
