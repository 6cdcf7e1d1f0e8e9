"""The keys in force: how they follow their file, and where their usage is counted."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from gateway.access.api_key import KeyChange, KeyTerms
from gateway.access.caller import ADMIN
from gateway.access.key_file import KeyFile
from gateway.access.keys import ApiKeys, ApiKeySession
from gateway.access.limits import Counts
from gateway.system.state_dir import StateDir
from gateway.system.tasks import Tasks
from protocol.answers import Usage

USAGE = Usage(prompt_tokens=7, completion_tokens=3)


@pytest.fixture
def state_dir(tmp_path: Path) -> StateDir:
    folder = StateDir(tmp_path / "state")
    folder.path.mkdir(0o700)
    return folder


@pytest.fixture
def keys(state_dir: StateDir) -> ApiKeys:
    return ApiKeys(state_dir, exposed=False)


def _tokens(keys: ApiKeys) -> dict[str, int]:
    """The tokens of today's prompts."""
    return {name: today.prompt_tokens for name, (today, _) in keys.used().items()}


def _session(keys: ApiKeys, secret: str) -> ApiKeySession:
    held = keys.find(secret.encode())
    assert held is not None
    session = keys.session(held)
    assert isinstance(session, ApiKeySession)
    return session


async def test_keys_of_an_earlier_start_stay_valid(keys: ApiKeys, state_dir: StateDir) -> None:
    _, secret = await keys.add("laptop", KeyTerms())
    later = ApiKeys(state_dir, exposed=False)
    assert later.find(secret.encode()) is not None
    assert later.find(b"another") is None
    assert later.required
    assert [key.name for key in later.all] == ["laptop"]
    held = later.find(secret.encode())
    assert held is not None
    assert later.session(held).closed is None


async def test_new_terms_of_a_key_keep_its_session(keys: ApiKeys, state_dir: StateDir) -> None:
    # Fewer digits may also stand in the key's digest.
    _, secret = await keys.add("laptop", KeyTerms(tpm=123_456_789))
    session = _session(keys, secret)
    path = state_dir.keys_path
    changed = path.read_bytes().replace(b"123456789", b"4100")
    path.write_bytes(changed)
    await keys.look()
    assert _session(keys, secret) is session
    assert session.closed is None
    assert session.limits.terms.tpm == 4100
    await keys.change("laptop", KeyChange(tpm=None))
    assert session.limits.terms.tpm is None


async def test_unreadable_file_is_logged_once(
    keys: ApiKeys, state_dir: StateDir, caplog: pytest.LogCaptureFixture
) -> None:
    await keys.add("laptop", KeyTerms())
    good = state_dir.keys_path.read_bytes()
    for content, messages in ((b"{", 1), (b"{ ", 1), (good, 1), (b"{", 2)):
        state_dir.keys_path.write_bytes(content)
        await keys.look()
        await keys.look()
        assert len(caplog.messages) == messages
    assert all(message.startswith("The keys stay as they were: ") for message in caplog.messages)


async def test_watch_reads_files_and_writes_usage(keys: ApiKeys, state_dir: StateDir) -> None:
    KeyFile(state_dir.keys_path).add("laptop", KeyTerms(), 0.0)
    keys.account("laptop", USAGE)
    tasks = Tasks("test")
    keys.watch(tasks)
    async with asyncio.timeout(30.0):
        while not (keys.all and state_dir.usage_path.exists()):  # noqa: ASYNC110 - files tell nobody
            await asyncio.sleep(0.01)
    await tasks.cancel_all()
    assert keys.required
    assert keys.anybody.closed == "There are API keys by now, and one is needed."


async def test_after_the_last_key_one_is_needed_until_they_are_turned_off(
    keys: ApiKeys, state_dir: StateDir
) -> None:
    _, secret = await keys.add("laptop", KeyTerms())
    session = _session(keys, secret)
    await keys.revoke("laptop")
    assert (keys.required, ApiKeys(state_dir, exposed=False).required) == (True, True)
    _, other = await keys.add("phone", KeyTerms())
    running = _session(keys, other)
    await keys.turn_off()
    assert (keys.required, keys.all, keys.find(other.encode())) == (False, (), None)
    assert session.closed == running.closed == "The API key was revoked."
    assert keys.anybody.closed is None
    assert not ApiKeys(state_dir, exposed=False).required
    await keys.add("phone", KeyTerms())
    assert keys.required
    assert keys.anybody.closed is not None


async def test_exposed_gateway_needs_key_without_keys(state_dir: StateDir) -> None:
    keys = ApiKeys(state_dir, exposed=True)
    await keys.add("laptop", KeyTerms())
    await keys.turn_off()
    assert keys.required


