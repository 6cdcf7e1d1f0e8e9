"""Sizes, times, addresses and names as people write them: parsed, formatted, and corrected."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

# kB, MB, GB and TB are decimal, as macOS counts memory and disks. KiB and so on are binary.
_SIZE_UNITS: Final = {
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
# No system counts memory in larger numbers.
LARGEST_BYTES: Final = (1 << 63) - 1
# The texts that `parse_size` accepts, for schemas.
SIZE_PATTERN: Final = r"\d{1,20}(\.\d{1,20})?\s*([kKmMgGtT][iI]?[bB]|[bB])?"
PERCENT_PATTERN: Final = r"\d{1,3}(\.\d{1,20})?\s*%"


def parse_size(value: int | str, total_bytes: int | None = None) -> int:
    """The bytes of `12000`, `"12GB"`, `"1.5GiB"`; with `total_bytes` also of `"75%"`.

    Raises:
        ValueError: the text is no size. The message is a sentence for the operator.
    """
    text = str(value).strip()
    if total_bytes is not None and (percent := _PERCENT.fullmatch(text)):
        share = float(percent[1])
        if not 0 < share <= 100:
            raise ValueError(f"{text!r} is not between 0% and 100%")
        return int(total_bytes * share / 100)
    size = _SIZE.fullmatch(text)
    if size is None or size[2].upper() not in _SIZE_UNITS:
        expected = "bytes, a size such as 12GB" + ("" if total_bytes is None else ", or 75%")
        raise ValueError(f"{text!r} is not a size: write {expected}")
    size_bytes = int(Decimal(size[1]) * _SIZE_UNITS[size[2].upper()])
    if size_bytes > LARGEST_BYTES:
        raise ValueError(f"{text!r} is more than any machine has")
    return size_bytes


def is_share(value: int | str) -> bool:
    """Whether a value is a percentage."""
    return _PERCENT.fullmatch(str(value).strip()) is not None


def format_size(size_bytes: int) -> str:
    """A size for people, such as `1.2 GB` or `418 MB`: one decimal, or none from 100 on."""
    value, units = float(size_bytes), ["B", "kB", "MB", "GB", "TB"]
    while abs(value) >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    digits = 0 if abs(value) >= 99.95 or units[0] == "B" else 1
    return f"{value:.{digits}f} {units[0]}"


_TIME_UNITS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_TIME_PART: Final = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)\s*(ms|[smhd])\s*")
# The texts that `parse_time` accepts, for schemas.
TIME_PATTERN: Final = r"^\s*(\d{1,12}(\.\d{1,12})?|(\d{1,12}(\.\d{1,12})?\s*(ms|[smhd])\s*)+)\s*$"


def parse_time(text: str) -> float:
    """Seconds of "30s", "500ms", "5m", "2h", "7d", "1h30m"; a number without a unit is seconds.

    Raises:
        ValueError: the text is no such time.
    """
    text = text.strip()
    if re.fullmatch(TIME_PATTERN, text, re.ASCII) is None:
        raise ValueError(f"{text[:40]!r} is not a time")
    parts = _TIME_PART.findall(text)
    if not parts:
        return float(text)
    return sum(float(number) * _TIME_UNITS[unit] for number, unit in parts)


def format_time(seconds: float) -> str | None:
    """A text with one unit that `parse_time` reads as exactly this time; None if there is none."""
    for unit, unit_s in _TIME_UNITS.items():
        count = round(seconds / unit_s)
        if count and parse_time(text := f"{count}{unit}") == seconds:
            return text
    return None


# Longer names aren't compared: the time grows with the product of the lengths, and names come
# from clients.
_LONGEST: Final = 100
_LEAST_PART: Final = 3


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was most likely meant; None if none is similar."""
    if len(name) > _LONGEST:
        return None
    return next(iter(difflib.get_close_matches(name.lower(), list(known), 1)), None)


def nearest_model(name: str, known: Iterable[str]) -> str | None:
    """The known id of a model that was most likely meant; None if none is similar. People write ids
    in another case, without the part before the last slash, or only in part.
    """
    if len(name) > _LONGEST:
        return None
    # Of several ids that differ only by case or owner, the first is as good as any.
    ids: dict[str, str] = {}
    for name_or_id in known:
        ids.setdefault(name_or_id.lower(), name_or_id)
        ids.setdefault(_tail(name_or_id.lower()), name_or_id)
    wanted = _tail(name.lower())
    if wanted in ids:
        return ids[wanted]
    if similar := nearest(wanted, ids):
        return ids[similar]
    if len(wanted) >= _LEAST_PART:
        longer = (model_id for model_id in ids if wanted in model_id or model_id in wanted)
        if found := min(longer, key=lambda text: abs(len(text) - len(wanted)), default=None):
            return ids[found]
    return None


def alike(name: str, known: Iterable[str]) -> list[str]:
    """The known ids of models that are similar to `name`, the likeliest first."""
    if len(name) > _LONGEST:
        return []
    ids = {name.lower(): name for name in known}
    matches = [
        ids[close_match] for close_match in difflib.get_close_matches(name.lower(), list(ids))
    ]
    first = nearest_model(name, ids.values())
    return list(dict.fromkeys(matches if first is None else [first, *matches]))


def suggestion(name: str | None) -> str:
    """A question that follows an error message: whether `name` was meant. Empty without it."""
    return "" if name is None else f" Did you mean {name!r}?"


def _tail(name: str) -> str:
    return name.rpartition("/")[2] or name


_NUMBER: Final = re.compile(r"\[Errno -?\d+\] ?")


def without_number(text: str) -> str:
    """The text of an error of the system without the number of that error."""
    return _NUMBER.sub("", text)


def url(host: str, port: int, *, tls: bool = False) -> str:
    """`http://127.0.0.1:8642`, `https://[::1]:8642`."""
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


_NAME: Final = "localhost"


def is_loopback(host: str) -> bool:
    """Whether a host of a URL, a name or an address with or without brackets, is this machine."""
    host = host.lower().removeprefix("[").removesuffix("]")
    if host == _NAME:
        return True
    try:
        return is_loopback_address(ip_address(host.partition("%")[0]))
    except ValueError:
        return False


def is_loopback_address(address: IPv4Address | IPv6Address) -> bool:
    """Whether the address is ::1, or in 127.0.0.0/8, also as an IPv4-mapped IPv6 address."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
