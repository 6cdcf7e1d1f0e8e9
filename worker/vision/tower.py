"""The part of a model that looks at pictures, with a memory for its results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from mlx import nn

from worker.vision import Remember

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
                setattr(model, name, _Remembered(part, self))

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


class _Remembered(nn.Module):  # type: ignore[misc]  # MLX leaves its types out
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
