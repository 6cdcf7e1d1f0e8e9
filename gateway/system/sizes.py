"""Sizes in bytes as people write them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

# Decimal, as macOS counts memory and disks; the binary units have names of their own.
_UNITS: Final = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE: Final = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]*)", re.ASCII)
_PERCENT: Final = re.compile(r"(\d{1,3}(?:\.\d{1,20})?)\s*%", re.ASCII)
# What any system counts memory in.
LARGEST_BYTES: Final = (1 << 63) - 1
# What `parse_size` takes, for those who can't call it.
SIZE_PATTERN: Final = r"\d{1,20}(\.\d{1,20})?\s*([kKmMgGtT][iI]?[bB]|[bB])?"
PERCENT_PATTERN: Final = r"\d{1,3}(\.\d{1,20})?\s*%"


def parse_size(value: int | str, total_bytes: int | None = None) -> int:
    """Bytes of `12000`, `"12GB"`, `"1.5GiB"`, or `"75%"` where a total is given.

    Raises:
        ValueError: with a sentence for the operator.
    """
    text = str(value).strip()
    if total_bytes is not None and (percent := _PERCENT.fullmatch(text)):
        share = float(percent[1])
        if not 0 < share <= 100:
            raise ValueError(f"{text!r} is not between 0% and 100%")
        return int(total_bytes * share / 100)
    size = _SIZE.fullmatch(text)
    if size is None or size[2].upper() not in _UNITS:
        expected = "bytes, a size such as 12GB" + ("" if total_bytes is None else ", or 75%")
        raise ValueError(f"{text!r} is not a size: write {expected}")
    size_bytes = int(Decimal(size[1]) * _UNITS[size[2].upper()])
    if size_bytes > LARGEST_BYTES:
        raise ValueError(f"{text!r} is more than any machine has")
    return size_bytes


def is_share(value: int | str) -> bool:
    """Whether it is a percentage of something."""
    return _PERCENT.fullmatch(str(value).strip()) is not None


def format_size(size_bytes: int) -> str:
    """`1.2 GB`, `418 MB`: three digits at most."""
    value, units = float(size_bytes), ["B", "kB", "MB", "GB", "TB"]
    while abs(value) >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    digits = 0 if value >= 100 or units[0] == "B" else 1
    return f"{value:.{digits}f} {units[0]}"
