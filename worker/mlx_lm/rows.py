"""The rows of a batch that decode. Every row may carry guesses into a step.

mlx-lm's GenerationBatch gives each row one token a step. Here one forward pass takes the next token
of a row and guesses for the tokens after it. A token is drawn for every position, by the row's own
settings and random numbers. A guess is right if it is the token that was drawn for its position, so
the text is the same as without guesses. What follows a wrong guess is forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from worker.mlx_lm.caches import leaves_of
from worker.mlx_lm.decoding_row import DecodingRow, RowCaches, RowToken
from worker.mlx_lm.drafting import DraftedRow, Drafting
from worker.mlx_lm.guessing import DRAFTED, Checker, Drafter, Guesser, ObserveStep, RowGuesses
from worker.mlx_lm.recurrent_states import RecurrentStates
from worker.mlx_lm.row_caches import RowsCache, rows_caches
from worker.mlx_lm.row_groups import ONE_GROUP, Grouping, GroupSize, RowGroup, caches_of_step
from worker.mlx_lm.step_watch import DrawnTokens, are_valid, watch

# A pause that is longer than this, in seconds, is not a part of the next step.
_PAUSE_S: Final = 0.02
# In place of a token that was drawn from logits that aren't valid.
_NO_TOKEN: Final = -1


class DecodingRows:
    """Rows that decode, in the place of mlx-lm's GenerationBatch. `uids` are the numbers of the
    rows. The rows of one group are next to each other.

    The next step is given to the device before the tokens of this step are read, unless guesses are
    likely to be worth more than that.

    A row whose logits aren't valid gives out no token of them, and is `spoilt` after the step. The
    caller has to take it out before the next step.
    """

    def __init__(
        self,
        model: Any,
        checker: Callable[[mx.array], mx.array] | Checker,
        guesser: Guesser | None = None,
        observe: ObserveStep | None = None,
        drafter: Drafter | None = None,
        *,
        lends: bool,
        grouping: Grouping = ONE_GROUP,
        watches: bool = True,
    ) -> None:
        """With `lends` the last token of a row comes with the caches of the whole group, which are
        to be used before the next step. Otherwise it comes with a copy of the row's part. Without
        `watches` all logits count as valid.
        """
        self.model = model
        self._groups: list[RowGroup] = []
        self._grouping = grouping
        self._rows: list[DecodingRow] = []
        # The next tokens of all rows, if nobody has read them.
        self._drawn: DrawnTokens | None = None
        self._draw = checker
        self._watches = watches
        self._guesser = guesser
        self._observe = observe
        self._lends = lends
        self._drafting = None if drafter is None else Drafting(drafter)
        # The seconds of the drafter in this step.
        self._drafted_s = 0.0
        self._ended_at = 0.0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def uids(self) -> list[int]:
        return [row.uid for row in self._rows]

    @property
    def spoilt(self) -> list[int]:
        """The numbers of the rows whose logits weren't valid in the last step."""
        return [row.uid for row in self._rows if row.spoilt]

    def wipe(self, uids: list[int]) -> None:
        """Clear the caches of these rows. A later row gets their places, and its mask doesn't hide
        what isn't a number.
        """
        for place, row in enumerate(self._rows):
            if row.uid in uids:
                group, number = self._find(place)
                group.wipe(number)

    @property
    def prompt_cache(self) -> list[Any]:
        """The caches of the first group."""
        return self._groups[0].caches if self._groups else []

    @property
    def groups(self) -> list[tuple[GroupSize, list[int]]]:
        """The size of each group, and the numbers of its rows."""
        uids = iter(self.uids)
        return [(group.size, [next(uids) for _ in group.places]) for group in self._groups]

    @property
    def places(self) -> dict[int, RowCaches]:
        """The caches of each row. For use between two steps."""
        places = (
            RowCaches(group.caches, place) for group in self._groups for place in group.places
        )
        return dict(zip(self.uids, places, strict=True))

    def start(self, rows: list[DecodingRow], caches: list[Any]) -> None:
        """Take rows into an empty batch, and draw their first tokens. The caches are mlx-lm's, and
        lack the last token of each row.
        """
        # Caches are converted before the step: their lengths would be read after it otherwise. A
        # prompt of one token has caches whose shapes are known after the step.
        self._rows, self._groups = rows, [RowGroup(rows_caches(caches), len(rows))]
        self._draw_next(mx.array([row.prompt[-1] for row in rows]), begins=True)
        self._advance([1] * len(rows))
        self._groups = [RowGroup(rows_caches(self.prompt_cache), len(rows))]
        for cache in self._shared:
            if isinstance(cache, ArraysCache):
                cache.finalize()

    def extend(self, other: DecodingRows) -> None:
        """Take in the rows of another batch."""
        if not self._rows and (len(other._groups) > 1 or len(self._joining(other._groups[0])) == 1):
            self._rows, self._groups, self._drawn = other._rows, other._groups, other._drawn
            return
        drawn = self._read_later().join(other._read_later())
        for group in (*self._groups, *other._groups):
            group.move_rows()
        # MLX writes rows into the same memory if no step reads it any more.
        mx.eval(drawn)
        shared = self._shared if self._rows else other._shared
        if self._rows:
            for cache, more in zip(shared, other._shared, strict=True):
                cache.extend(more)
        count = iter(range(len(self._rows) + len(other._rows)))
        order = [[next(count) for _ in group.places] for group in self._groups]
        for new in other._groups:
            joined = [next(count) for _ in new.places]
            for number, rows in self._joining(new).items():
                if number == len(self._groups):
                    self._groups.append(new.part(rows, iter(shared)))
                    order.append([])
                else:
                    self._groups[number].add_rows(new, rows)
                order[number] += [joined[row] for row in rows]
        self._rows = self._rows + other._rows
        self._drawn = drawn
        self._order([row for rows in order for row in rows])

    def filter(self, keep: list[int]) -> None:
        """Keep these rows alone, by their places in the batch."""
        if not keep:
            self._rows, self._groups, self._drawn = [], [], None
            if self._drafting is not None:
                self._drafting.retain([])
            return
        order: list[int] = []
        groups = []
        begin = 0
        for group in self._groups:
            end = begin + len(group)
            rows = [place - begin for place in keep if begin <= place < end]
            if rows:
                groups.append(group)
                order += [begin + row for row in group.retain(rows)]
            begin = end
        self._order(order)
        self._groups = groups
        if self._drafting is not None:
            self._drafting.retain(self.uids)

    def extract_cache(self, place: int) -> list[Any]:
        group, row = self._find(place)
        return group.extract(row)

    def leave_out(self) -> None:
        """Have the next step not observed, since something else is computed before it."""
        self._ended_at = 0.0

    def next(self) -> list[RowToken]:
        """Compute a step. Returns the tokens of all rows, those of a row in their order."""
        if not self._rows:
            return []
        for group in self._groups:
            group.move_rows()
        began_at, since = perf_counter(), self._ended_at
        observed = self._observe is not None and began_at - since < _PAUSE_S
        unread = self._drawn is not None
        self._drafted_s = 0.0
        guesses = self._guesses()
        if unread and self._drawn is None:
            # The wait for the tokens of the last step was a part of that step.
            since, self._drafted_s = perf_counter(), 0.0
        rows = len(self._rows)
        width = 1
        if guesses is not None:
            # A row whose recurrent state was restored computes several known tokens again.
            fed = zip(self._rows, guesses, strict=True)
            width = max(row.unseen + len(row_guesses) for row, row_guesses in fed)
        # A plain step ends before its tokens are computed, so the next one shows how long it takes.
        observed &= guesses is not None or self._drawn is not None
        tokens = self._plain() if guesses is None else self._wide(guesses)
        self._ended_at = perf_counter()
        if self._observe is not None and observed:
            self._observe(rows, width, self._ended_at - since - self._drafted_s)
        return tokens

    @property
    def _can_forget(self) -> bool:
        """Whether the caches can forget wrong guesses."""
        kinds = (RowsCache, ArraysCache)
        return all(isinstance(leaf, kinds) or leaf.empty() for leaf in leaves_of(self.prompt_cache))

    @property
    def _shared(self) -> list[Any]:
        """The caches that all groups share."""
        leaves = leaves_of(self.prompt_cache)
        return [leaf for leaf in leaves if not isinstance(leaf, RowsCache)]

    def _joining(self, new: RowGroup) -> dict[int, list[int]]:
        """The rows of a new group, by the numbers of the groups that they join."""
        sizes = [group.size for group in self._groups]
        joining: dict[int, list[int]] = {}
        for row, tokens in enumerate(new.tokens):
            joining.setdefault(self._grouping.place(sizes, tokens), []).append(row)
            sizes = self._grouping.placed(sizes, tokens)
        return joining

    def _order(self, order: list[int]) -> None:
        """Have the rows in this order, by their places. Groups have their own order."""
        if order == list(range(len(self._rows))):
            return
        self._rows = [self._rows[place] for place in order]
        for cache in self._shared:
            cache.filter(order)
        if self._drawn is not None:
            self._drawn = self._drawn.order(order)

    def _find(self, place: int) -> tuple[RowGroup, int]:
        """The group of a row, and the row's number there."""
        for group in self._groups:
            if place < len(group):
                return group, place
            place -= len(group)
        raise IndexError("The batch has fewer rows.")

    def _read_later(self) -> DrawnTokens:
        """The next tokens of all rows, without a wait."""
        if self._drawn is not None:
            return self._drawn
        drawn = mx.array([row.tokens.pop() for row in self._rows], dtype=mx.uint32)
        for row in self._rows:
            row.unseen -= 1
        # Spoilt rows are gone by the time these tokens are given out.
        return DrawnTokens(drawn, mx.zeros((len(self._rows),)), -math.inf)

    def _read(self) -> None:
        """Wait for the tokens that the last step drew."""
        if self._drawn is None:
            return
        for row, token in zip(self._rows, self._wait(self._drawn), strict=True):
            row.tokens.append(token)
            row.unseen += 1
        self._drawn = None

    def _wait(self, drawn: DrawnTokens) -> list[int]:
        """Wait for tokens, and note which rows are spoilt."""
        tokens: list[int] = drawn.tokens.tolist()  # type: ignore[assignment]
        if self._watches:
            self._note_spoilt(are_valid(drawn.levels, drawn.flat_level))
        return tokens

    def _note_spoilt(self, valid: list[bool]) -> None:
        for row, is_valid in zip(self._rows, valid, strict=True):
            row.spoilt = not is_valid

    def _guesses(self) -> list[list[int]] | None:
        """The guesses of each row for the next step; None: every row takes its next token alone."""
        guesser = self._guesser
        if guesser is None or not self._can_forget:
            return None
        known = 0 if self._drawn is not None else 1
        # Rows whose recurrent state was restored have tokens to compute again.
        late = any(decoding_row.unseen > known for decoding_row in self._rows)
        if not late and self._drawn is not None and not guesser.is_likely(self.uids):
            return None
        self._read()
        first = [row.tokens[-1] for row in self._rows]
        free = min(group.free_slots for group in self._groups)
        most = [
            0
            if row.unseen > 1 or row.tokens[-1] in row.ends or row.spoilt
            else max(0, min(row.most - row.given, free) - 1)
            for row in self._rows
        ]
        guesses = guesser.guess(self.uids, first, most, self._draft)
        if not late and not any(guesses):
            return None
        checker: Any = self._draw
        return [
            checker.possible(row.uid, row_guesses) if row_guesses else []
            for row, row_guesses in zip(self._rows, guesses, strict=True)
        ]

    def _draft(self, counts: list[int]) -> list[list[int]]:
        """Have the drafter guess so many tokens for each row, whose tokens are all known."""
        if self._drafting is None:
            return [[] for _ in counts]
        checker: Any = self._draw
        began_at = perf_counter()
        rows = [
            DraftedRow(row.uid, row.length, row.since, count, row.states)
            for row, count in zip(self._rows, counts, strict=True)
        ]
        guesses, passes = self._drafting.guess(rows, checker.draw_guesses)
        self._drafted_s = perf_counter() - began_at
        if self._observe is not None and passes:
            self._observe(len(counts), DRAFTED, self._drafted_s / passes)
        return guesses

    def _plain(self) -> list[RowToken]:
        drawn = self._read_later()
        self._draw_next(drawn.tokens)
        self._advance([1] * len(self._rows))
        tokens = self._wait(drawn)
        for row, token in zip(self._rows, tokens, strict=True):
            row.tokens.append(token)
        given = [
            [] if row.spoilt else [token] for row, token in zip(self._rows, tokens, strict=True)
        ]
        return self._give(given, [0] * len(tokens))

    def _draw_next(self, inputs: mx.array, *, begins: bool = False) -> None:
        """Begin to compute the tokens after `inputs`, (rows,). With `begins` these are the last
        tokens of the prompts.
        """
        logits, states = self._forward(inputs[:, None])
        logits = logits[:, -1, :]
        self._record_states(
            states,
            [decoding_row.length - begins for decoding_row in self._rows],
            [1] * len(self._rows),
        )
        logprobs, levels, flat_level = watch(logits)
        if any(row.processors for row in self._rows):
            parts = [
                row.process(logits[index : index + 1], [] if begins else inputs[index : index + 1])
                for index, row in enumerate(self._rows)
            ]
            logprobs = _logprobs(mx.concatenate(parts))
        with self.model.sampling(self.uids):
            self._drawn = DrawnTokens(self._draw(logprobs), levels, flat_level)
        computed = self._drawn if self._watches else self._drawn.tokens
        mx.async_eval(computed)  # type: ignore[no-untyped-call]  # MLX's own stubs

    def _wide(self, guesses: list[list[int]]) -> list[RowToken]:
        rows = self._rows
        valid_before = [not row.spoilt for row in rows]
        fed = [
            [*row.tokens[len(row.tokens) - row.unseen :], *row_guesses]
            for row, row_guesses in zip(rows, guesses, strict=True)
        ]
        lengths = [len(tokens) for tokens in fed]
        width = max(lengths)
        recurrent = RecurrentStates.before(self.prompt_cache, lengths)
        logits, states = self._forward(
            mx.array([tokens + [0] * (width - len(tokens)) for tokens in fed])
        )
        if recurrent is not None and min(lengths) < width:
            recurrent.finalize()
        flat = logits.reshape(-1, logits.shape[-1])
        places = [
            index * width + place
            for index, (length, row_guesses) in enumerate(zip(lengths, guesses, strict=True))
            for place in range(length - len(row_guesses) - 1, length)
        ]
        chosen = flat if len(places) == flat.shape[0] else flat[mx.array(places)]
        firsts = [row.length - row.unseen for row in rows]
        right, following = self._check(chosen, guesses)
        wrong = [
            len(row_guesses) - count for row_guesses, count in zip(guesses, right, strict=True)
        ]
        seen = [length - gone for length, gone in zip(lengths, wrong, strict=True)]
        self._record_states(states, firsts, seen)
        self._forget_wrong(recurrent, seen, wrong, right)
        given = [
            [row.tokens[-1 - count], *row.tokens[len(row.tokens) - count :]] if was_valid else []
            for row, count, was_valid in zip(rows, right, valid_before, strict=True)
        ]
        for row, token in zip(rows, following, strict=True):
            row.tokens.append(token)
            row.unseen += 1
        return self._give(given, wrong)

    def _check(self, logits: mx.array, guesses: list[list[int]]) -> tuple[list[int], list[int]]:
        """How many guesses of each row are right, and the token that follows these. Adds the right
        guesses to the row, and notes which rows are spoilt behind them.
        """
        checker: Any = self._draw
        carried = [
            RowGuesses(row.uid, row_guesses)
            for row, row_guesses in zip(self._rows, guesses, strict=True)
        ]
        adjusted = logits
        if any(decoding_row.processors for decoding_row in self._rows):
            parts = [
                (row, row_guesses[:count])
                for row, row_guesses in zip(self._rows, guesses, strict=True)
                for count in range(len(row_guesses) + 1)
            ]
            adjusted = mx.concatenate(
                [
                    row.process(logits[index : index + 1], row_guesses)
                    for index, (row, row_guesses) in enumerate(parts)
                ]
            )
        logprobs, levels, flat_level = watch(logits)
        if adjusted is not logits:
            logprobs = _logprobs(adjusted)
        drawn: list[int] = checker.check(logprobs, logits, carried).tolist()
        valid = are_valid(levels, flat_level) if self._watches else [True] * len(drawn)
        # No guess is right at a place whose logits aren't valid.
        drawn = [
            token if is_valid else _NO_TOKEN for token, is_valid in zip(drawn, valid, strict=True)
        ]
        right: list[int] = checker.accept(drawn)
        following = []
        begin = 0
        for row, row_guesses, count in zip(self._rows, guesses, right, strict=True):
            row.tokens += row_guesses[:count]
            row.spoilt |= not valid[begin + count]
            following.append(max(0, drawn[begin + count]))
            begin += len(row_guesses) + 1
        return right, following

    def _forget_wrong(
        self, recurrent: RecurrentStates | None, seen: list[int], wrong: list[int], right: list[int]
    ) -> None:
        """Have the caches forget the tokens after a wrong guess: the first `seen` of each row stay.
        `wrong` and `right` count its guesses. A recurrent state can't forget single tokens. So the
        state from before the step is restored, and the next step computes the right tokens of that
        row again.
        """
        if recurrent is None or not any(wrong):
            self._advance(seen)
            for row in self._rows:
                row.unseen = 0
            return
        recurrent.restore([gone > 0 for gone in wrong])
        self._advance([0 if gone else tokens for tokens, gone in zip(seen, wrong, strict=True)])
        for row, gone, count in zip(self._rows, wrong, right, strict=True):
            row.unseen = row.unseen + count if gone else 0

    def _give(self, given: list[list[int]], rejected: list[int]) -> list[RowToken]:
        """The tokens that rows give out. Rows that end leave the batch."""
        row_tokens: list[RowToken] = []
        keep: list[int] = []
        lent: dict[int, list[Any]] = {}
        for place, (row, tokens) in enumerate(zip(self._rows, given, strict=True)):
            for index, token in enumerate(tokens):
                reason = row.give(token)
                row_token = RowToken(
                    row.uid, token, reason, None, index > 0, 0 if index else rejected[place]
                )
                row_tokens.append(row_token)
                if self._guesser is not None:
                    self._guesser.record(row.uid, token)
                if reason is None:
                    continue
                group, number = self._find(place)
                if not self._lends:
                    row_token.prompt_cache = RowCaches(group.extract(number), 0)
                else:
                    if id(group) not in lent:
                        lent[id(group)] = group.lent()
                    row_token.prompt_cache = RowCaches(lent[id(group)], group.places[number])
                break
            else:
                keep.append(place)
        if len(keep) < len(self._rows):
            self.filter(keep)
        return row_tokens

    def _forward(self, tokens: mx.array) -> tuple[mx.array, mx.array | None]:
        """Logits, (rows, tokens, vocabulary), of token ids, (rows, tokens), and the tokens' states,
        (rows, tokens, width), if these are wanted.
        """
        caches = caches_of_step(self._groups, tokens.shape[1])
        computed: tuple[mx.array, mx.array | None] = self.model.decode(tokens, caches)
        return computed

    def _record_states(self, states: mx.array | None, firsts: list[int], counts: list[int]) -> None:
        """Note the states of a step, if there are any: of `counts` tokens of each row, from the
        numbers `firsts` on.
        """
        if states is None:
            return
        for place, (row, first, count) in enumerate(zip(self._rows, firsts, counts, strict=True)):
            row.states.record(first, count, states, place)

    def _advance(self, tokens: list[int]) -> None:
        """Note how many tokens more of each row the caches have seen."""
        left = iter(tokens)
        for group in self._groups:
            group.advance([next(left) for _ in group.places])


def _logprobs(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)
