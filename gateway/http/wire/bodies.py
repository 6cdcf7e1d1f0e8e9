"""Reads the body and the query of a request, within bounds and checked against a type. Makes the
simple responses.
"""

from __future__ import annotations

import asyncio
import codecs
import functools
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple, Unpack

import msgspec
from msgspec import Raw, Struct, inspect
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from gateway.http.wire.errors import invalid
from gateway.requests.share import Share, share_of
from gateway.system.lane import Lane
from gateway.system.refusal import Refusal

# A step of a path in an error of msgspec: a field, or an item of a list.
_STEP: Final = re.compile(r"(?P<field>[^.\[\]]+)|\[[^\]]*\]")
_MOST: Final = 30


def allowed_values(kind: Any, path: str) -> str:
    """The values that a field may have, as a list for an error message. Empty: the field has no
    such list. `path` is the path of the field within `kind`.
    """
    kinds = [inspect.type_info(kind)]
    steps = list(_STEP.finditer(path))
    for place, step in enumerate(steps):
        name = step["field"]
        kinds = [alternative for kind in kinds for alternative in _alternatives(kind)]
        if name and place == len(steps) - 1 and (tags := list(_tags(kinds, name))):
            return _listed(tags)
        kinds = [member for kind in kinds for member in _within(kind, name)]
    values = (alternative for kind in kinds for alternative in _alternatives(kind))
    return _listed(
        [value for kind in values if isinstance(kind, inspect.LiteralType) for value in kind.values]
    )


def _alternatives(kind: inspect.Type) -> Iterator[inspect.Type]:
    match kind:
        case inspect.UnionType(types):
            for member in types:
                yield from _alternatives(member)
        case inspect.Metadata(type=inner):
            yield from _alternatives(inner)
        case _:
            yield kind


def _within(kind: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    match kind:
        case inspect.StructType(fields=fields) if name is not None:
            yield from (field.type for field in fields if field.encode_name == name)
        case inspect.ListType(item_type=item) | inspect.DictType(value_type=item) if name is None:
            yield item


def _tags(kinds: list[inspect.Type], name: str) -> Iterator[Any]:
    for kind in kinds:
        if isinstance(kind, inspect.StructType) and kind.tag_field == name:
            yield kind.tag


def _listed(values: list[Any]) -> str:
    words = [repr(value) for value in dict.fromkeys(values)][:_MOST]
    return ", ".join(words)


MAX_BODY_BYTES: Final = 32 << 20
_BODY: Final = "body"

# The path at the end of msgspec's errors. Msgspec doesn't name the key of a value in a map.
_PATH: Final = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*?)(\[\.\.\.\])?`$")
# msgspec writes this before the path of an error. If a part of the body was decoded separately, the
# error has the path within this part first, then the path of the part.
AT: Final = " - at `$"
# The beginnings of msgspec's errors about a value that is not one of the allowed values.
_CHOICES: Final = ("Invalid enum value", "Invalid value")
_MISSING: Final = re.compile(r"missing required field `(?P<name>[^`]*)`")

# The digits of a whole number in a query.
MOST_DIGITS: Final = 9

# Larger bodies take more than a few milliseconds to decode, so a thread does it.
_LARGE_BYTES: Final = 256 << 10
# Decodes one body at a time. The bound on the bytes of all bodies also bounds the bodies that wait
# here; decoding all of them takes seconds.
_decoder: Final = Lane("decoder")
_DECODED_S: Final = 60.0
_RETRY_AFTER_S: Final = 10

# While msgspec decodes or skips one field, no other thread runs Python. Lists and objects take
# longest: ten million of them take seconds. The longest prompt of any model has fewer brackets,
# even if all of it is code.
_MOST_BRACKETS: Final = 1 << 20
# Memory for each list or object, without its items: an empty list of Python takes 56 bytes.
_BRACKET_BYTES: Final = 64
# Brackets are counted in blocks of this size, so that other threads can run between two blocks.
_COUNTED_BYTES: Final = 1 << 20

# Matches escapes and raw surrogates. The group `half` is a surrogate without its other half.
_SURROGATE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\xed[\xa0-\xbf][\x80-\xbf])"
    rb"|\\.",
    re.DOTALL,
)

# A string, which is skipped, or a number that is written as a float.
_FLOAT: Final = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"|(?P<float>-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)', re.DOTALL
)
# Floats up to this size have all whole numbers.
_EXACT: Final = 1 << 53

# Stands for null in fields of the type Raw, since msgspec allows no union of Raw and None.
NOT_GIVEN: Final = Raw(b"null")
# The default of fields of the type Raw. A plain Raw default can't be written into a JSON schema.
ABSENT: Final[Any] = msgspec.field(default_factory=itertools.repeat(NOT_GIVEN).__next__)

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class BodyPart(Struct):
    """A part of a body that may have a million such parts.

    msgspec decodes a body in one call, during which no other thread runs Python. This empty method
    lets the event loop's thread run between two parts.
    """

    def __post_init__(self) -> None:
        pass


