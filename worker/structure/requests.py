"""From a request to the constraint of its sequence."""

from __future__ import annotations

from typing import Any

from protocol.messages import Generate
from worker.structure.compiled import Compiled
from worker.structure.grammar import ConstraintError
from worker.structure.matching import Constrained, Thinking


def constrain(
    generate: Generate,
    compiled: Compiled,
    tokenizer: Any,
    prompt_ids: list[int],
    delivered: list[int],
) -> Constrained | None:
    """None: the answer may be anything. `delivered` is where it stands already.

    Raises:
        ConstraintError: it can't be done, and why.
    """
    constraint = generate.constraint
    if constraint is None:
        return None
    thinking = _thinking(tokenizer, prompt_ids) if generate.parsed else None
    constrained = Constrained(compiled.find(constraint), compiled.width, tuple(delivered), thinking)
    if error := constrained.begin().error:
        raise ConstraintError(f"What was delivered doesn't match it: {error}.")
    return constrained


def _thinking(tokenizer: Any, prompt_ids: list[int]) -> Thinking | None:
    """How the model's answer may begin with reasoning; None: it doesn't.

    A template may open the block itself. If the prompt closes it, there is none in this answer.
    """
    begin, end = tokenizer.think_start_tokens, tokenizer.think_end_tokens
    if not begin or not end:
        return None
    opened = tokenizer.rfind_think_start(prompt_ids)
    closed = tokenizer.rfind_think_end(prompt_ids)
    return Thinking(begin[0], tuple(end), tuple(tokenizer.eos_token_ids), opened > closed)
