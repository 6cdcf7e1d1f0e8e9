"""The sentences for people: the cause, and what to do about it."""

from __future__ import annotations

from typing import Final

from gateway.why.changes import PromptDifference
from gateway.why.explain import Cause, Explanation
from gateway.why.swaps import Swap

_SWAPS: Final[dict[Swap, str]] = {
    "clock": "the time of day",
    "date": "the date",
    "path": "a path",
    "id": "an id",
    "counter": "a number",
}
# In these, {section}, {detail}, {reason}, {lost} and {shared} are filled in.
_SENTENCES: Final[dict[Cause, str]] = {
    "waiting": "The answer has not ended, or was given up: its worker tells at the end what it "
    "found.",
    "first": "No earlier prompt of this key and model that is remembered begins like this one.",
    "other_model": "This prompt was seen with another model, and models share no prompts.",
    "other_salt": "This prompt was seen with another cache_salt, and salts share no prompts.",
    "found": "Nearly all of the prompt was found.",
    "appended": "All that both prompts share was found: only what follows it was computed.",
    "short": "The prompt has fewer tokens than a cached block ({block}).",
    "scored": "Log probabilities of the prompt were asked for, so all of it was computed.",
    "not_cached": "The worker caches no prompts of this model.",
    "off": "The prompt cache of this model is off{reason}.",
    "model_changed": "The model's files changed: weights, adapter, tokenizer or template.",
    "version_changed": "The prompts were cached by another version of mlx-lm, or with another "
    "kv_bits.",
    "unfinished": "The earlier prompt was not computed yet when this one began.",
    "quarantined": "Cached blocks were set aside, as they failed a check{reason}.",
    "cleared": "The cached prompts were cleared.",
    "ended": "The worker that had computed the prompt ended{reason}, and the disk did not have the "
    "last {lost} tokens.",
    "slow_disk": "The disk has {lost} tokens more, but reading them seemed slower than computing "
    "them, or there was no room for them.",
    "evicted": "The worker dropped {lost} tokens of the cached prompt, as memory was short.",
    "at_places": "This model's layers can go on only from some places of an earlier prompt, and "
    "not from its answer.",
    "answer_changed": "The earlier answer came back in other tokens than the model had made: its "
    "client or the template wrote it otherwise.",
    "template_date": "The template writes the date into the prompt, and the day has changed.",
    "template": "The template wrote the same messages otherwise, behind {shared} tokens.",
    "arguments": "The arguments of the chat template changed, such as thinking or effort.",
    "tools_reordered": "The tools came in another order: {detail}.",
    "tools_added": "Tools were added: {detail}.",
    "tools_removed": "Tools were removed: {detail}.",
    "tools_replaced": "Tools were replaced: {detail}.",
    "tool_changed": "The definition of {section} changed.",
    "system_added": "A system prompt was added.",
    "system_removed": "The system prompt was left out.",
    "system_changed": "The system prompt changed.",
    "message_changed": "{section} changed.",
    "messages_removed": "{detail} of the history were left out, from {section} on.",
    "messages_inserted": "{detail} came into the history, before what was {section}.",
    "messages_summarized": "{detail} of the history were replaced by others from {section} on, as "
    "by a summary.",
    "reasoning_dropped": "The reasoning of an earlier answer was left out of the history.",
    "pictures_changed": "The pictures of {section} changed.",
    "other_conversation": "This is another conversation: it shares the beginning only.",
}
_ADVICE: Final[dict[Cause, str]] = {
    "scored": "Leave out echo or logprobs.",
    "other_salt": "Send the same cache_salt.",
    "unfinished": "Send the second request once the first answer has begun.",
    "ended": "A longer ttl_s keeps the worker, and a larger prompt_cache.disk its prompts.",
    "evicted": "More memory for the model, or fewer conversations at a time.",
    "quarantined": "`bulkhead doctor` tells more.",
    "arguments": "Keep thinking and effort the same within a conversation.",
    "tools_reordered": "Have the client sort its tools.",
    "tools_added": "Name all tools from the first turn on.",
    "tools_removed": "Keep all tools, and send tool_choice instead.",
    "tools_replaced": "Name all tools from the first turn on.",
    "tool_changed": "Keep what changes out of the definitions of tools.",
    "system_changed": "Keep the system prompt the same, and put what changes into the last "
    "message.",
    "message_changed": "Keep earlier messages as they were, and put what changes into the last.",
    "reasoning_dropped": "Send the reasoning back, if the template takes it.",
    "messages_removed": "Leave out many messages at once, and rarely.",
}


def sentence(finding: Explanation) -> str:
    """What the cause is."""
    change = finding.changes[0] if finding.changes else None
    if change is not None and finding.cause == change.kind:
        return of_change(change)
    return _SENTENCES[finding.cause].format(
        lost=f"{finding.lost_tokens:,}",
        shared=f"{finding.shared_tokens:,}",
        reason=f" ({finding.reason})" if finding.reason else "",
        block=64,
    )


def of_change(change: PromptDifference) -> str:
    """What a change is."""
    section = "the system prompt" if change.section == "system" else change.section
    text = _SENTENCES[change.kind].format(section=section, detail=change.detail)
    if change.swap is None:
        return text[0].upper() + text[1:]
    return (
        f"{_SWAPS[change.swap].capitalize()} in {section} changed: {change.old!r} became "
        f"{change.new!r}."
    )


def advice(finding: Explanation) -> str | None:
    """What to do about the cause. None: nothing is needed, or nothing helps."""
    return _ADVICE.get(finding.cause)