def json_response(body: Any, status_code: int = 200) -> Response:
    """`body` is anything that msgspec encodes."""
    encoded = msgspec.json.encode(body)
    return Response(encoded, status_code=status_code, media_type="application/json")


def json_listing(data: Sequence[object], ids: Sequence[str | None], *, has_more: bool) -> Response:
    """A page of OpenAI's lists. `ids` are those of the items in `data`."""
    return json_response(
        {
            "object": "list",
            "data": data,
            "first_id": ids[0] if ids else None,
            "last_id": ids[-1] if ids else None,
            "has_more": has_more,
        }
    )


# Proxies and clients take a silent connection for a dead one, so a stream sends comments.
COMMENT_S: Final = 10.0
COMMENT: Final = b": nothing new\n\n"


class WorkState(Protocol):
    """The state of work that goes on; a change makes a new object."""

    @property
    def over(self) -> bool: ...


async def states_until_over(
    event: str, progress: Callable[[], WorkState], next_change: Callable[[], Awaitable[None]]
) -> AsyncIterator[bytes]:
    """An event with each state of some work, until the work is over."""
    while True:
        now = progress()
        yield b"event: %s\ndata: %s\n\n" % (event.encode(), msgspec.json.encode(now))
        if now.over:
            return
        while progress() is now:
            try:
                async with asyncio.timeout(COMMENT_S):
                    await next_change()
            except TimeoutError:
                yield COMMENT


def event_stream(events: AsyncIterator[bytes]) -> Response:
    """A stream of server-sent events that proxies do not buffer."""
    return StreamingResponse(
        events,
        media_type="text/event-stream",
        headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
    )


def given(raw: Raw) -> bool:
    """Whether the body has this field, with a value other than null."""
    return bytes(raw).strip() != b"null"


async def read_json(request: HttpRequest, kind: type[T], *, optional: bool = False) -> T:
    """Read the body as `kind`. With `optional` an empty body has the defaults of `kind`.

    Raises:
        Refusal: the body is too large, not JSON, or not of that type; `param` names the field.
    """
    body = await read_body(request)
    share = share_of(request.scope)
    if optional and not body.strip():
        body = bytearray(b"{}")
    return await beside_the_loop(len(body), decode_json, body, kind, share)


async def beside_the_loop(
    size_bytes: int, function: Callable[[Unpack[Arguments]], T], *arguments: *Arguments
) -> T:
    """Call the function. If `size_bytes` is large, the call takes long and is made in a thread.

    Raises:
        Refusal: no thread is free in time.
    """
    if size_bytes < _LARGE_BYTES:
        return function(*arguments)
    call = functools.partial(function, *arguments)
    try:
        return await _decoder.run(call, _DECODED_S, "the decoding of large bodies")
    except OSError as error:
        raise Refusal(
            "overloaded", f"The body can't be read now: {error}.", retry_after_s=_RETRY_AFTER_S
        ) from error


def take_decoded(share: Share, text: bytes | bytearray) -> None:
    """Take the memory of a decoded JSON text from the share. Raises: Refusal: there is no room."""
    share.reserve(_count_brackets(text) * _BRACKET_BYTES)


def _count_brackets(text: bytes | bytearray) -> int:
    brackets = 0
    for begin in range(0, len(text), _COUNTED_BYTES):
        end = begin + _COUNTED_BYTES
        brackets += text.count(b"[", begin, end) + text.count(b"{", begin, end)
    return brackets


def _check_brackets(brackets: int) -> None:
    """Raises: Refusal: there are so many lists and objects that decoding them would block other
    requests.
    """
    if brackets > _MOST_BRACKETS:
        raise Refusal(
            "invalid_request_error",
            f"The body has {brackets:,} opening brackets and braces, of {_MOST_BRACKETS:,} at "
            "most: send fewer lists and objects.",
        )


