"""Loads a model that looks at pictures by mlx-vlm, and remembers the results of its vision part."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from mlx import nn

from worker import mlx_vlm
from worker.vision import PictureInputs, Remember
from worker.vision.language import LanguagePart
from worker.vision.pictures import PictureProcessor
from worker.vision.prompt import EmbeddedPrompt

_PARTS: Final = ("vision_config", "vision_tower", "mm_vision_tower")
# The names that models give to the part that looks at pictures.
_EYES: Final = re.compile(r"(?:mm_)?(?:vision|visual)(?:_(?:tower|model|backbone|encoder))?")
# The shifts of so many prompts' pictures are known.
_MOST_KNOWN: Final = 1 << 12


class NoVisionError(Exception):
    """A model can't look at pictures. The text says why."""


def load_vision(folder: Path) -> tuple[VisionModel, dict[str, Any], PictureProcessor]:
    """The model in a folder, its configuration and its processor. The model's weights are read when
    they are used.

    Raises:
        NoVisionError: the model has no part that looks at pictures, or can't be run here.
        Exception: the files can't be understood; each architecture fails in its own way.
    """
    config = json.loads((folder / "config.json").read_text("utf-8"))
    kind = mlx_vlm.kind_of(config)
    if not any(config.get(part) for part in _PARTS):
        raise NoVisionError(
            f"{folder / 'config.json'} has no vision_config, so this model of type {kind} has no "
            "part that looks at pictures: leave pictures out, or pull a variant that has one"
        )
    if config.get("model_file") is not None:
        raise NoVisionError("its files bring code of their own, which is not run")
    if not mlx_vlm.knows(kind):
        raise NoVisionError(f"mlx-vlm doesn't know models of type {kind}")
    model = mlx_vlm.read_model(folder)
    if not hasattr(model, "language_model") or not hasattr(model, "get_input_embeddings"):
        raise NoVisionError(f"models of type {kind} answer in a way that isn't supported")
    if lacking := mlx_vlm.lacks(model, _EYES):
        raise NoVisionError(
            f"the weights in {folder} were converted for texts alone, as they have no {lacking}, "
            "although config.json has its shape: leave pictures out, or pull a conversion by "
            "mlx-vlm"
        )
    processor = mlx_vlm.read_processor(folder)
    return VisionModel(model), config, PictureProcessor(processor, config)


class VisionModel(LanguagePart):
    """A model that looks at pictures. Prompts with pictures are computed one by one, by what
    `start_prompt` gives.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model.language_model)
        self._model = model
        self._tower = Tower(model)
        # By how much positions behind pictures are shifted, by the pictures' digests.
        self._known: OrderedDict[tuple[bytes, ...], int] = OrderedDict()

    def parameters(self) -> Any:
        return self._model.parameters()

    def start_prompt(
        self,
        token_ids: list[int],
        pictures: PictureInputs | None,
        seen_tokens: int,
        remember: Remember | None = None,
    ) -> EmbeddedPrompt:
        """The model for a sequence that begins with these tokens. Its caches have `seen_tokens` of
        them. `remember` stores results that depend on pictures alone.

        Raises:
            Exception: pictures and tokens don't fit each other; each model fails in its own way.
        """
        mlx_vlm.forget_positions(self._language)
        prompted = None
        if pictures is not None:
            prompted = self._start_behind(token_ids, pictures, seen_tokens, remember)
        if prompted is None:
            digests = () if pictures is None else pictures.digests()
            with self._tower.showing(digests, remember):
                prompted = EmbeddedPrompt.of(self._model, token_ids, pictures, seen_tokens)
        if pictures is not None and prompted.shift is not None:
            self._know(pictures.digests(), prompted.shift)
        return prompted

    def _start_behind(
        self,
        token_ids: list[int],
        pictures: PictureInputs,
        seen_tokens: int,
        remember: Remember | None,
    ) -> EmbeddedPrompt | None:
        """The same without a look at the pictures that the caches have seen; None: there are no
        such pictures, or this can't be done.
        """
        first = pictures.before(seen_tokens) or 0
        shift = self._known.get(pictures.digests(0, first)) if self._shifts else 0
        if not 0 < first < len(pictures.seen) or shift is None:
            return None
        with self._tower.showing(pictures.digests(first), remember):
            return EmbeddedPrompt.behind(
                self._model, token_ids, pictures, seen_tokens, first, shift
            )

    def shift_behind(self, pictures: PictureInputs, tokens: int) -> int | None:
        """By how much positions behind the pictures are shifted, if these are among the first
        `tokens` tokens. None: there is something to look at.
        """
        if tokens < pictures.end:
            return None
        return self._known.get(pictures.digests()) if self._shifts else 0

    def _know(self, digests: tuple[bytes, ...], shift: int) -> None:
        self._known[digests] = shift
        self._known.move_to_end(digests)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)


_NAMES: Final = ("vision_tower", "vision_model", "visual", "mm_vision_tower")


class Tower:
    """Has a model ask for the results of its vision part before these are computed again."""

    def __init__(self, model: Any) -> None:
        self._digests: tuple[bytes, ...] = ()
        self._remember: Remember | None = None
        self._calls = 0
        for name in _NAMES:
            part = getattr(model, name, None)
            if isinstance(part, nn.Module):
                setattr(model, name, _RememberingPart(part, self))

    @contextmanager
    def showing(self, digests: tuple[bytes, ...], remember: Remember | None) -> Iterator[None]:
        """In the `with` block the model looks at the pictures with these digests."""
        self._digests, self._remember, self._calls = digests, remember, 0
        try:
            yield
        finally:
            self._remember = None

    def see(self, part: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The result of the part for the pictures that are being shown."""
        if self._remember is None or not self._digests:
            return part(*arguments, **options)
        # Some models show their pictures one by one.
        self._calls += 1
        digests = (*self._digests, self._calls.to_bytes(4, "little"))
        return self._remember(digests, lambda: part(*arguments, **options))


class _RememberingPart(nn.Module):  # type: ignore[misc]  # MLX leaves its types out
    """A part of a model in the place of the part itself."""

    def __init__(self, part: nn.Module, tower: Tower) -> None:
        super().__init__()
        self.part = part
        self._tower = tower

    def __getattr__(self, name: str) -> Any:
        # Models read attributes of their vision part, such as its number type.
        if name in self or "part" not in self:
            return super().__getattr__(name)
        return getattr(self["part"], name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._tower.see(self["part"], arguments, options)
