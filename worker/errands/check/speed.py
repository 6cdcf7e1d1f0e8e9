"""How fast the model is here, as a figure to compare with later."""

from __future__ import annotations

import time
from typing import Final

from worker.errands.check.loss import TEXT
from worker.errands.check.running import Runner
from worker.errands.check.subject import Findings, Subject, Teller

TELL: Final = Teller("speed")
_TOKENS: Final = 32


def check_the_speed(subject: Subject) -> Findings:
    prompt = list(subject.tokenizer.encode(TEXT))
    runner = Runner(subject)
    runner.answers([prompt], 1)
    began_at = time.monotonic()
    runner.answers([prompt], 1)
    prompt_s = time.monotonic() - began_at
    runner.answers([prompt[:8]], _TOKENS)
    began_at = time.monotonic()
    runner.answers([prompt[:8]], _TOKENS)
    token_s = (time.monotonic() - began_at) / _TOKENS
    runner.close()
    yield from ()
    return (
        f"{len(prompt) / prompt_s:,.0f} tokens of a prompt and {1 / token_s:,.1f} tokens of an "
        "answer a second, alone."
    )
