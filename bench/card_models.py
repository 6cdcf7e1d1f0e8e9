"""The models of `python -m bench.card`, which are built all at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from bench.copying import EIGHT_BILLION, THIRTY_BILLION, make_copying_model
from bench.models import HALF_BILLION, build_model, copy_without_end

SMALL: Final = "0.6B, 16 bits"
EIGHT: Final = "8B, 4 bits"
MIXTURE: Final = "30B mixture, 4 bits"


class Models:
    """Builds each of the models in a process of its own, which gives its memory back."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._folder = folder
        self._building = {name: self._start_build(name) for name in names}

    def folder_of(self, name: str) -> Path:
        """A copy of a model that never ends an answer. Waits until the model is built."""
        folder = self._folder / name.split(",")[0].replace(" ", "-")
        if not folder.exists():
            self._building[name].join()
            copy_without_end(self._source(name), folder)
        return folder

    def wait(self) -> None:
        """Wait until all models are built, since a build would disturb a measurement."""
        for process in self._building.values():
            process.join()

    def _start_build(self, name: str) -> BaseProcess:
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_BUILDS[name], args=(self._source(name),))
        process.start()
        return process

    def _source(self, name: str) -> Path:
        return self._folder / f"{name} source"


def _build_small(folder: Path) -> None:
    build_model(folder, HALF_BILLION)


def _build_eight(folder: Path) -> None:
    make_copying_model(folder, EIGHT_BILLION, bits=4)


def _build_mixture(folder: Path) -> None:
    make_copying_model(folder, THIRTY_BILLION, bits=4)


_BUILDS: Final = {SMALL: _build_small, EIGHT: _build_eight, MIXTURE: _build_mixture}
