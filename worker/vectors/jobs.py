"""Jobs of the engine for vectors, and the choice of the texts that are computed together: texts of
like length, from any jobs. No I/O, and light to import.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from worker.engines.turns import Turns

# Texts up to this length are computed together whatever their lengths: padding costs less than
# another batch.
_SHORT_TOKENS: Final = 16
# In a batch with longer texts, each text has at least this share of the longest text's length.
_LEAST_SHARE: Final = 0.75


class TextPlace(NamedTuple):
    """A text: its length in tokens, the number of its job, and its place in the job."""

    tokens: int
    job: int
    place: int


class _JobOrder(NamedTuple):
    """When a job has its next turn: by its priority, lower ones first, and by the number of its
    sharer's turn, which rises with each text that is computed.
    """

    priority: int
    number: float
    share: int

    def after(self, tokens: int) -> _JobOrder:
        return self._replace(number=self.number + tokens / self.share)


class WaitingTexts:
    """Texts that wait for a batch. A job is known by a number; a later job has a larger number."""

    def __init__(self) -> None:
        self._all: list[TextPlace] = []
        self._by_job: dict[int, list[TextPlace]] = {}
        self._orders: dict[int, _JobOrder] = {}
        self._turns = Turns()

    def __len__(self) -> int:
        return len(self._all)

    def add(
        self,
        job: int,
        lengths: list[int],
        priority: int,
        sharer: str = "",
        share: int = 1,
        first: int = 0,
    ) -> None:
        """Let texts of a job wait, none of which does. `first` is the place of the first text."""
        numbered = enumerate(lengths, first)
        places = sorted(TextPlace(tokens, job, place) for place, tokens in numbered)
        if len(places) > len(self._all):
            self._all = sorted(self._all + places)
        else:
            for place in places:
                insort(self._all, place)
        self._by_job[job] = places
        number = self._turns.reserve(sharer, share, sum(lengths))
        self._orders[job] = _JobOrder(-priority, number, share)

    def remove(self, job: int) -> None:
        """Forget a job that has ended, and the texts of it that wait."""
        self._orders.pop(job, None)
        if self._by_job.pop(job, None):
            self._all = [place for place in self._all if place.job != job]

    def give_back(self, taken: list[TextPlace]) -> None:
        """Let texts that were taken and not computed wait again."""
        for place in taken:
            insort(self._all, place)
            insort(self._by_job.setdefault(place.job, []), place)

    def longest(self) -> int:
        """The length of the text that must be in the next batch; 0 if no text waits."""
        first = self._first_job()
        return 0 if first is None else self._by_job[first][-1].tokens

    def reach(self) -> int:
        """The most tokens that a text of the next batch may have."""
        longest = self.longest()
        return max(longest, _SHORT_TOKENS, int(longest / _LEAST_SHARE))

    def next_batch(self, most_tokens: int, longest_tokens: int) -> list[TextPlace]:
        """Take a batch: the longest text of the first job, by priority and then by turn, and other
        texts of like length. A batch of several texts has `most_tokens` at most, with padding, and
        no other text has more than `longest_tokens`. The first job's text may be of any length.
        """
        first = self._first_job()
        if first is None:
            return []
        self._turns.start(self._orders[first].number)
        longest = self._by_job[first][-1]
        begin = bisect_left(self._all, longest)
        end = begin + 1

        def joins(tokens: int, least: int, most: int) -> bool:
            alike = most <= _SHORT_TOKENS or least >= most * _LEAST_SHARE
            return alike and tokens <= most_tokens and most <= longest_tokens

        while begin and joins(
            (end - begin + 1) * longest.tokens, self._all[begin - 1].tokens, longest.tokens
        ):
            begin -= 1
        least = self._all[begin].tokens
        while end < len(self._all) and joins(
            (end - begin + 1) * self._all[end].tokens, least, self._all[end].tokens
        ):
            end += 1
        taken = self._all[begin:end]
        del self._all[begin:end]
        for place in taken:
            self._orders[place.job] = self._orders[place.job].after(place.tokens)
            job_texts = self._by_job[place.job]
            del job_texts[bisect_left(job_texts, place)]
            if not job_texts:
                del self._by_job[place.job]
        return taken

    def _first_job(self) -> int | None:
        return min(self._by_job, key=lambda job: (*self._orders[job][:2], job), default=None)


# "cosine" compares the vectors of a job's texts with the vector of its first text. "maxsim" does so
# with the vectors of all tokens.
VectorKind: TypeAlias = Literal["embedding", "score", "cosine", "maxsim"]


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """A text's tokens. `types` tell for each token to which text of a pair it belongs. The first
    `skipped` tokens are a prompt that isn't pooled. No token attends to the last `unseen` ones. For
    "maxsim", the vectors of the tokens at `counted` count.
    """

    token_ids: list[int]
    types: list[int] | None = None
    skipped: int = 0
    unseen: int = 0
    counted: list[int] | None = None


@dataclass(frozen=True)
class VectorJob:
    """A request for vectors, ready for the engine. `dimensions` None: vectors are not cut."""

    request_id: str
    kind: VectorKind
    texts: list[TokenizedText]
    priority: int = 0
    dimensions: int | None = None
    sharer: str = ""
    share: int = 1
