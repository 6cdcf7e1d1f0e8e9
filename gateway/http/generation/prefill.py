"""Answers that go on in the last message of a conversation, which is the assistant's."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.http.wire.errors import invalid
from protocol.requests import ChatMessage


def goes_on(messages: Sequence[ChatMessage], param: str) -> bool:
    """Whether the last message is the assistant's, so that the answer goes on in it.

    Raises:
        Refusal: that message has calls. `param` is the field of the body with the messages.
    """
    if not messages or messages[-1].role != "assistant":
        return False
    if messages[-1].tool_calls:
        raise invalid(
            f"{param}: the last message is the assistant's and has calls of tools, so no "
            "answer can go on in it: send the results of the calls behind it.",
            param,
        )
    return True
