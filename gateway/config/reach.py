"""Whether a model's files can be reached at all, before anybody looks what is wrong with them."""

from __future__ import annotations

from pathlib import Path

from gateway.config.models import find_folder, hugging_face_cache
from gateway.system.machine import DeniedError, away, denied


def check_reach(located: str) -> None:
    """Blocks as long as the disk takes. `located` is an absolute folder, or a repository in the
    Hugging Face cache.

    Raises:
        AwayError: their disk isn't mounted.
        DeniedError: the system keeps them from this program.
    """
    folder = Path(located)
    if (absent := away(folder if folder.is_absolute() else hugging_face_cache())) is not None:
        raise absent
    try:
        with (find_folder(located) / "config.json").open("rb"):
            pass
    except OSError as error:
        # Whatever else it is, whoever reads them says it better.
        if (sentence := denied(error)) is not None:
            raise DeniedError(sentence) from error