def decode_json(body: bytearray, kind: type[T], share: Share) -> T:
    """Decode a body as `kind`, whose memory is taken from the share.

    Raises:
        Refusal: it is not JSON, or not of that type; `param` names the field.
    """
    brackets = _count_brackets(body)
    _check_brackets(brackets)
    share.reserve(brackets * _BRACKET_BYTES)
    if (wrong_at := _misencoded_at(body)) is not None:
        raise _no_json(body, f"at byte {wrong_at} it is not UTF-8")
    try:
        return with_whole_numbers(body, kind)
    except msgspec.ValidationError as error:
        reason, *places = str(error).split(AT)
        path = "".join(place.removesuffix("`") for place in reversed(places))
        text = f"{reason}{AT}{path}`" if places else reason
        place = _PATH.search(text)
        param = place["path"] or None if place else None
        reason = _PATH.sub(" as a key" if place and place["key"] else "", text)
        if missing := _MISSING.search(reason):
            param = f"{param}.{missing['name']}" if param else missing["name"]
        if reason.startswith(_CHOICES) and (allowed := allowed_values(kind, param or "")):
            reason = f"{reason}: send one of {allowed}"
        named = f"{param}: " if param else ""
        raise Refusal("invalid_request_error", f"{named}{reason}.", param=param) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise _no_json(body, str(error)) from error


def with_whole_numbers(body: bytes | bytearray, kind: type[T]) -> T:
    """The JSON text as `kind`. A whole number may be written as a float, since some languages have
    no other numbers. Raises: msgspec.DecodeError.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
    return msgspec.json.decode(_FLOAT.sub(_whole, body), type=kind)


def _whole(written: re.Match[bytes]) -> bytes:
    value = float(written["float"] or "nan")
    return b"%d" % value if value.is_integer() and abs(value) <= _EXACT else written[0]


def _misencoded_at(body: bytearray) -> int | None:
    """The offset of the first byte that is not UTF-8. msgspec does not check the fields that it
    skips or decodes later.
    """
    if body.isascii():
        return None
    decoder = codecs.getincrementaldecoder("utf-8")()
    for begin in range(0, len(body), _COUNTED_BYTES):
        held, _ = decoder.getstate()
        end = begin + _COUNTED_BYTES
        try:
            decoder.decode(body[begin:end], final=end >= len(body))
        except UnicodeDecodeError as error:
            return begin - len(held) + error.start
    return None


def _no_json(body: bytearray, reason: str) -> Refusal:
    # The error that a decoder gives for half a character depends on the bytes that follow.
    reason = _lone_surrogate(body) or reason
    return Refusal("invalid_request_error", f"The body is not valid JSON: {reason}.")


def _lone_surrogate(body: bytearray) -> str | None:
    """An error message for a text that was cut in the middle of a character, as happens when
    clients cut by UTF-16 length.
    """
    for match in _SURROGATE.finditer(body):
        if match["half"]:
            return (
                f"at byte {match.start()} a string has half of a character, a lone surrogate: send "
                "both halves of the pair, or neither"
            )
    return None


async def read_body(request: HttpRequest) -> bytearray:
    """The body, which a second call gives again.

    Raises:
        Refusal: the body is too large, or the client left.
    """
    if (known := getattr(request.state, _BODY, None)) is None:
        known = await _read(request)
        setattr(request.state, _BODY, known)
    return known


async def _read(request: HttpRequest) -> bytearray:
    declared = request.headers.get("content-length", "")
    # Refuse before reading, so that a client with `Expect: 100-continue` sends no body.
    if declared.isdecimal() and int(declared) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise _too_large()
    except ClientDisconnect:
        raise Refusal("invalid_request_error", "The client left before its body ended.") from None
    return body


def _too_large() -> Refusal:
    return Refusal(
        "request_too_large",
        f"The body is larger than {MAX_BODY_BYTES >> 20} MiB, the largest that is accepted.",
    )


def read_count(request: HttpRequest, name: str, default: int) -> int:
    """A whole number of the query string.

    Raises:
        Refusal: the value is no such number.
    """
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS):
        raise invalid(
            f"{name} is {text[:100]!r}: send a whole number of at most {MOST_DIGITS} digits.", name
        )
    return int(text)


_LISTED: Final = 20
_MOST_LISTED: Final = 100
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


def read_limit(request: HttpRequest) -> int:
    """The `limit` of the query string: how many items to list.

    Raises:
        Refusal: the value is no number from 1 to 100.
    """
    count = read_count(request, "limit", _LISTED)
    if not 1 <= count <= _MOST_LISTED:
        raise invalid(f"limit is {count}: send a number from 1 to {_MOST_LISTED}.", "limit")
    return count


def reads_newest_first(request: HttpRequest, *, default: bool) -> bool:
    """Raises: Refusal: `order` is neither asc nor desc."""
    order = request.query_params.get("order")
    if order not in (None, "asc", "desc"):
        raise invalid(f"order is {order[:100]!r}: send asc or desc.", "order")
    return default if order is None else order == "desc"


def read_flag(request: HttpRequest, name: str) -> bool:
    """A flag of the query string; false if it is absent.

    Raises:
        Refusal: the value is neither true nor false.
    """
    text = request.query_params.get(name, "false")
    if (flag := _FLAGS.get(text.lower())) is None:
        raise invalid(f"{name} is {text[:100]!r}: send true or false.", name)
    return flag
