"""The parts of a multipart form (RFC 7578), found as the form comes.

Servers disagree about forms that break the rules, and could find a field in one that the gateway
has not seen. So whatever may begin a part for some server has to be a part by the letter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gateway.http.passing.fields import check_other, may_mean_model
from gateway.http.wire.errors import invalid
from gateway.system.refusal import Refusal

_TOKEN: Final = rb"[\w!#$%&'*+.^`|~-]++"
# Each repetition takes all that it can and gives nothing back, so that no text takes long.
_PARAMETER: Final = (
    # Servers disagree about a backslash before a quotation mark.
    rb';[ \t]*+([a-z]++\*?)=(?:"((?:[^"\\\0-\x1f\x7f]|\\(?!"))*+)"|(' + _TOKEN + rb"))[ \t]*+"
)
_PARAMETERS: Final = re.compile(_PARAMETER, re.I)
_DISPOSITION: Final = re.compile(rb"form-data[ \t]*+(?:" + _PARAMETER + rb")*+", re.I)
_HEADER: Final = re.compile(rb"([a-z][a-z0-9-]*+):[ \t]*+([^\0-\x08\x0a-\x1f\x7f]*+)", re.I)
_NAME: Final = re.compile(rb"[\w.\[\]-]+")
_CONTENT_TYPE: Final = re.compile(
    r"multipart/form-data *; *(?:charset=[\w-]+ *; *)?"
    r"""boundary=(?:([\w'+.-]{1,70})|"([\w'()+,./:=? -]{0,69}[\w'()+,./:=?-])")"""
    r"(?: *; *charset=[\w-]+)? *",
    re.I | re.A,
)
_MOST_PARTS: Final = 256
_MOST_HEAD_BYTES: Final = 4 << 10
_MOST_HEADERS: Final = 8


def boundary_of(content_types: Sequence[str]) -> bytes:
    """The boundary that the headers Content-Type of a request name.

    Raises: Refusal: the body is no form, or the boundary is ambiguous.
    """
    found = _CONTENT_TYPE.fullmatch(content_types[0]) if len(content_types) == 1 else None
    if found is None:
        raise invalid(
            "The body is no form: send one Content-Type, multipart/form-data with one boundary.",
            "Content-Type",
        )
    return (found[1] or found[2]).encode("latin-1")


class FormParts:
    """A form as it comes. `span` is the place of the model's name in what is held, once that has
    come. `names` are those of the fields. `closed`: the form has ended.
    """

    def __init__(self, boundary: bytes) -> None:
        self._mark = b"--" + boundary
        # Each boundary follows the end of a line, but for the first one.
        self.held = bytearray(b"\r\n")
        self.span: tuple[int, int] | None = None
        self.closed = False
        # What is before `_checked` has been checked. A part's content begins at `_content`.
        self._checked = self._content = 0
        self._model_begin: int | None = None
        self.names: list[str] = []

    def add(self, piece: bytes) -> None:
        """Raises: Refusal: the form names a second model, or is ambiguous."""
        held, mark = self.held, self._mark
        held += piece
        if not self.names and not (b"\r\n" + mark).startswith(held[: 2 + len(mark)]):
            raise _ambiguous("it doesn't begin with its boundary")
        while not self.closed:
            # What is searched for begins with a byte that it has once, so any text takes linear
            # time, and whatever is found is a part or a reason to refuse the form.
            begin = held.find(b"\n" + mark, self._checked) + 1
            if held.find(b"\r" + mark, self._checked, begin or len(held)) >= 0:
                raise _ambiguous("a boundary has no line of its own")
            if not begin:
                # The rest may be the beginning of a boundary.
                self._checked = max(self._checked, len(held) - len(mark))
                return
            self._checked = begin - 1
            after = begin + len(mark)
            if len(held) < after + 2:
                return
            end = bytes(held[after : after + 2])
            whole = held[begin - 2 : begin] == b"\r\n" and end in (b"\r\n", b"--")
            if not whole or begin - 2 < self._content:
                raise _ambiguous("a boundary has no line of its own")
            if self._model_begin is not None and self.span is None:
                self.span = self._model_begin, begin - 2
            if end == b"--":
                self.closed = True
                self._checked = after + 2
            elif not self._take_head(after):
                return
        if not b"\r\n".startswith(held[self._checked :]):
            raise _ambiguous("it goes on after its end")

    def _take_head(self, after: int) -> bool:
        """Check the head of a part, which follows the boundary that ends at `after`. Returns
        whether the head has come.
        """
        end = self.held.find(b"\r\n\r\n", after)
        if (end if end >= 0 else len(self.held)) - after > _MOST_HEAD_BYTES:
            raise _ambiguous("the head of a part is too long")
        if end < 0:
            return False
        if len(self.names) == _MOST_PARTS:
            raise invalid(f"The form has more than {_MOST_PARTS} parts.", "body")
        self.names.append(_name(bytes(self.held[after + 2 : end])))
        if self.names[-1] == "model":
            if self._model_begin is not None:
                raise invalid("The form has several fields model: send one.", "model")
            self._model_begin = end + 4
        # Some servers take a boundary right here for one.
        self._content, self._checked = end + 4, end + 3
        return True

    def take(self) -> bytes:
        """Take what has been checked, but for its last two bytes. Afterwards `span` is void."""
        count = max(0, self._checked - 2)
        taken = bytes(self.held[:count])
        del self.held[:count]
        self._checked -= count
        self._content -= count
        return taken


def _name(head: bytes) -> str:
    """The name of the field that a part is. Raises: Refusal: servers may disagree about that."""
    dispositions = []
    # What is beyond the last one is no header.
    for line in head.split(b"\r\n", _MOST_HEADERS):
        header = _HEADER.fullmatch(line)
        if header is None:
            raise _ambiguous(f"{_shown(line)} in the head of a part is no header")
        name, value = header[1].lower(), header[2]
        if name == b"content-disposition":
            dispositions.append(value)
        elif name == b"content-type" and value.lower().startswith(b"multipart"):
            raise _ambiguous("a part has parts of its own")
    if len(dispositions) != 1 or _DISPOSITION.fullmatch(dispositions[0]) is None:
        raise _ambiguous("each part needs one Content-Disposition, form-data with a name")
    (disposition,) = dispositions
    found = _PARAMETERS.findall(disposition)
    keys = [key.lower() for key, _, _ in found]
    if len({*keys}) < len(keys) or not {b"name"} <= {*keys} <= {b"name", b"filename", b"filename*"}:
        raise _ambiguous(f"{_shown(disposition)} has other parameters than name and filename")
    _, quoted, bare = found[keys.index(b"name")]
    field: bytes = quoted or bare
    if _NAME.fullmatch(field) is None:
        raise _ambiguous(f"{_shown(field)} is no plain name of a field")
    plain = field.decode("ascii")
    check_other(plain)
    if may_mean_model(plain) and (plain != "model" or len(keys) > 1):
        raise _ambiguous(f"{_shown(disposition)} may mean the model: its name is model alone")
    return plain


def _shown(text: bytes) -> str:
    return repr(text[:80].decode("utf-8", "replace"))


def _ambiguous(reason: str) -> Refusal:
    return invalid(f"The form is ambiguous: {reason}.", "body")
