"""The folders of models, adapters and pictures that a configuration names, and whether they can be
read.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import gateway
from gateway.system.file_access import DeniedError, away, denied, is_denied
from protocol.hub_cache import find_snapshot

DEMO_ID: Final = "demo"
DEMO_FOLDER: Final = Path(gateway.__file__).resolve().parent / "demo_model"

# The files that mlx-lm's `load_adapters` opens.
_ADAPTER_FILES: Final = ("adapter_config.json", "adapters.safetensors")

_REPOSITORY: Final = re.compile(r"[\w.-]+/[\w.-]+")


class NotThereError(ValueError):
    """A folder or repository is missing, and may exist later. `place` is the folder or repository
    that a worker would then load. The text is a sentence that says what is missing.
    """

    def __init__(self, message: str, place: str) -> None:
        super().__init__(message)
        self.place = place


def model_from_flag(text: str) -> tuple[str, str]:
    """Split the value of --model, `PATH_OR_REPO[=ID]`, into the id and the folder or repository.

    If the whole value is the path of a folder that exists, an `=` in it belongs to the path.
    """
    source, separator, model_id = text.rpartition("=")
    if not separator or _is_folder(text):
        return _default_id(text), text
    return model_id or _default_id(source), source


def _default_id(source: str) -> str:
    if _REPOSITORY.fullmatch(source) and not _is_folder(source):
        return source.rpartition("/")[2]
    # A link is not resolved, as its own name becomes the id.
    return Path(os.path.abspath(expand_home(source))).name  # noqa: PTH100


def expand_home(path: str) -> Path:
    """The path with the home folder in place of `~`. The `~NAME` of an unknown account stays."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser may raise.


def _is_folder(text: str) -> bool:
    try:
        return Path(text).is_dir()
    except OSError:
        return False  # For example, the text is too long for a path.


def locate(source: str) -> str:
    """The absolute folder, or the repository in the Hugging Face cache, that a worker loads. If the
    disk of a path isn't mounted, or the system denies the path, it is accepted without a look. It
    may become readable later; if not, the load of the model reports the cause.

    Raises:
        ValueError: with a sentence that says what is wrong, and what to do. It is a NotThereError
            if no folder or repository has the name `source`.
    """
    if not source.strip():
        raise ValueError("It is empty: name a model's folder or a repository.")
    try:
        os.fsencode(source).decode()
    except UnicodeDecodeError:
        raise ValueError(f"The name of {source} is not UTF-8: rename the folder.") from None
    if source == DEMO_ID and not _is_folder(source):
        return str(DEMO_FOLDER)
    folder = expand_home(source)
    if _is_folder(str(folder)):
        return str(folder.resolve())
    if folder.is_absolute() and not_yet(folder):
        return str(folder)
    if os.path.exists(folder):  # noqa: PTH110 - Path.exists may raise.
        raise ValueError(
            f"{source} is a file: name the folder that holds config.json and the weights."
        )
    if not _REPOSITORY.fullmatch(source) or source.startswith("."):
        raise NotThereError(f"There is no model folder {source}.", str(folder.absolute()))
    repository = repository_folder(source)
    if not _is_folder(str(repository)) and not not_yet(repository):
        raise NotThereError(
            f"{source} is neither a folder nor in the Hugging Face cache "
            f"({hugging_face_cache()}): get it with `bulkhead pull {source}`.",
            source,
        )
    return source


def not_yet(path: Path) -> bool:
    """Whether a path may be readable later: its disk isn't mounted, or the system denies it."""
    return away(path) is not None or is_denied(path)


def check_holds_model(located: str) -> None:
    """Check that a model that `locate` found has a config.json. A model that may be readable later
    passes.

    Raises:
        NotThereError: the model has no config.json, or there is none in the repository.
    """
    try:
        folder = find_folder(located)
    except OSError as error:
        if denied(error) is not None or away(hugging_face_cache()) is not None:
            return
        raise NotThereError(
            f"{located} is in the Hugging Face cache without its revision main, and can't be used: "
            f"{error}. Get it with `bulkhead pull {located}`.",
            located,
        ) from None
    config = folder / "config.json"
    if not os.path.isfile(config) and not not_yet(config):  # noqa: PTH113 - Path.is_file may raise.
        raise NotThereError(f"{folder} holds no model: there is no config.json.", located)


def check_allowed(located: str, allowed: Iterable[str]) -> None:
    """Check that a model that `locate` found is in an allowed folder, or is a repository that
    matches an allowed pattern. If `allowed` is empty, every model is allowed.

    Raises:
        ValueError: with a sentence for the operator.
    """
    if not allowed:
        return
    for pattern in allowed:
        folder = expand_home(pattern)
        if folder.is_absolute():
            if Path(located).is_absolute() and Path(located).is_relative_to(folder.resolve()):
                return
        elif fnmatchcase(located, pattern):
            return
    raise ValueError(f"{located} is not allowed: gateway.allow has {', '.join(allowed)}.")


