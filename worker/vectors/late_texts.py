"""The texts of models that make a vector of each token, marked as PyLate marks them."""

from __future__ import annotations

import dataclasses
from typing import Any

from worker.vectors.jobs import TokenizedText
from worker.vectors.recipe import RecipeError, TokenMarks


class LateTexts:
    """Marks tokenized queries and documents."""

    def __init__(self, tokenizer: Any, marks: TokenMarks) -> None:
        """`tokenizer` is transformers'.

        Raises:
            RecipeError: the tokenizer has no token for a prefix, or none to expand queries with.
        """
        self._marks = marks
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        self._query_prefix = _prefix(vocabulary, marks.query_prefix)
        self._document_prefix = _prefix(vocabulary, marks.document_prefix)
        self._skipped = {vocabulary[word] for word in marks.skipped_words if word in vocabulary}
        fillers = (tokenizer.mask_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
        self._filler = next((token for token in fillers if token is not None), None)
        if marks.expanded and self._filler is None:
            raise RecipeError("The tokenizer has no token with which queries could be expanded.")

    @property
    def query_prefixes(self) -> int:
        """How many tokens go before a query."""
        return len(self._query_prefix)

    @property
    def document_prefixes(self) -> int:
        """How many tokens go before a document."""
        return len(self._document_prefix)

    def query(self, text: TokenizedText) -> TokenizedText:
        """A query with its prefix, and expanded if the model's files say so."""
        query = _with(text, self._query_prefix)
        missing = self._marks.query_tokens - len(query.token_ids)
        if not self._marks.expanded or self._filler is None or missing <= 0:
            return query
        return dataclasses.replace(
            query,
            token_ids=query.token_ids + [self._filler] * missing,
            types=None if query.types is None else query.types + [0] * missing,
            unseen=0 if self._marks.expansion_seen else missing,
        )

    def document(self, text: TokenizedText) -> TokenizedText:
        """A document with its prefix, of which the skipped words don't count."""
        document = _with(text, self._document_prefix)
        counted = [
            place
            for place, token_id in enumerate(document.token_ids)
            if token_id not in self._skipped
        ]
        return dataclasses.replace(document, counted=counted or None)


def _prefix(vocabulary: dict[str, int], prefix: str) -> list[int]:
    if not prefix:
        return []
    if prefix not in vocabulary:
        raise RecipeError(f"The tokenizer has no token {prefix!r}, which goes before texts.")
    return [vocabulary[prefix]]


def _with(text: TokenizedText, prefix: list[int]) -> TokenizedText:
    # The prefix comes behind the token that begins a text.
    types = text.types and [*text.types[:1], *[0] * len(prefix), *text.types[1:]]
    return TokenizedText([*text.token_ids[:1], *prefix, *text.token_ids[1:]], types)
