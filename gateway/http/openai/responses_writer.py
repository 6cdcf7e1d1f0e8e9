"""Writes a response: as events in OpenAI's order, or as one object."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct

from gateway.http.openai.chat_writer import TokenLogprobBody, chat_logprobs, tokens_of
from gateway.http.openai.diagnostics import CacheDiagnostics
from gateway.http.openai.responses_items import CallMeaning, Kind, sealed
from gateway.http.openai.responses_objects import (
    AnyCallItem,
    CallItem,
    CompactionItem,
    CustomCallItem,
    IncompleteDetails,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseErrorBody,
    ResponseObject,
    ResponseUsage,
    SearchCallItem,
    ShellAction,
    ShellCallItem,
    WrittenInput,
    action_of,
    arguments_of,
    hexadecimal,
)
from gateway.http.wire.answer import DONE
from gateway.mailbox.entry import Status
from gateway.requests.choices import Choice
from gateway.requests.request import AnswerPiece, Request
from gateway.system.refusal import Refusal
from protocol.answers import (
    AnswerPart,
    FinishReason,
    Reasoning,
    Text,
    ToolCall,
    Usage,
)

_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "compaction": "cmp",
    "function": "fc",
    "custom": "ctc",
    "tool_search": "tsc",
    "local_shell": "lsh",
}


class ResponseForm(Struct):
    """The options of a response's writer. The mailbox stores the options of a background response,
    so that the next gateway can make the writer again.
    """

    response: ResponseObject
    seals_reasoning: bool
    # The values in the body. None: the model's own value applies.
    temperature: float | None = None
    top_p: float | None = None
    # The meaning of the calls of each function. Plain functions are left out.
    meanings: dict[str, CallMeaning] = {}
    # Whether the answer is a summary of the conversation.
    compacts: bool = False
    # Whether there is no output.
    prewarms: bool = False


class ResponseFormat:
    """Writes one response, streamed or whole."""

    def __init__(
        self,
        form: ResponseForm,
        request: Request,
        *,
        first_number: int = 0,
        announced: bool = False,
        diagnose: Callable[[], CacheDiagnostics] | None = None,
    ) -> None:
        """`announced`: the client already has the event that says that the response was created.
        `diagnose` is called once the answer has ended.
        """
        self._diagnose = diagnose
        self._form = form
        self._request = request
        self._response = form.response
        self._response.status = "in_progress"
        self._seals_reasoning = form.seals_reasoning
        self._number = first_number
        self._announced = announced
        self._opened = False
        self._over = False
        self._suffix = hexadecimal(form.response.id)
        self._finish_reason: FinishReason = "stop"
        # The open item, the number of its call if the item is a call, and the texts of the item.
        self._open: OutputItem | None = None
        self._call: int | None = None
        self._input = WrittenInput()
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprobBody] = []
        # White space that came while no message was open. White space alone becomes no message.
        self._blank = ""

    @property
    def status(self) -> Status:
        return self._response.status

    @property
    def body(self) -> bytes:
        """The response object as it is now."""
        return msgspec.json.encode(self._response)

    def opening(self, index: int) -> bytes:
        self._opened = True
        self._fill_sampling()
        created = b"" if self._announced else self._lifecycle("created")
        return created + self._lifecycle("in_progress")

    def piece(self, index: int, piece: AnswerPiece) -> bytes:
        self._finish_reason = piece.finish_reason or self._finish_reason
        tokens = chat_logprobs(tokens_of(piece.parts)).content
        events = b""
        for place, part in enumerate(piece.parts):
            mine: list[TokenLogprobBody] = []
            if isinstance(part, Text) and not any(
                isinstance(part, Text) for part in piece.parts[place + 1 :]
            ):
                mine, tokens = tokens, []
            events += self._part(part, mine)
        if isinstance(self._open, MessageItem):
            self._logprobs += tokens
        if piece.finish_reason is not None:
            events += self._end()
        return events

    def closing(self, usage: Usage) -> bytes:
        self._finish(usage)
        return self._lifecycle(self._response.status) + DONE

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        if not self._over:
            (choice,) = choices
            self._fill_sampling()
            self.piece(0, AnswerPiece(tuple(choice.parts), choice.finish_reason, usage))
            self._finish(usage)
        return self.body

    def failed(self, refusal: Refusal) -> bytes:
        """The last events of a stream that fails."""
        events = b"" if self._opened else self.opening(0)
        self._response.status = "failed"
        self._response.error = ResponseErrorBody.of(refusal)
        return events + self._lifecycle("failed") + DONE

    def _fill_sampling(self) -> None:
        """Fill temperature and top_p into the response: the values of the body, else the model's
        own, which the worker has reported.
        """
        form, sampling = self._form, self._request.sampling
        self._response.temperature = (
            sampling.temperature if form.temperature is None else form.temperature
        )
        self._response.top_p = sampling.top_p if form.top_p is None else form.top_p

    # Parts

    def _part(self, part: AnswerPart, logprobs: list[TokenLogprobBody]) -> bytes:
        if self._form.compacts:
            self._texts += [part.text] if isinstance(part, Text) else []
            return b""
        match part:
            case Text(text):
                self._logprobs += logprobs
                if not isinstance(self._open, MessageItem):
                    self._blank += text
                    if not self._blank.strip():
                        return b""
                    text, self._blank = self._blank, ""
                return self._text(text, logprobs)
            case Reasoning(text):
                events = b""
                if not isinstance(self._open, ReasoningItem):
                    thought = ReasoningItem(self._id("reasoning"), "in_progress", [])
                    events = self._start_item(thought) + self._content("added", ReasoningText(""))
                self._texts.append(text)
                return events + self._delta("reasoning_text", content_index=0, delta=text)
            case ToolCall(number, arguments, name):
                events = b""
                if self._call != number or not isinstance(self._open, AnyCallItem):
                    events = self._start_item(self._called(number, name or ""))
                    self._call = number
                self._texts.append(arguments)
                match self._open:
                    case CallItem() if arguments:
                        events += self._delta("function_call_arguments", delta=arguments)
                    case CustomCallItem() if added := self._input.add(arguments):
                        events += self._delta("custom_tool_call_input", delta=added)
                return events
            case _:
                return b""

    def _called(self, number: int, name: str) -> AnyCallItem:
        meaning = self._form.meanings.get(name) or CallMeaning("function", name)
        item_id, call_id = self._id(meaning.kind), f"call_{self._suffix}{number:02x}"
        namespace = meaning.namespace or UNSET
        match meaning.kind:
            case "function":
                return CallItem(item_id, "in_progress", call_id, meaning.name, "", namespace)
            case "custom":
                self._input = WrittenInput()
                return CustomCallItem(item_id, "in_progress", call_id, meaning.name, "", namespace)
            case "tool_search":
                return SearchCallItem(item_id, "in_progress", call_id, {})
            case "local_shell":
                return ShellCallItem(item_id, "in_progress", call_id, ShellAction([]))

    def _text(self, text: str, logprobs: list[TokenLogprobBody]) -> bytes:
        events = b""
        if not isinstance(self._open, MessageItem):
            item = MessageItem(self._id("message"), "in_progress", [])
            events = self._start_item(item) + self._content("added", OutputText(""))
        self._texts.append(text)
        return events + self._delta("output_text", content_index=0, delta=text, logprobs=logprobs)

    def _end(self) -> bytes:
        """End the open item. An empty answer gets an item with an empty text."""
        if self._form.prewarms:
            return b""
        if self._form.compacts:
            summary = sealed("".join(self._texts).strip())
            return self._start_item(CompactionItem(self._id("compaction"), summary)) + self._close(
                "completed"
            )
        empty = self._open is None and not self._response.output
        events = self._text(self._blank, []) if empty else b""
        status: ItemStatus = "incomplete" if self._finish_reason == "length" else "completed"
        return events + self._close(status)

    # Items

    def _start_item(self, item: OutputItem) -> bytes:
        events = self._close("completed")
        self._open = item
        self._texts.clear()
        # White space between two items belongs to no item.
        self._blank = ""
        return events + self._event(
            "response.output_item.added", output_index=len(self._response.output), item=item
        )

    def _close(self, status: ItemStatus) -> bytes:
        if (item := self._open) is None:
            return b""
        text = "".join(self._texts)
        match item:
            case MessageItem():
                part = OutputText(text, logprobs=self._logprobs)
                self._logprobs = []
                events = self._done("output_text", text=text, logprobs=part.logprobs, at=0)
                events += self._content("done", part)
                item.content = [part]
            case ReasoningItem():
                events = self._done("reasoning_text", text=text, at=0)
                events += self._content("done", ReasoningText(text))
                item.content = [ReasoningText(text)]
                if self._seals_reasoning:
                    item.encrypted_content = sealed(text)
            case CallItem():
                events = self._done("function_call_arguments", arguments=text, name=item.name)
                item.arguments = text
            case CustomCallItem():
                rest = self._input.end()
                events = self._delta("custom_tool_call_input", delta=rest) if rest else b""
                item.input = self._input.text
                events += self._done("custom_tool_call_input", input=item.input)
            case SearchCallItem():
                events, item.arguments = b"", arguments_of(text)
            case ShellCallItem():
                events, item.action = b"", action_of(text)
            case CompactionItem():
                events = b""
        if not isinstance(item, CompactionItem):
            item.status = status
        index = len(self._response.output)
        events += self._event("response.output_item.done", output_index=index, item=item)
        self._response.output = [*self._response.output, item]
        self._open = None
        return events

    def _finish(self, usage: Usage) -> None:
        self._over = True
        response = self._response
        response.usage = ResponseUsage.of(usage)
        if self._diagnose is not None:
            response.prompt_cache_diagnostics = self._diagnose()
        response.status = "completed"
        if self._finish_reason == "length" and not self._form.prewarms:
            response.status = "incomplete"
            response.incomplete_details = IncompleteDetails()
        else:
            response.completed_at = int(time.time())

    def _id(self, kind: Literal["message", "reasoning", "compaction"] | Kind) -> str:
        """An id by which `resolved` of `responses_input` finds the item."""
        count = len(self._response.output) + (self._open is not None)
        return f"{_PREFIXES[kind]}_{self._suffix}{count:02x}"

    # Events

    def _content(self, what: Literal["added", "done"], part: OutputText | ReasoningText) -> bytes:
        return self._event(
            f"response.content_part.{what}", **self._place(), content_index=0, part=part
        )

    def _delta(self, what: str, **fields: Any) -> bytes:
        return self._event(f"response.{what}.delta", **self._place(), **fields)

    def _done(self, what: str, at: int | None = None, **fields: Any) -> bytes:
        if at is not None:
            fields["content_index"] = at
        return self._event(f"response.{what}.done", **self._place(), **fields)

    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open.id, "output_index": len(self._response.output)}

    def _lifecycle(self, what: str) -> bytes:
        events = lifecycle_event(what, self.body, self._number)
        self._number += 1
        return events

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = numbered_event(kind, self._number, **fields)
        self._number += 1
        return event


def lifecycle_event(what: str, body: bytes, number: int) -> bytes:
    return numbered_event(f"response.{what}", number, response=Raw(body))


def numbered_event(kind: str, number: int, **fields: Any) -> bytes:
    data = msgspec.json.encode({"type": kind, "sequence_number": number, **fields})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"
