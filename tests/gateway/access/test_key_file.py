from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.access.api_key import KeyChange, KeyTerms, digest_of, name_of_owner
from gateway.access.key_file import (
    KeyFile,
    KeyFileError,
    NoSuchKeyError,
    admin_key,
    ensured_admin_key,
)
from gateway.system.state_file import write_secret


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "state" / "keys.json")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_file_has_only_hash_and_narrow_rights(file: KeyFile) -> None:
    assert file.read() == ()
    key, secret = file.add("laptop", KeyTerms(rpm=5, models=("demo",)), 100.0)
    assert mode(file.path) == 0o600
    assert secret not in file.path.read_text()
    assert key.digest == digest_of(secret.encode()).hex()
    assert file.read() == (key,)
    assert (key.rpm, key.models, key.created_at) == (5, ("demo",), 100.0)


def test_revoked_keys_are_gone_and_the_file_stays(file: KeyFile) -> None:
    file.add("laptop", KeyTerms(), 100.0)
    with pytest.raises(KeyFileError, match=r"already.*`bulkhead key revoke laptop`"):
        file.add("laptop", KeyTerms(), 101.0)
    file.revoke("laptop")
    assert file.read() == ()
    assert file.signature() is not None, "requests still need a key"
    for name in ("laptop", "phone"):
        with pytest.raises(NoSuchKeyError):
            file.revoke(name)
    file.add("laptop", KeyTerms(), 104.0)
    assert [key.name for key in file.read()] == ["laptop"]
    file.remove()
    file.remove()
    assert (file.read(), file.signature()) == ((), None)


def test_a_key_that_an_older_version_has_revoked_stays_revoked(file: KeyFile) -> None:
    key, _ = file.add("laptop", KeyTerms(), 100.0)
    old = file.path.read_text().replace('"revoked_at": null', '"revoked_at": 101.0')
    write_secret(file.path, old.encode())
    assert file.read() == ()
    assert key.digest in old


def test_terms_change_and_the_secret_stays(file: KeyFile) -> None:
    key, _ = file.add("laptop", KeyTerms(rpm=5, models=("demo",)), 100.0)
    changed = file.change("laptop", KeyChange(rpm=6, models=None, tpm=7))
    assert (changed.rpm, changed.models, changed.tpm) == (6, None, 7)
    assert (changed.digest, changed.owner) == (key.digest, key.owner)
    assert file.read() == (changed,)
    with pytest.raises(NoSuchKeyError, match="there are: laptop"):
        file.change("phone", KeyChange(rpm=6))


def test_a_key_that_reads_has_no_limits_of_work(file: KeyFile) -> None:
    with pytest.raises(KeyFileError, match="so it has no models, rpm"):
        file.add("board", KeyTerms(reads=True, rpm=5, models=("demo",)), 100.0)
    file.add("board", KeyTerms(reads=True, expires_at=200.0), 100.0)
    with pytest.raises(KeyFileError, match="no tpm"):
        file.change("board", KeyChange(tpm=5))
    assert file.change("board", KeyChange(expires_at=None)).expires_at is None


def test_nothing_is_written_that_can_not_be_read(file: KeyFile) -> None:
    file.add("ann", KeyTerms(rpm=5), 100.0)
    before = file.path.read_bytes()
    with pytest.raises(KeyFileError, match="No key can have these terms"):
        file.add("ben", KeyTerms(tpm=3_000_000_000), 100.0)
    with pytest.raises(KeyFileError, match="No key can have these terms"):
        file.change("ann", KeyChange(rpm=3_000_000_000))
    assert file.path.read_bytes() == before


def test_a_name_can_be_used_again_once_its_key_has_expired(file: KeyFile) -> None:
    file.add("guest", KeyTerms(expires_at=200.0), 100.0)
    with pytest.raises(KeyFileError):
        file.add("guest", KeyTerms(), 199.0)
    file.add("guest", KeyTerms(), 200.0)
    assert len(file.read()) == 1


def test_a_name_that_is_given_again_owns_nothing_of_before(file: KeyFile) -> None:
    first, _ = file.add("laptop", KeyTerms(), 100.0)
    file.revoke("laptop")
    second, _ = file.add("laptop", KeyTerms(), 102.0)
    assert first.owner != second.owner
    assert second.caller.owner == second.owner
    assert {name_of_owner(key.owner) for key in (first, second)} == {"laptop"}
    assert file.read() == (second,), "and it stays so"


def test_files_of_older_versions_have_no_ids(file: KeyFile) -> None:
    file.path.parent.mkdir()
    old = '{"keys": [{"name": "laptop", "digest": "00", "created_at": 1.0}]}'
    write_secret(file.path, old.encode())
    (key,) = file.read()
    assert key.owner == "laptop", "as what was kept for it says"
    file.revoke("laptop")
    assert file.add("laptop", KeyTerms(), 102.0)[0].owner != key.owner


@pytest.mark.parametrize("content", ["", "{", '{"keys": 1}', '{"kyes": []}', "[]"])
def test_unreadable_file_is_not_taken_for_empty(file: KeyFile, content: str) -> None:
    file.path.parent.mkdir()
    write_secret(file.path, content.encode())
    with pytest.raises(KeyFileError, match="every client would get in"):
        file.read()
    with pytest.raises(KeyFileError):
        file.add("laptop", KeyTerms(), 100.0)
    assert file.path.read_text() == content


def test_file_with_open_rights_is_refused(file: KeyFile) -> None:
    file.add("laptop", KeyTerms(), 100.0)
    file.path.chmod(0o622)
    with pytest.raises(KeyFileError, match="0622"):
        file.read()


def test_a_failed_write_leaves_the_old_file(file: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.add("laptop", KeyTerms(), 100.0)
    before = file.path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(KeyFileError, match="No space"):
        file.add("phone", KeyTerms(), 100.0)
    assert file.path.read_bytes() == before
    assert {path.name for path in file.path.parent.iterdir()} == {"keys.json", "keys.lock"}


@pytest.mark.processes
def test_programs_side_by_side_lose_no_key(file: KeyFile) -> None:
    program = (
        "import sys; from pathlib import Path; from gateway.access.key_file import KeyFile;"
        "from gateway.access.api_key import KeyTerms;"
        "[KeyFile(Path(sys.argv[1])).add(f'{sys.argv[2]}{i}', KeyTerms(), 1.0) for i in range(10)]"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(file.path), name]) for name in "ab"
    ]
    assert [process.wait(120) for process in running] == [0, 0]
    assert {key.name for key in file.read()} == {f"{n}{i}" for n in "ab" for i in range(10)}


def test_the_admin_key_is_made_once_and_for_this_account(tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    assert admin_key(path) is None
    secret = ensured_admin_key(path)
    assert mode(path) == 0o600
    assert ensured_admin_key(path) == admin_key(path) == secret


def test_an_admin_key_that_others_could_read_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    known = ensured_admin_key(path)
    path.chmod(0o644)
    assert admin_key(path) is None
    new = ensured_admin_key(path)
    assert new != known
    assert mode(path) == 0o600
    path.unlink()
    assert ensured_admin_key(path) != new


def test_an_admin_key_outlives_a_shortage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "admin.key"
    known = ensured_admin_key(path)

    def none_left(*_: object) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("os.open", none_left)
        with pytest.raises(OSError, match="Too many"):
            ensured_admin_key(path)
    assert ensured_admin_key(path) == known
