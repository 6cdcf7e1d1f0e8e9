"""What a request's answer goes on from."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from protocol.pictures import Picture


class CalledTool(Struct, frozen=True):
    """A call in a conversation's history. `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str


class ChatMessage(Struct, frozen=True):
    """What an assistant thought and called belongs to its message; a tool's result says which call
    it answers. Pictures are in the order in which they stand in the text.
    """

    role: str
    content: str
    reasoning: str | None = None
    tool_calls: tuple[CalledTool, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    pictures: tuple[Picture, ...] = ()


class ChatPrompt(Struct, frozen=True, tag="chat", tag_field="kind"):
    """Rendered by the model's chat template, which gets the `template_arguments`, a JSON object as
    text, too.
    """

    messages: tuple[ChatMessage, ...]
    template_arguments: str = ""

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """Of all messages, in order."""
        return tuple(picture for each in self.messages for picture in each.pictures)


class TextPrompt(Struct, frozen=True, tag="text", tag_field="kind"):
    """With a `suffix` the answer is what stands between the two."""

    text: str
    suffix: str | None = None


class TokenPrompt(Struct, frozen=True, tag="tokens", tag_field="kind"):
    """Ids packed as `protocol.tokens` does."""

    token_ids: bytes


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt
