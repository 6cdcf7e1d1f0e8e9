"""Workers in the states in which wired pages tell something. They hold 1,000."""

from __future__ import annotations

from gateway.memory.stranded.account import Account

HELD = 1000


def loading(pid: int = 1, model: str = "demo", *, at: float = 0.0, wired: int = 0) -> Account:
    """One that has wired so much of it."""
    account = Account(pid, model, at)
    account.observe(at, 0.0, HELD, loads=True, works=True)
    account.climb(wired)
    return account


def computing(pid: int = 1, model: str = "demo", *, at: float = 0.0, wired: int) -> Account:
    """One that has computed for 100 seconds at this time, and wires nothing new."""
    account = loading(pid, model, at=at - 100.0, wired=wired)
    account.observe(at, 100.0, HELD, loads=False, works=True)
    return account


def at_rest(pid: int = 1, model: str = "demo", *, at: float, wired: int, lost: int = 0) -> Account:
    """One that has stopped at this time, and lost so much of what it had."""
    account = computing(pid, model, at=at - 1.0, wired=wired)
    account.observe(at, 1.0, HELD, loads=False, works=False)
    account.settle(at)
    account.fall(at, lost)
    return account


def gone_on(pid: int = 1, model: str = "demo", *, at: float, wired: int, lost: int) -> Account:
    """One that computes again from this time on."""
    account = at_rest(pid, model, at=at - 50.0, wired=wired, lost=lost)
    account.observe(at, 1.0, HELD, loads=False, works=True)
    return account
