"""Does all that a client sends arrive in the prompt, and does a turn begin with the turn before?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from protocol.check import CheckFinding
from protocol.requests import CalledTool, ChatMessage, ChatPrompt, Tools
from worker.errands.check.subject import Findings, Subject, Teller, shared
from worker.mlx_lm.text import renderer_of
from worker.system.errors import PromptError
from worker.template.writer import MessageWriter
from worker.text.families import template_text

TELL: Final = Teller("template")
_USER: Final = ChatMessage("user", "probed-question")
_ANSWER: Final = ChatMessage("assistant", "probed-answer")
_NEXT: Final = ChatMessage("user", "probed-next")
_SYSTEM: Final = ChatMessage("system", "probed-system")
_CALL: Final = CalledTool("probe1234", "probed_tool", '{"probed_key": "probed-value"}')
_CALLING: Final = ChatMessage("assistant", "", tool_calls=(_CALL,))
_RESULT: Final = ChatMessage("tool", "probed-result", tool_call_id=_CALL.id)
_THINKING: Final = ChatMessage("assistant", "", reasoning="probed-reasoning", tool_calls=(_CALL,))
TOOLS: Final = Tools(
    definitions=json.dumps(
        [
            {
                "type": "function",
                "function": {
                    "name": "probed_tool",
                    "description": "probed-description",
                    "parameters": {
                        "type": "object",
                        "properties": {"probed_key": {"type": "string"}},
                        "required": ["probed_key"],
                    },
                },
            }
        ]
    )
)
# Conversations that templates refuse or shorten, with the texts that have to arrive.
_TRIED: Final[dict[str, tuple[Sequence[ChatMessage], tuple[str, ...]]]] = {
    "a system message": ((_SYSTEM, _USER), ("probed-system", "probed-question")),
    "a system message after the first turn": (
        (_USER, _ANSWER, _SYSTEM, _NEXT),
        ("probed-question", "probed-answer", "probed-system", "probed-next"),
    ),
    "two messages of the user in a row": ((_USER, _NEXT), ("probed-question", "probed-next")),
    "a call and its result": (
        (_USER, _CALLING, _RESULT),
        ("probed_tool", "probed_key", "probed-value", "probed-result"),
    ),
}
# Tags that are single tokens in every model that has them.
_TAG: Final = re.compile(
    r"<\|(?:im_start|im_end|start_header_id|end_header_id|eot_id|end_of_text|endoftext|"
    r"begin_of_text)\|>|<(?:start|end)_of_turn>"
)
_CLOCK: Final = re.compile(r"strftime_now\([^)]*%[HMSXcTs]")


def check_the_template(subject: Subject) -> Findings:
    chat = subject.chat
    try:
        asked = _text(subject, [_USER])
        after = _text(subject, [_USER, _ANSWER, _NEXT])
    except PromptError as error:
        yield TELL.fault(
            "The chat template takes no conversation.",
            error.message,
            "Take the chat_template of the original model.",
        )
        return "The template fails."
    dropped = [m.content for m in (_USER, _ANSWER, _NEXT) if m.content not in after]
    if dropped:
        yield TELL.fault(
            "The template drops messages.",
            f"The prompt lacks {', '.join(dropped)}.",
            "Take the chat_template of the original model.",
        )
    else:
        yield from _turns(subject, asked, after)
    yield from _special(subject, after)
    yield from _tools(subject)
    if not dropped:
        # A template that drops messages loses these, too, and nothing of ours could heal it.
        yield from _tried(subject)
    yield from _reasoning(subject)
    tokens = len(chat.tokens(ChatPrompt((_USER,))))
    return f"A question of one word becomes {tokens} tokens."


def _tried(subject: Subject) -> Iterator[CheckFinding]:
    refused = list(_refused(subject))
    for what in _TRIED:
        if texts := _missing(subject, what):
            yield TELL.fault(
                f"The prompt lacks a part of {what}.",
                f"Missing: {', '.join(texts)}.",
                "Report it with the name of the model.",
                "bulkhead",
            )
    if refused:
        yield TELL.remark(
            "The template refuses some conversations, or leaves parts of them out.",
            f"They are: {', '.join(refused)}.",
            "Nothing is to be done: Bulkhead writes such messages in a form that the template "
            "takes.",
        )


def _text(subject: Subject, messages: Sequence[ChatMessage], tools: Tools | None = None) -> str:
    return subject.chat.text(ChatPrompt(tuple(messages)), tools, lambda message: message.content)


def _turns(subject: Subject, asked: str, after: str) -> Iterator[CheckFinding]:
    if _CLOCK.search(template_text(subject.tokenizer)):
        yield TELL.warning(
            "The template writes the time of day into each prompt.",
            "It calls strftime_now with hours, minutes or seconds.",
            "Leave the time out of the template: the prompt cache finds nothing otherwise.",
            "model",
        )
    same = shared(asked, after)
    if same == asked:
        return
    if _USER.content not in same:
        yield TELL.warning(
            "A turn doesn't begin with the turn before, so each turn is computed anew.",
            f"The prompts differ from {asked[len(same) :][:40]!r} on, before the first question.",
            "Take the chat_template of the original model; what changes belongs behind the "
            "conversation.",
            "model",
        )
        return
    opened = asked[len(same) :]
    reasons = subject.format.reasoning
    if reasons is not None and (reasons.start in opened or reasons.start in same[-40:]):
        yield TELL.remark(
            "The last answer is written otherwise in the next turn, so it is computed anew.",
            f"A prompt ends in {opened[:40]!r}, which a later turn leaves out.",
        )
    else:
        yield TELL.warning(
            "A prompt ends otherwise than an answer begins in the conversation.",
            f"It ends in {opened[:40]!r}; in the next turn {after[len(same) :][:40]!r} stands "
            "there.",
            "Compare the end of chat_template, at add_generation_prompt, with the original.",
        )


def _special(subject: Subject, text: str) -> Iterator[CheckFinding]:
    split = {}
    for tag in sorted(set(_TAG.findall(text))):
        ids = list(subject.tokenizer.encode(tag, add_special_tokens=False))
        if len(ids) != 1:
            split[tag] = len(ids)
    if split:
        tag, count = next(iter(split.items()))
        yield TELL.fault(
            "The template writes special tokens that the tokenizer doesn't have.",
            f"{', '.join(split)}: {tag} becomes {count} ordinary tokens.",
            "Copy tokenizer.json, tokenizer_config.json and the template from one model.",
        )


def _tools(subject: Subject) -> Iterator[CheckFinding]:
    try:
        text = _text(subject, [_USER], TOOLS)
    except PromptError as error:
        yield TELL.fault(
            "The template fails with tools.",
            error.message,
            "Take the chat_template of the original model.",
        )
        return
    wanted = ("probed_tool", "probed-description", "probed_key")
    lost = [part for part in wanted if part not in text]
    if not lost:
        return
    knows = sorted(_call_tags(subject))
    if lost == list(wanted) and not knows:
        yield TELL.remark(
            "The template doesn't tell the model of tools.",
            "Neither their names nor their descriptions arrive, and the vocabulary has no tag of "
            "calls.",
            "Take another model for requests with tools.",
        )
    else:
        evidence = f"The prompt lacks {', '.join(lost)}"
        evidence += f", though the model knows {', '.join(knows)}." if knows else "."
        yield TELL.fault(
            "The template drops tools.",
            evidence,
            "Take the chat_template of the original model, which writes tools.",
        )


def _call_tags(subject: Subject) -> set[str]:
    """The tags of calls that the vocabulary has."""
    vocabulary = subject.tokenizer.get_vocab()
    return {block.start for block in subject.format.blocks if block.start in vocabulary}


def _refused(subject: Subject) -> Iterator[str]:
    """The conversations that the bare template refuses, or of which it leaves out a part."""
    renderer, _ = renderer_of(subject.tokenizer)

    def render(messages: list[dict[str, Any]]) -> str:
        return str(renderer.apply_chat_template(messages, tokenize=False))

    writer = MessageWriter(template_text(subject.tokenizer), render)
    for what, (messages, wanted) in _TRIED.items():
        try:
            text = render(writer.messages(messages))
        except Exception:
            # A template is a program, and refuses in any way.
            yield what
            continue
        if any(part not in text for part in wanted):
            yield what


def _missing(subject: Subject, what: str) -> list[str]:
    messages, wanted = _TRIED[what]
    tools = TOOLS if any(message.tool_calls for message in messages) else None
    text = _text(subject, messages, tools)
    return [part for part in wanted if part not in text]


def _reasoning(subject: Subject) -> Iterator[CheckFinding]:
    if subject.format.reasoning is None and not subject.format.harmony:
        return
    text = _text(subject, [_USER, _THINKING, _RESULT], TOOLS)
    if "probed-reasoning" not in text:
        yield TELL.remark(
            "The reasoning before a call isn't shown to the model again.",
            "The prompt after a tool's result lacks it.",
        )