def find_model(path: str, allowed: Iterable[str]) -> str:
    """The folder or repository that a worker loads as a model.

    Raises:
        ValueError: with a sentence for the operator. It is a NotThereError if the model is missing,
            and would be allowed.
    """
    try:
        located = locate(path)
        check_holds_model(located)
    except NotThereError as error:
        try:
            check_allowed(error.place, allowed)
        except ValueError:
            raise ValueError(str(error)) from None
        raise
    check_allowed(located, allowed)
    return located


def find_draft(path: str, allowed: Iterable[str]) -> str:
    """The absolute folder of a draft model.

    Raises:
        ValueError: with a sentence for the operator.
    """
    try:
        located = find_model(path, allowed)
    except NotThereError as error:
        raise NotThereError(str(error), str(hugging_face_cache() / error.place)) from error
    try:
        return str(find_folder(located))
    except OSError as error:
        raise ValueError(f"{located} can't be read: {error}.") from error


def find_adapter(path: str, allowed: Iterable[str]) -> str:
    """The absolute folder of an adapter, which must be in an allowed folder, also if it is missing.

    Raises:
        ValueError: with a sentence for the operator.
    """
    folder = expand_home(path)
    if not path.strip():
        raise ValueError(f"There is no adapter's folder {path}.")
    if folder.is_absolute() and not_yet(folder):
        check_allowed(str(folder), allowed)
        return str(folder)
    located = str(folder.resolve())
    check_allowed(located, allowed)
    if not _is_folder(str(folder)):
        raise NotThereError(f"There is no adapter's folder {path}.", str(folder.absolute()))
    for name in _ADAPTER_FILES:
        if not os.path.isfile(folder / name):  # noqa: PTH113 - Path.is_file may raise.
            raise NotThereError(
                f"{path} holds no adapter: there is no {name}.", str(folder.absolute())
            )
    return located


def find_program(name: str, folder: str | None) -> str:
    """The absolute path of a program, as a shell in `folder` finds it, or beside the gateway's own
    interpreter.

    Raises:
        NotThereError: there is no such program, or it may not be run, or there is no such folder.
    """
    working_folder = expand_home(folder or "~")
    if os.sep in name:
        program = shutil.which(str(working_folder / expand_home(name)))
    else:
        beside = str(Path(sys.executable).parent)
        program = shutil.which(name) or shutil.which(name, path=beside)
    if program is None:
        raise NotThereError(
            f"There is no program {name} that may be run: name its path, or install it.", name
        )
    if not working_folder.is_dir():
        raise NotThereError(
            f"There is no folder {working_folder} for the program to work in.", program
        )
    return program


def find_pictures(path: str) -> str:
    """The folder at `path`, in which requests may name pictures.

    Raises:
        ValueError: with a sentence for the operator.
    """
    folder = expand_home(path)
    if not _is_folder(str(folder)) and not not_yet(folder):
        raise ValueError(f"There is no folder of pictures {path}.")
    return str(folder)


def find_folder(located: str) -> Path:
    """The folder of a model that `locate` found. For a repository see `find_snapshot`.

    Raises:
        OSError: the repository can't be read. It is a NotInCacheError if no model is in it.
    """
    folder = Path(located)
    if folder.is_absolute():
        return folder
    return find_snapshot(repository_folder(located))


def repository_folder(name: str) -> Path:
    """The folder of a repository in the Hugging Face cache."""
    return hugging_face_cache() / f"models--{name.replace('/', '--')}"


def hugging_face_cache() -> Path:
    """The folder of the Hugging Face cache, by the rules of huggingface_hub. An import of
    huggingface_hub would take too long for this.
    """
    given = os.environ.get
    cache = given("HF_HUB_CACHE") or given("HUGGINGFACE_HUB_CACHE")
    if cache is None:
        home = given("HF_HOME") or f"{given('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
        cache = f"{home}/hub"
    return Path(os.path.expandvars(cache)).expanduser()


def check_reach(located: str) -> None:
    """Check that a model that `locate` found can be read. Blocks as long as the disk takes.

    Raises:
        AwayError: the model's disk isn't mounted.
        DeniedError: the system denies the model's files to this program.
    """
    folder = Path(located)
    if (absent := away(folder if folder.is_absolute() else hugging_face_cache())) is not None:
        raise absent
    try:
        with (find_folder(located) / "config.json").open("rb"):
            pass
    except OSError as error:
        # Other errors are reported better by the code that reads the files.
        if (sentence := denied(error)) is not None:
            raise DeniedError(sentence) from error
