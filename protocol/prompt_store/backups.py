"""Keeps a folder out of Time Machine, which would copy what comes and goes within hours."""

from __future__ import annotations

import ctypes
import os
import plistlib
from pathlib import Path
from typing import Final

# The attribute of `tmutil addexclusion`, which moves along with the folder, and its value, a binary
# property list. tmutil itself may be refused for want of Full Disk Access.
_NAME: Final = b"com.apple.metadata:com_apple_backup_excludeItem"
_VALUE: Final = plistlib.dumps("com.apple.backupd", fmt=plistlib.FMT_BINARY)


def keep_out_of_backups(folder: Path, library: str | None = None) -> None:
    """`library` None: the system's, which must be that of macOS.

    Raises: OSError: the folder's file system has no attributes, or the folder may not be changed.
    """
    setxattr = ctypes.CDLL(library, use_errno=True).setxattr
    setxattr.argtypes = (
        *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p),
        *(ctypes.c_size_t, ctypes.c_uint32, ctypes.c_int),
    )
    if setxattr(os.fsencode(folder), _NAME, _VALUE, len(_VALUE), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
