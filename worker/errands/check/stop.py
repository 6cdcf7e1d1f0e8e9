"""Does the model end its answers by itself?"""

from __future__ import annotations

from typing import Final

from protocol.requests import ChatMessage, ChatPrompt
from worker.errands.check.running import Runner
from worker.errands.check.subject import Findings, Subject, Teller
from worker.errands.check.tokens import turn_end

TELL: Final = Teller("stop")
_QUESTIONS: Final = (
    "What is the capital of France? Answer with one word.",
    "How many days does a week have? Answer with one number.",
    "Say hello.",
)
_MOST_TOKENS: Final = 96
# A model that thinks ends its reasoning first.
_MOST_THINKING_TOKENS: Final = 384


def check_the_stop(subject: Subject) -> Findings:
    chat = subject.chat
    prompts = [chat.tokens(ChatPrompt((ChatMessage("user", question),))) for question in _QUESTIONS]
    thinks = subject.format.reasoning is not None or subject.format.harmony
    most = _MOST_THINKING_TOKENS if thinks else _MOST_TOKENS
    runner = Runner(subject, rows=len(prompts))
    answers = runner.answers(prompts, most, ends=True)
    runner.close()
    tokenizer = subject.tokenizer
    known = set(tokenizer.eos_token_ids)
    endless = [answer for answer in answers if not answer.ended]
    ending = turn_end(subject)
    strays = {
        token
        for answer in endless
        for token in answer.tokens
        if token == ending and token not in known
    }
    texts = [str(tokenizer.decode(answer.tokens[:12])) for answer in answers]
    if strays:
        name = tokenizer.convert_ids_to_tokens(ending)
        yield TELL.fault(
            "The model ends its turns, but its answers go on.",
            f"It writes {name} within {len(endless)} of {len(answers)} answers.",
            f"Add {ending} to eos_token_id in generation_config.json.",
        )
    elif len(endless) == len(answers):
        yield TELL.warning(
            "The model doesn't end its answers to plain questions.",
            f"None of {len(answers)} answers ended within {most} tokens: {texts[0]!r}.",
            "Compare chat_template and eos_token_id with those of the original model; bound "
            "answers with max_tokens.",
            "model",
        )
    elif endless:
        yield TELL.remark(
            "Not every answer ended by itself.",
            f"{len(endless)} of {len(answers)} went on for {most} tokens.",
        )
    return f"{len(answers) - len(endless)} of {len(answers)} answers ended: {texts[0]!r}."
