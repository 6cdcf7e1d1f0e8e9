"""Whose pages they are that rise. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.memory.stranded.account import PROMPT_S, Account


def take_rise(
    accounts: Iterable[Account],
    now: float,
    size_bytes: int,
    usual_bytes: Callable[[Account], int],
    step_bytes: int,
) -> int:
    """Those that go on wire again what they had; then it is of those that load: first as much as
    their models usually wire, then what they may wire. Returns what is nobody's. Two that load are
    mixed from `step_bytes` on.
    """
    accounts = list(accounts)
    for account in accounts:
        if account.works and not account.young and now - account.changed_at <= 2 * PROMPT_S:
            taken_bytes = min(size_bytes, account.room_bytes)
            account.climb(taken_bytes)
            size_bytes -= taken_bytes
    young = [each for each in accounts if each.young]
    usual = [max(0, usual_bytes(each) - each.wired_bytes) for each in young]
    shared_bytes = _share_out(size_bytes, young, usual)
    possible = [each.room_bytes for each in young]
    shared_bytes += _share_out(size_bytes - shared_bytes, young, possible)
    if len(young) > 1 and shared_bytes > step_bytes:
        for account in young:
            account.mixed = True
    return size_bytes - shared_bytes


def _share_out(size_bytes: int, accounts: list[Account], rooms: list[int]) -> int:
    """How much fits into their rooms: all are filled to the same part."""
    room_bytes = sum(rooms)
    if not room_bytes:
        return 0
    shared_bytes = min(size_bytes, room_bytes)
    for account, own_bytes in zip(accounts, rooms, strict=True):
        account.climb(shared_bytes * own_bytes // room_bytes)
    return shared_bytes
