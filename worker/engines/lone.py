"""A prompt with pictures, which is computed alone before its row joins the batch.

Positions in pictures have three parts, and the tokens of a picture may see each other. So such a
prompt isn't computed together with others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from protocol.prompt_store.payloads import KEY_BYTES
from worker.engines.row import SequenceRow
from worker.engines.sequence import Sequence
from worker.mlx_lm.generator import LARGE_VOCABULARY, stream
from worker.prompt_cache.cache import PromptCache
from worker.sampling.scores import scored_chunk
from worker.vision import PicturePrompt, Remember, Vision


class LonePrompt:
    """The prompt of one row with pictures, all but its last token."""

    def __init__(
        self,
        row: SequenceRow,
        caches: list[Any],
        vision: Vision,
        make_caches: Callable[[], list[Any]],
        prompt_cache: PromptCache | None,
    ) -> None:
        """`caches` have seen the first `row.seen_tokens` tokens."""
        self.row = row
        self.caches = caches
        self._vision = vision
        self._make_caches = make_caches
        self._remember = None if prompt_cache is None else _remember(prompt_cache, row.sequence)
        self._prompt: PicturePrompt | None = None
        self._vocabulary = LARGE_VOCABULARY

    @property
    def left(self) -> int:
        """How many tokens are left to compute."""
        return len(self.row.sequence.token_ids) - 1 - self.row.seen_tokens

    @property
    def has_looked(self) -> bool:
        return self._prompt is not None

    def look(self) -> None:
        """Compute what the model sees in the pictures.

        Raises:
            Exception: pictures and tokens don't fit each other; each model fails in its own way.
        """
        row = self.row
        with stream():
            prompt = self._start()
            if prompt.whole and row.seen_tokens:
                # The model computes this prompt only as a whole, so cached blocks are of no use.
                self.caches = self._make_caches()
                row.forget_cached()
                prompt = self._start()
        self._prompt = prompt

    def advance(self, chunk: int, working_bytes: int) -> int:
        """Compute about `chunk` tokens, and return how many. The scores of a prompt's tokens may
        take `working_bytes`; 0: this isn't known.

        Raises:
            Exception: see `look`.
        """
        prompt = self._prompt
        assert prompt is not None
        length = self._length(prompt, chunk, working_bytes)
        self._vocabulary = self.row.compute_prompt(prompt, self.caches, length)
        return length

    def _start(self) -> PicturePrompt:
        row, sequence = self.row, self.row.sequence
        return self._vision.start_prompt(
            sequence.token_ids, sequence.pictures, row.seen_tokens, self._remember
        )

    def _length(self, prompt: PicturePrompt, chunk: int, working_bytes: int) -> int:
        row, pictures = self.row, self.row.sequence.pictures
        length = self.left if prompt.whole else min(self.left, chunk)
        if row.prompt_scores is not None:
            length = min(length, scored_chunk(1, self._vocabulary, working_bytes))
        if (boundary := row.next_boundary) is not None:
            length = min(length, boundary - row.seen_tokens)
        if prompt.whole and pictures is not None:
            length = max(length, min(self.left, pictures.end - row.seen_tokens))
        return length


def _remember(prompt_cache: PromptCache, sequence: Sequence) -> Remember | None:
    """Keeps what the model sees among the blocks of the prompt cache, for the sequences with which
    this one shares its blocks.
    """
    path = sequence.path
    if path is None:
        return None

    def remember(digests: tuple[bytes, ...], compute: Callable[[], Any]) -> Any:
        named = b"".join([path.root, b"pictures", *digests])
        return prompt_cache.remember(
            hashlib.blake2b(named, digest_size=KEY_BYTES).digest(), compute
        )

    return remember
