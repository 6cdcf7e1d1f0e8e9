"""macOS: what sysctlbyname(3) tells."""

from __future__ import annotations

import ctypes
import os
from typing import Final

# More than any text that is asked for; the kernel refuses to cut one short.
_TEXT_BYTES: Final = 128


class SysctlByName:
    """The one call, on a library that tests can replace by a compiled stub."""

    def __init__(self, path: str | None = None) -> None:
        # None: the symbols of this process, which libSystem is always among.
        library = ctypes.CDLL(path, use_errno=True)
        self._sysctlbyname = library.sysctlbyname
        self._sysctlbyname.argtypes = (
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_size_t),
            ctypes.c_void_p,
            ctypes.c_size_t,
        )
        self._sysctlbyname.restype = ctypes.c_int

    def number(self, name: str, value: ctypes.c_int | ctypes.c_int64) -> int:
        """Raises: OSError. `value` is as wide as the kernel's, and zero."""
        self._read(name, value)
        return value.value

    def text(self, name: str) -> str:
        """Raises: OSError."""
        value = ctypes.create_string_buffer(_TEXT_BYTES)
        self._read(name, value)
        return value.value.decode("ascii", "replace")

    def _read(
        self, name: str, value: ctypes.c_int | ctypes.c_int64 | ctypes.Array[ctypes.c_char]
    ) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        encoded = name.encode("ascii")
        if self._sysctlbyname(encoded, ctypes.byref(value), ctypes.byref(size), None, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
