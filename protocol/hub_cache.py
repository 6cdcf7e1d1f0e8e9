"""Where a Hugging Face cache has the files of a repository, whichever tool has put them there."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from protocol.model_files import read_file
from protocol.model_folder import check_names

_LONGEST_REVISION: Final = 256
_REVISION: Final = re.compile(r"\w[\w.-]*")
# A longer list would not help.
_MOST_LISTED: Final = 3


class NotInCacheError(FileNotFoundError):
    """A repository in the cache has no folder to load. The text is a clause that says what it has:
    "it has no snapshot".
    """


def find_snapshot(repository: Path) -> Path:
    """The folder with the model of a repository, whose folder in the cache is `repository`. It is
    the snapshot of the revision `main`. Without that it is the only folder with a whole model: a
    snapshot, or `repository` itself if somebody has put the files there.

    Raises:
        NotInCacheError
        OSError: the files can't be read.
    """
    main = _main(repository / "refs" / "main")
    if main is not None and os.path.isdir(repository / "snapshots" / main):  # noqa: PTH112
        return repository / "snapshots" / main
    snapshots = [repository / "snapshots" / name for name in _names(repository / "snapshots")]
    whole = [folder for folder in (*snapshots, repository) if _is_whole(folder)]
    if len(whole) == 1:
        return whole[0]
    why = "it has no refs/main"
    if (repository / "refs" / "main").is_dir():
        why = "its refs/main is a folder, which must be deleted"
    elif main is not None:
        why = f"its refs/main names {main}, which isn't there"
    if whole:
        raise NotInCacheError(f"{why}, and {_listed(whole)} are all whole models")
    if snapshots:
        raise NotInCacheError(f"{why}, and no snapshot is whole ({_listed(snapshots)})")
    raise NotInCacheError("it has no snapshot")


def _main(reference: Path) -> str | None:
    """The revision `main`; None: there is none. Raises as `find_snapshot`."""
    if reference.is_dir():
        return None
    try:
        revision = read_file(reference, _LONGEST_REVISION).decode("ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise NotInCacheError(f"its refs/main names no revision ({error})") from error
    if not _REVISION.fullmatch(revision):
        raise NotInCacheError("its refs/main names no revision")
    return revision


def _is_whole(folder: Path) -> bool:
    """Whether a folder has all files of a model. Tools link a file of a snapshot once its download
    has ended.
    """
    names = [name for name in _names(folder) if os.path.isfile(folder / name)]  # noqa: PTH113
    try:
        check_names(names)
    except ValueError:
        return False
    return "config.json" in names


def _names(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return []


def _listed(folders: Sequence[Path]) -> str:
    names = [folder.name for folder in folders[:_MOST_LISTED]]
    more = [f"{len(folders) - _MOST_LISTED} more"] if len(folders) > _MOST_LISTED else []
    *most, last = [*names, *more]
    return f"{', '.join(most)} and {last}" if most else last
