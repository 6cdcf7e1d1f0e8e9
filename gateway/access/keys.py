"""The keys in force. Their files in the state folder are read again whenever they change.

Each key has a session, which ends all work under the key once the key is revoked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec

from gateway.access.api_key import ApiKey, HeldKey, KeyChange, KeyRing, KeyTerms, name_of_owner
from gateway.access.caller import ADMIN
from gateway.access.key_file import KeyFile, KeyFileError, Signature, ensured_admin_key
from gateway.access.limits import Accounts, Book, Counts, KeyLimits, Seat
from gateway.access.sign_ins import SignIns
from gateway.system.lane import Lane
from gateway.system.state_dir import StateDir
from gateway.system.state_file import read_state, write_secret
from gateway.system.tasks import Tasks
from protocol.answers import Usage


class KeySession:
    """The tasks that work under one key. `closed` is the reason why they were cancelled; None: the
    session is open.
    """

    def __init__(self) -> None:
        self.closed: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)

    def remove(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)

    def close(self, reason: str) -> None:
        """Cancel the session's tasks. Later requests don't get this session any more."""
        self.closed = reason
        for task in self._tasks:
            task.cancel()


class ApiKeySession(KeySession):
    """The session of an API key. `digest` tells the key from a later one of the same name."""

    def __init__(self, key: ApiKey) -> None:
        super().__init__()
        self.name = key.name
        self.digest = key.digest
        self.owner = key.owner
        self.limits = KeyLimits(key)


logger = logging.getLogger(__name__)

T = TypeVar("T")

# A command that changes the file beside the gateway doesn't notify the gateway.
_LOOK_S: Final = 1.0
# A crash may lose the usage of so many seconds.
_WRITTEN_EVERY_S: Final = 5.0
_FILE_S: Final = 20.0


class ApiKeys:
    """The keys in force, their sessions and their usage. With `required` requests need a key: from
    the first key on until `turn_off` or the gateway's end, even if the file is lost. If the gateway
    is `exposed`, so that other machines can reach it, requests always need a key. `sign_ins` are
    the sessions of the operator's page.
    """

    def __init__(self, state_dir: StateDir, *, exposed: bool) -> None:
        """Read the files of the keys, which blocks.

        Raises:
            KeyFileError: there is a file of API keys, and it can't be read.
            OSError: no admin key can be made.
        """
        self._file = KeyFile(state_dir.keys_path)
        self._admin_path = state_dir.admin_key_path
        self._usage_path = state_dir.usage_path
        self._signature: Signature = self._file.signature()
        self._keys = self._file.read()
        self._admin_secret = ensured_admin_key(self._admin_path)
        self._ring = KeyRing(self._keys, self._admin_secret)
        self._sessions: dict[str, ApiKeySession] = {}
        # The sessions of requests that came before there were keys, and of the operator's key.
        self.anybody, self.operator = KeySession(), KeySession()
        self.sign_ins = SignIns()
        self._pages: dict[bytes, KeySession] = {}
        self._since_start: dict[str, Counts] = {}
        self._accounts = Accounts(read_state(self._usage_path, Book) or Book())
        self._lane = Lane("keys")
        self._complained: str | None = None
        self._forward: Callable[[str, Usage], None] | None = None
        # Called with the owner of a key that was revoked.
        self.on_revoked: Callable[[str], None] = lambda owner: None
        self.exposed = exposed
        self.required = exposed or self._signature is not None
        self._apply(self._keys)

    @property
    def all(self) -> Sequence[ApiKey]:
        return self._keys

    def find(self, secret: bytes) -> HeldKey | None:
        """The key with this secret, which may have expired, or the page's session."""
        return self._ring.find(secret) or self.sign_ins.find(secret, time.monotonic())

    def session(self, held: HeldKey) -> KeySession:
        if held.key is not None:
            return self._sessions[held.key.name]
        if held.digest not in self.sign_ins.sessions(time.monotonic()):
            return self.operator
        return self._pages.setdefault(held.digest, KeySession())

    def opens(self, owner: str) -> bool:
        """Whether an owner's key exists and isn't revoked."""
        return owner == ADMIN or self._session_of(owner) is not None

    def watch(self, tasks: Tasks) -> None:
        tasks.repeat(self.look, "keys", _LOOK_S)
        tasks.repeat(self.write_accounts, "accounts of the keys", _WRITTEN_EVERY_S)

    async def look(self) -> None:
        """Read the files if they have changed. A file that can't be read changes nothing. Close the
        page's sessions that are over.
        """
        self._close_pages("The page's session is over.")
        try:
            signature, keys, secret = await self._beside(partial(self._read, self._signature))
        except (KeyFileError, OSError) as error:
            if str(error) != self._complained:
                self._complained = str(error)
                logger.error("The keys stay as they were: %s", error)
            return
        self._complained = None
        if secret != self._admin_secret:
            reason = "The admin key was replaced by another."
            self.operator.close(reason)
            self.on_revoked(ADMIN)
            self.operator, self.sign_ins = KeySession(), SignIns()
            self._close_pages(reason)
        if secret != self._admin_secret or keys is not None:
            self._signature, self._admin_secret = signature, secret
            self._apply(self._keys if keys is None else keys)

    def _read(self, known: Signature) -> tuple[Signature, tuple[ApiKey, ...] | None, str]:
        """Read the files, which blocks. The keys are None if their file is unchanged."""
        signature = self._file.signature()
        keys = None if signature == known else self._file.read()
        return signature, keys, ensured_admin_key(self._admin_path)

    async def add(self, name: str, terms: KeyTerms) -> tuple[ApiKey, str]:
        """Raises: KeyFileError, OSError."""
        added = await self._beside(partial(self._file.add, name, terms, time.time()))
        await self.look()
        return added

    async def change(self, name: str, change: KeyChange) -> ApiKey:
        """Raises: KeyFileError, OSError."""
        changed = await self._beside(partial(self._file.change, name, change))
        await self.look()
        return changed

    async def revoke(self, name: str) -> ApiKey:
        """Raises: KeyFileError, OSError."""
        revoked = await self._beside(partial(self._file.revoke, name))
        await self.look()
        return revoked

    async def turn_off(self) -> None:
        """Revoke all keys, and need none from now on. Not for a gateway that is `exposed`.

        Raises: KeyFileError, OSError.
        """
        await self._beside(self._file.remove)
        await self.look()
        # There is a file again if a key was made meanwhile.
        if self._signature is None and self.required:
            self.required, self.anybody = self.exposed, KeySession()

    def account(self, name: str, usage: Usage) -> None:
        """Add a request to the usage of an API key, or of the operator's key."""
        if self._forward is not None:
            self._forward(name, usage)
            return
        counts = Counts.of(usage)
        self._accounts.add(_today(), name, counts)
        self._since_start[name] = self._since_start.get(name, Counts()) + counts

    def since_start(self) -> dict[str, Counts]:
        """The usage since the gateway's start, by the names of the keys in force and of the
        operator's key. It begins again with a new key of the same name.
        """
        names = (ADMIN, *self._sessions) if self.required else ()
        return {name: self._since_start.get(name, Counts()) for name in names}

    @property
    def book(self) -> Book:
        """The usage by days, for another gateway."""
        return self._accounts.book

    def restore(self, book: Book) -> None:
        """Continue the usage that an earlier gateway has counted."""
        self._accounts = Accounts(book)
        self._accounts.mark_changed()

    def forward(self, account: Callable[[str, Usage], None] | None) -> None:
        """Have another gateway count the usage from now on; None: count it here again."""
        self._forward = account

    def spend(self, owner: str, usage: Usage) -> None:
        """Add an answer whose HTTP request is over, such as a background answer, to the usage of
        its owner's key. The answer's tokens also count against the limits of that key.
        """
        if (name := name_of_owner(owner)) is not None:
            self.account(name, usage)
        if (session := self._session_of(owner)) is not None:
            session.limits.spend(time.monotonic(), usage.prompt_tokens + usage.completion_tokens)

    def used(self) -> dict[str, tuple[Counts, Counts]]:
        """The usage of today and of this month, by the names of present and earlier keys."""
        today = _today()
        names = dict.fromkeys([*(key.name for key in self._keys), *sorted(self._accounts.names)])
        return {
            name: (self._accounts.on(today, name), self._accounts.in_month(today, name))
            for name in names
        }

    async def write_accounts(self) -> None:
        """Write the usage. Raises: OSError: the file can't be written now. Call this again."""
        if not self._accounts.pop_changed():
            return
        content = msgspec.json.encode(self._accounts.book)
        try:
            await self._beside(partial(write_secret, self._usage_path, content))
        except OSError as error:
            self._accounts.mark_changed()
            reason = f"the usage of the keys can't be kept in {self._usage_path}: {error}"
            raise OSError(error.errno, reason) from error

    def seat(self, owner: str) -> Seat | None:
        """A seat for an answer that was accepted before, such as a background answer. None: its
        owner has no API key in force.
        """
        session = self._session_of(owner)
        return None if session is None else session.limits.seat()

    def share(self, owner: str) -> int:
        """The share of an owner's key in the seconds of a model."""
        session = self._session_of(owner)
        return 1 if session is None else session.limits.terms.share or 1

    def exhausted(self, owner: str) -> bool:
        """Whether an owner's key has used all tokens that it may use in a minute."""
        session = self._session_of(owner)
        return session is not None and session.limits.exhausted(time.monotonic())

    def _session_of(self, owner: str) -> ApiKeySession | None:
        session = self._sessions.get(name_of_owner(owner) or "")
        return session if session is not None and session.owner == owner else None

    async def _beside(self, call: Callable[[], T]) -> T:
        return await self._lane.run(call, _FILE_S, "the folder of the keys")

    def _close_pages(self, reason: str) -> None:
        going_on = set(self.sign_ins.sessions(time.monotonic()))
        for digest in self._pages.keys() - going_on:
            self._pages.pop(digest).close(reason)

    def _apply(self, keys: tuple[ApiKey, ...]) -> None:
        self._keys = keys
        self._ring = KeyRing(keys, self._admin_secret)
        if self._signature is not None and not self.required:
            self.required = True
            self.anybody.close("There are API keys by now, and one is needed.")
            self.on_revoked("")
        opening = {key.name: key for key in keys}
        for name, session in list(self._sessions.items()):
            if name not in opening or opening[name].digest != session.digest:
                del self._sessions[name]
                session.close("The API key was revoked.")
                self.on_revoked(session.owner)
        for name, key in opening.items():
            if name in self._sessions:
                self._sessions[name].limits.terms = key
            else:
                self._sessions[name] = ApiKeySession(key)
                self._since_start.pop(name, None)


def _today() -> str:
    """The date in the time zone of this machine."""
    return time.strftime("%Y-%m-%d")
