"""All code that relies on undocumented parts of transformers. Functions of this file import
transformers only when they need it.

At every import, transformers searches three thousand of its files for the names that each defines.
The search is half of a worker's work until its hello. Its result depends only on these files, so
this file stores the result beside them, as Python stores bytecode. If the result can't be stored,
transformers searches at the next import again.

Where torch is installed, transformers imports it, which takes seconds and hundreds of megabytes. No
text needs it. So it is hidden from transformers until a model is to look at pictures, for which
some processors use it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import marshal
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

# The only module of transformers that mlx-lm needs. Importing it takes nearly all the time of a
# worker's imports, and uses no MLX.
SLOW_IMPORT: Final = "transformers.models.auto.tokenization_auto"
_MODULE: Final = "transformers.utils.import_utils"
_TORCH: Final = "torch"

# For each set of back ends: the names that need these back ends, by file.
Structure: TypeAlias = dict[frozenset[str], dict[str, set[str]]]
Find: TypeAlias = Callable[[Any, str | None], Structure]


def cache_import_structure() -> None:
    """Have the first import of transformers use and store the result of the search, and see no
    torch. Call this before that import.
    """
    sys.meta_path.insert(0, _Finder())


def show_torch() -> None:
    """Let transformers see torch where it is installed, as if it had never been hidden. What text
    has imported of transformers stays. Only its rotary embeddings, which are for models in torch,
    go on without.
    """
    if find_spec(_TORCH) is None:
        return
    utils = importlib.import_module(_MODULE)
    is_available = getattr(utils, "_is_package_available", None)
    if is_available is None or not hasattr(is_available, "__wrapped__"):
        return
    utils.__dict__["_is_package_available"] = is_available.__wrapped__
    for function in vars(utils).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()
    generic = importlib.import_module("transformers.utils.generic")
    generic.__dict__["_is_torch_available"] = utils.is_torch_available()
    # These have listed at their import what can't be had without torch.
    for name, module in sorted(sys.modules.items()):
        if isinstance(module, utils._LazyModule) and module.__name__ == name:
            importlib.reload(module)


def cached_structure(find: Find, models: Path) -> Find:
    """A function that replaces transformers' `define_import_structure`, which is `find`. For the
    folder `models` it stores the result, and takes the stored one until that folder changes.
    """

    def define_import_structure(module_path: Any, prefix: str | None = None) -> Structure:
        folder = Path(module_path)
        if folder not in (models, models / "__init__.py"):
            return find(module_path, prefix)
        path = Path(cache_from_source(str(models / f"structure_{prefix}.py")))
        if not sys.dont_write_bytecode:
            # The folder is made before the stamp is taken: a new folder changes the stamp.
            with contextlib.suppress(OSError):
                path.parent.mkdir(exist_ok=True)
        stamp = _stamp(models)
        known = _read(path, stamp)
        if known is not None:
            return known
        structure = find(module_path, prefix)
        if not sys.dont_write_bytecode:
            with contextlib.suppress(OSError):
                _write(path, stamp, structure)
        return structure

    return define_import_structure


def template_parameters() -> frozenset[str]:
    """The names that transformers itself passes to chat templates."""
    from transformers import PreTrainedTokenizerBase

    parameters = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
    return frozenset(parameters) | set(PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES)


def decoder_of(tokenizer: Any) -> dict[str, Any]:
    """The tokenizer's decoder, as tokenizer.json describes it; empty if the tokenizer has none."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    if decoder is None:
        return {}
    described: dict[str, Any] = json.loads(decoder.__getstate__())
    return described


class _Finder(MetaPathFinder):
    """Has `_Loader` load the module `_MODULE`, at its first import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        find = getattr(module, "define_import_structure", None)
        if find is not None:
            models = Path(self.path).parent.parent / "models"
            module.__dict__["define_import_structure"] = cached_structure(find, models)
        available = getattr(module, "_is_package_available", None)
        if available is not None:
            module.__dict__["_is_package_available"] = _without_torch(available)


def _without_torch(available: Callable[..., Any]) -> Callable[..., Any]:
    """transformers' function that looks for a package, without torch."""

    @functools.wraps(available)
    def look(pkg_name: str, *arguments: Any, **options: Any) -> Any:
        return (False, "N/A") if pkg_name == _TORCH else available(pkg_name, *arguments, **options)

    return look


def _stamp(models: Path) -> list[int]:
    """A stamp that changes with each installation of transformers."""
    try:
        statuses = [models.stat(), (models / "__init__.py").stat()]
    except OSError:
        return []
    return [number for status in statuses for number in (status.st_mtime_ns, status.st_size)]


def _read(path: Path, stamp: list[int]) -> Structure | None:
    try:
        # Safe like the bytecode in the same folder, which is read in the same way.
        known_stamp, structure = marshal.loads(path.read_bytes())  # noqa: S302
    except (OSError, EOFError, ValueError, TypeError):
        return None
    return structure if known_stamp == stamp and stamp else None


def _write(path: Path, stamp: list[int], structure: Structure) -> None:
    """Write the whole file or nothing: other processes may read and write it at the same time."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        unfinished.write_bytes(marshal.dumps((stamp, structure)))
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