async def test_the_page_is_the_operator_until_its_session_ends(keys: ApiKeys) -> None:
    await keys.add("laptop", KeyTerms())
    one, two = (
        keys.sign_ins.exchange(keys.sign_ins.code(time.monotonic()), time.monotonic())
        for _ in range(2)
    )
    assert one is not None
    assert two is not None
    held = [keys.find(text.encode()) for text in (one, two)]
    assert [key is not None and key.caller.admin for key in held] == [True, True]
    sessions = [keys.session(held_key) for held_key in held if held_key is not None]
    assert len({keys.operator, *sessions}) == 3
    assert keys.sign_ins.end(one.encode(), time.monotonic())
    assert not keys.sign_ins.end(one.encode(), time.monotonic())
    assert keys.find(one.encode()) is None
    await keys.look()
    assert [session.closed for session in sessions] == ["The page's session is over.", None]


async def test_the_page_is_signed_out_with_the_admin_key(
    keys: ApiKeys, state_dir: StateDir
) -> None:
    now = time.monotonic()
    secret = keys.sign_ins.exchange(keys.sign_ins.code(now), now)
    assert secret is not None
    held = keys.find(secret.encode())
    assert held is not None
    session = keys.session(held)
    state_dir.admin_key_path.unlink()
    await keys.look()
    assert session.closed == "The admin key was replaced by another."
    assert keys.find(secret.encode()) is None


async def test_only_keys_in_force_open(keys: ApiKeys) -> None:
    key, _ = await keys.add("laptop", KeyTerms())
    assert keys.opens(ADMIN)
    assert keys.opens(key.owner)
    assert not keys.opens("laptop")
    assert not keys.opens("")
    await keys.revoke("laptop")
    assert not keys.opens(key.owner)
    await keys.add("laptop", KeyTerms())
    assert not keys.opens(key.owner)


async def test_an_accepted_answer_takes_a_place_of_its_owner(keys: ApiKeys) -> None:
    key, _ = await keys.add("laptop", KeyTerms(concurrent=1))
    assert keys.seat(ADMIN) is None
    assert keys.seat("phone") is None
    assert keys.seat(key.owner) is not None


async def test_tokens_that_are_spent_count_under_the_key_of_their_owner(keys: ApiKeys) -> None:
    key, _ = await keys.add("laptop", KeyTerms(tpm=10))
    assert not keys.exhausted(key.owner)
    keys.spend(key.owner, USAGE)
    assert keys.exhausted(key.owner)
    assert not keys.exhausted(ADMIN)
    assert not keys.exhausted("phone")
    keys.spend("", USAGE)
    assert _tokens(keys) == {"laptop": 7}


async def test_usage_since_start_ends_with_its_key(keys: ApiKeys) -> None:
    assert keys.since_start() == {}, "without keys nothing is told by key"
    await keys.add("laptop", KeyTerms())
    keys.account("laptop", USAGE)
    keys.account("laptop", USAGE)
    assert keys.since_start() == {ADMIN: Counts(), "laptop": Counts(2, 14, 0, 6)}
    await keys.revoke("laptop")
    # A request that was cut off is counted a little later.
    keys.account("laptop", USAGE)
    assert keys.since_start() == {ADMIN: Counts()}
    await keys.add("laptop", KeyTerms())
    assert keys.since_start()["laptop"] == Counts()
    assert _tokens(keys)["laptop"] == 21, "the usage goes on"


async def test_usage_is_forwarded_as_long_as_another_gateway_counts(keys: ApiKeys) -> None:
    forwarded: list[tuple[str, Usage]] = []
    keys.forward(lambda name, usage: forwarded.append((name, usage)))
    keys.account("laptop", USAGE)
    assert forwarded == [("laptop", USAGE)]
    assert _tokens(keys) == {}
    keys.forward(None)
    keys.account("laptop", USAGE)
    assert len(forwarded) == 1
    assert _tokens(keys) == {"laptop": 7}


async def test_restored_usage_is_written(keys: ApiKeys, tmp_path: Path) -> None:
    keys.account("laptop", USAGE)
    folder = StateDir(tmp_path / "other")
    folder.path.mkdir(0o700)
    other = ApiKeys(folder, exposed=False)
    other.restore(keys.book)
    await other.write_accounts()
    assert _tokens(ApiKeys(folder, exposed=False)) == {"laptop": 7}


async def test_usage_is_written_after_failed_write(keys: ApiKeys, state_dir: StateDir) -> None:
    keys.account("laptop", USAGE)
    state_dir.usage_path.mkdir()
    with pytest.raises(OSError, match="can't be kept"):
        await keys.write_accounts()
    state_dir.usage_path.rmdir()
    await keys.write_accounts()
    assert _tokens(ApiKeys(state_dir, exposed=False)) == {"laptop": 7}
    # Nothing is written without a change.
    state_dir.usage_path.unlink()
    await keys.write_accounts()
    assert not state_dir.usage_path.exists()


async def test_a_key_without_a_share_has_one(keys: ApiKeys) -> None:
    plain, _ = await keys.add("plain", KeyTerms())
    heavy, _ = await keys.add("heavy", KeyTerms(share=3))
    assert (keys.share(plain.owner), keys.share(heavy.owner), keys.share("")) == (1, 3, 1)
    assert (plain.caller.share, heavy.caller.share) == (1, 3)
