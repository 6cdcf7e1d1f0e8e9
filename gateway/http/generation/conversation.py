"""Builds the conversation of a request, for every API.

An API adds its messages in order. The builder gathers the addresses of the pictures, and the names
of what the model doesn't get. The pictures' bytes are read after that, and put into the messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from gateway.http.generation.pictures import Source
from gateway.http.wire.errors import invalid
from gateway.system.refusal import Refusal
from protocol.requests import ChatMessage, Picture

UNSEEN: Final = "(Here is a picture, which this model can't look at.)"
# No context has room for more messages, since each message takes some tokens.
_MOST_MESSAGES: Final = 200_000
_TURNS: Final = ("user", "assistant")


class PlacedPicture(Struct, frozen=True):
    """A picture that is not read yet, before character `offset` of its message's text."""

    source: Source
    offset: int


class MessageText:
    """The text of a message while its parts are added, and the places of its pictures."""

    def __init__(self, conversation: ConversationBuilder, role: str, separator: str) -> None:
        self.parts: list[str] = []
        self.pictures: list[PlacedPicture] = []
        self._conversation = conversation
        self._role = role
        self._separator = separator
        self._length = 0

    def __str__(self) -> str:
        return self._separator.join(self.parts)

    def add(self, text: str) -> None:
        self._length += len(text) + (len(self._separator) if self.parts else 0)
        self.parts.append(text)

    def show(self, source: Source) -> None:
        """Place a picture behind the text so far. A model without vision gets a note instead.

        Raises:
            Refusal: this is no message of a user.
        """
        if self._role != "user":
            raise invalid(f"{source.name}: only a user's message may have pictures.", source.name)
        if self._conversation.sees(source, self._role):
            self.pictures.append(PlacedPicture(source, self._length))
        else:
            self.add(UNSEEN if self._separator else f"\n{UNSEEN}\n")


class ConversationBuilder:
    """The messages of a conversation, while an API adds them. `left_out` names the parts that the
    model doesn't get.

    A model without vision refuses the pictures of the newest user message: see `refused`. To refuse
    earlier pictures would end the conversation, so a note stands in the place of each.
    """

    def __init__(self, *, vision: bool) -> None:
        """`vision`: the model takes pictures."""
        self.vision = vision
        self.left_out: set[str] = set()
        # A picture that the model can't look at and that the client just sent. None: there is none.
        self.refused: Source | None = None
        self.messages: list[ChatMessage] = []
        self._pictures: list[Sequence[PlacedPicture]] = []

    def text(self, role: str, separator: str = "") -> MessageText:
        """The text of a message of this role. `separator` stands between its parts."""
        return MessageText(self, role, separator)

    def start_turn(self, role: str) -> None:
        """Call this before the parts of a message of this role: a turn of the user or of the
        assistant makes all earlier pictures old.
        """
        if role in _TURNS:
            self.refused = None

    def add(
        self,
        role: str,
        text: str | MessageText,
        *,
        pictures: Sequence[PlacedPicture] = (),
        **fields: Any,
    ) -> None:
        """Add a message. `fields` are those of `ChatMessage`."""
        self.messages.append(ChatMessage(role, str(text), **fields))
        self._pictures.append(text.pictures if isinstance(text, MessageText) else pictures)

    def sees(self, source: Source, role: str) -> bool:
        """Whether the model can look at a picture of a message of this role."""
        if not self.vision:
            self.left_out.add("image")
            if role == "user":
                self.refused = self.refused or source
        return self.vision

    def begin_with(self, system: str | None) -> None:
        """Put a system message before all others, unless there is none to put, or another one."""
        if system and not any(message.role == "system" for message in self.messages):
            self.messages.insert(0, ChatMessage("system", system))
            self._pictures.insert(0, ())

    @property
    def sources(self) -> list[Source]:
        """The addresses of the pictures that the model looks at, in order."""
        return [picture.source for pictures in self._pictures for picture in pictures]

    def shown(self, read: Mapping[Source, bytes]) -> tuple[ChatMessage, ...]:
        """The messages with their pictures, whose bytes are in `read`."""
        return tuple(
            msgspec.structs.replace(
                message,
                pictures=tuple(
                    Picture(read[picture.source], picture.offset, picture.source.name)
                    for picture in pictures
                ),
            )
            if pictures
            else message
            for message, pictures in zip(self.messages, self._pictures, strict=True)
        )

    def goes_on(self, param: str) -> bool:
        """Whether the last message is the assistant's, so that the answer goes on in it.

        Raises:
            Refusal: that message has calls. `param` is the field of the body with the messages.
        """
        if not self.messages or self.messages[-1].role != "assistant":
            return False
        if self.messages[-1].tool_calls:
            raise invalid(
                f"{param}: the last message is the assistant's and has calls of tools, so no "
                "answer can go on in it: send the results of the calls behind it.",
                param,
            )
        return True


def check_number(messages: int, param: str = "messages") -> None:
    """Raises: Refusal: there are more messages than fit the context of any model."""
    if messages > _MOST_MESSAGES:
        raise Refusal(
            "context_length_exceeded",
            f"{param}: there are {messages:,}; the prompt is too long for any model.",
            param=param,
        )
