"""Does the model find a fact in a long prompt?"""

from __future__ import annotations

import time
from typing import Final

from protocol.check import BESIDE_BYTES
from protocol.requests import ChatMessage, ChatPrompt
from worker.engines.room import measure
from worker.errands.check.loss import TEXT
from worker.errands.check.running import Runner
from worker.errands.check.subject import Findings, Subject, Teller, UncheckedError

TELL: Final = Teller("context")
_PLACES: Final = (0.1, 0.5, 0.9)
_FACT: Final = "The secret number of the harbour is 7394."
_ANSWER: Final = "7394"
_QUESTION: Final = "What is the secret number of the harbour? Answer with the number alone."
_SHORT_TOKENS: Final = 512
_LEAST_TOKENS: Final = 2048
_ANSWER_TOKENS: Final = 24
# The share of the time that is left which the long prompts may take.
_SHARE: Final = 0.6


def check_the_context(subject: Subject) -> Findings:
    loaded = subject.writer
    subject.chat  # noqa: B018  # Only a model that chats is asked.
    own = loaded.context_tokens or _LEAST_TOKENS
    force = min(subject.order.context_tokens or own, own)
    runner = Runner(subject)
    began_at = time.monotonic()
    short = min(_SHORT_TOKENS, force - _ANSWER_TOKENS)
    prompt = _prompt(subject, short, 0.5)
    if not _finds(subject, runner, prompt):
        runner.close()
        yield TELL.remark(
            "The model is too small to be asked for facts in its prompt.",
            f"It didn't find a fact in {len(prompt):,} tokens.",
        )
        return "The model finds no fact in a short prompt."
    speed = len(prompt) / (time.monotonic() - began_at)
    affordable = int(speed * subject.left_s * _SHARE / len(_PLACES))
    length = min(force - _ANSWER_TOKENS, affordable, _fitting(subject))
    if length < min(_LEAST_TOKENS, force - _ANSWER_TOKENS):
        runner.close()
        raise UncheckedError(f"Neither time nor memory is left for {_LEAST_TOKENS:,} tokens.")
    missed = [
        place for place in _PLACES if not _finds(subject, runner, _prompt(subject, length, place))
    ]
    runner.close()
    if missed:
        where = ", ".join(f"{place:.0%}" for place in missed)
        yield TELL.warning(
            "The model misses facts in long prompts.",
            f"It found the fact in {len(prompt):,} tokens; in {length:,} tokens not at {where}.",
            "Set context_tokens to what the model was trained for, and compare rope_scaling in "
            "config.json with the original.",
            "model",
        )
    shorter = "" if length >= force - _ANSWER_TOKENS else f", of {force:,} in force"
    found = len(_PLACES) - len(missed)
    return f"{found} of {len(_PLACES)} facts were found in {length:,} tokens{shorter}."


def _fitting(subject: Subject) -> int:
    """The tokens whose caches fit the memory of the check, while they are copied once."""
    limit = subject.order.limit_bytes
    sizes = measure(subject.loaded.model)
    if limit is None or not sizes.token_bytes:
        return subject.loaded.context_tokens or _LEAST_TOKENS
    free = limit - subject.loaded.weight_bytes - BESIDE_BYTES
    return max(0, free // (2 * sizes.token_bytes))


def _prompt(subject: Subject, tokens: int, place: float) -> list[int]:
    """A question behind a text of about `tokens` tokens with the fact at `place` of it."""
    sentences = TEXT.replace("\n", " ").split(". ")
    each = len(subject.tokenizer.encode(TEXT, add_special_tokens=False)) / len(sentences)
    overhead = len(_rendered(subject, "")) + 16
    count = max(2, int((tokens - overhead) / each))
    many = [sentences[number % len(sentences)] + "." for number in range(count)]
    many.insert(int(count * place), _FACT)
    return _rendered(subject, " ".join(many))


def _rendered(subject: Subject, text: str) -> list[int]:
    content = f"{text}\n\n{_QUESTION}"
    return subject.chat.tokens(ChatPrompt((ChatMessage("user", content),)))


def _finds(subject: Subject, runner: Runner, prompt: list[int]) -> bool:
    answer = runner.answers([prompt], _ANSWER_TOKENS, ends=True)[0]
    return _ANSWER in str(subject.tokenizer.decode(answer.tokens))
