"""From scores of token ids to the log probabilities that an answer carries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from protocol.parts import (
    Alternative,
    AnswerPart,
    Logprobs,
    PromptLogprobs,
    PromptToken,
    TokenLogprob,
)
from worker.sampling.scores import Score
from worker.text.token_bytes import TokenBytes

# What can't be has a logarithm that JSON can't write: as OpenAI and vLLM, who send this.
_LEAST: Final = -9999.0
# Tokens and alternatives in one part: well within a worker's frame.
_MOST_ENTRIES: Final = 4096


class LogprobWriter:
    """Of one request."""

    def __init__(self, token_bytes: TokenBytes, prompt_ids: list[int]) -> None:
        self._bytes = token_bytes
        self._prompt_ids = prompt_ids

    def part(self, token_id: int, score: Score) -> AnswerPart:
        """Of one token of the answer."""
        text = self._bytes(token_id)
        return Logprobs((TokenLogprob(text, _finite(score.logprob), self._top(score)),))

    def prompt_parts(self, scores: Sequence[Score]) -> Iterator[PromptLogprobs]:
        """Of the prompt's tokens. `scores` begin with the second token: the first has none."""
        begin, entries, tokens = 0, 0, []
        scored = zip(self._prompt_ids, [None, *scores], strict=True)
        for place, (token_id, score) in enumerate(scored):
            text = self._bytes(token_id)
            if score is None:
                tokens.append(PromptToken(text, None))
            else:
                tokens.append(PromptToken(text, _finite(score.logprob), self._top(score)))
                entries += len(score.top)
            entries += 1
            if entries >= _MOST_ENTRIES:
                yield PromptLogprobs(begin, tuple(tokens))
                begin, entries, tokens = place + 1, 0, []
        if tokens:
            yield PromptLogprobs(begin, tuple(tokens))

    def _top(self, score: Score) -> tuple[Alternative, ...]:
        return tuple(Alternative(self._bytes(each), _finite(value)) for each, value in score.top)


def _finite(logprob: float) -> float:
    """Also of what is no number."""
    return logprob if logprob > _LEAST else _LEAST
