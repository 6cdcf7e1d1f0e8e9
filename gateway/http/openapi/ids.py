"""Ids in paths."""

from __future__ import annotations

from starlette.convertors import Convertor


class IdConvertor(Convertor[str]):
    """Ids may have slashes, but are never empty: a slash behind a path belongs to no id, and is
    redirected as everywhere.
    """

    regex = ".+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value
