"""Models that look at pictures, by mlx-vlm.

mlx-vlm and Pillow are optional dependencies. So other rooms import the files of this room only for
a model that needs them. The types in this file import neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

# The grids of patches of the pictures, in the models whose patches are in one list.
_GRIDS: Final = "image_grid_thw"


class PictureSpan(NamedTuple):
    """A picture in a prompt, from its first token to its last, number `end` - 1. `digest` is a hash
    of its file. It stands for several pictures if their tokens can't be told apart.
    """

    begin: int
    end: int
    digest: bytes


@dataclass(frozen=True, eq=False)
class PictureInputs:
    """The pictures of a sequence, as the inputs of its model. `arrays` are numpy's arrays, or other
    values of mlx-vlm, by name. They belong to a prompt of `prompt_tokens` tokens. `seen` are the
    pictures in their order.
    """

    arrays: Mapping[str, Any]
    prompt_tokens: int
    seen: tuple[PictureSpan, ...]

    @property
    def end(self) -> int:
        """The number of the token behind the last picture."""
        return self.seen[-1].end

    def digests(self, first: int = 0, last: int | None = None) -> tuple[bytes, ...]:
        return tuple(span.digest for span in self.seen[first:last])

    def before(self, tokens: int) -> int | None:
        """How many pictures are among the first `tokens` tokens; None: these end in a picture."""
        if any(span.begin < tokens < span.end for span in self.seen):
            return None
        return sum(picture_span.end <= tokens for picture_span in self.seen)

    def arrays_from(self, first: int) -> dict[str, Any] | None:
        """The arrays of the pictures from number `first` on; None: no array tells which part is
        whose.
        """
        if not first:
            return dict(self.arrays)
        grids = self.arrays.get(_GRIDS)
        pictures = len(self.seen)
        patches = [] if grids is None else [math.prod(map(int, grid)) for grid in grids]
        divided = {}
        for name, array in self.arrays.items():
            length = len(array) if hasattr(array, "__len__") else 0
            if length == pictures:
                divided[name] = array[first:]
            elif len(patches) == pictures and length == sum(patches):
                divided[name] = array[sum(patches[:first]) :]
            else:
                return None
        return divided


# Returns the stored result of pictures with these digests, or computes and stores the result.
Remember: TypeAlias = Callable[[tuple[bytes, ...], Callable[[], Any]], Any]


class PicturePrompt(Protocol):
    """The model for one sequence with pictures, called with its tokens in order.

    `whole`: the tokens of the pictures must come in one call, since they see each other.
    """

    whole: bool

    def __call__(self, tokens: Any, cache: list[Any]) -> Any: ...


class Vision(Protocol):
    """A model that looks at pictures."""

    def start_prompt(
        self,
        token_ids: list[int],
        pictures: PictureInputs | None,
        seen_tokens: int,
        remember: Remember | None = None,
    ) -> PicturePrompt:
        """The model for a sequence that begins with these tokens. Its caches have `seen_tokens` of
        them. `remember` stores results that depend on pictures alone.
        """

    def shift_behind(self, pictures: PictureInputs, tokens: int) -> int | None:
        """By how much positions behind the pictures are shifted, if these are among the first
        `tokens` tokens. None: there is something to look at.
        """


class UndecodablePictureError(Exception):
    """A picture can't be decoded. `number` is its place among the request's pictures, from 0 on."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number
        self.reason = reason


class UnusablePicturesError(Exception):
    """The model can't look at these pictures, or not at so many. The text says why."""
