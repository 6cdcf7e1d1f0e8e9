from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.access.api_key import KeyTerms, digest_of, name_of_owner
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


def test_only_a_hash_is_kept_and_for_nobody_else(file: KeyFile) -> None:
    assert file.read() == ()
    key, secret = file.add("laptop", KeyTerms(rpm=5, models=("demo",)), 100.0)
    assert mode(file.path) == 0o600
    assert secret not in file.path.read_text()
    assert key.digest == digest_of(secret.encode()).hex()
    assert file.read() == (key,)
    assert (key.rpm, key.models, key.created_at) == (5, ("demo",), 100.0)


def test_revoked_keys_are_remembered(file: KeyFile) -> None:
    file.add("laptop", KeyTerms(), 100.0)
    with pytest.raises(KeyFileError, match="already"):
        file.add("laptop", KeyTerms(), 101.0)
    file.revoke("laptop", 102.0)
    assert [(each.name, each.revoked_at) for each in file.read()] == [("laptop", 102.0)]
    with pytest.raises(NoSuchKeyError):
        file.revoke("laptop", 103.0)
    with pytest.raises(NoSuchKeyError):
        file.revoke("phone", 103.0)
    file.add("laptop", KeyTerms(), 104.0)
    assert [(each.name, each.revoked_at) for each in file.read()] == [("laptop", None)]


def test_a_name_can_be_used_again_once_its_key_has_expired(file: KeyFile) -> None:
    file.add("guest", KeyTerms(expires_at=200.0), 100.0)
    with pytest.raises(KeyFileError):
        file.add("guest", KeyTerms(), 199.0)
    file.add("guest", KeyTerms(), 200.0)
    assert len(file.read()) == 1


def test_a_name_that_is_given_again_owns_nothing_of_before(file: KeyFile) -> None:
    first, _ = file.add("laptop", KeyTerms(), 100.0)
    file.revoke("laptop", 101.0)
    second, _ = file.add("laptop", KeyTerms(), 102.0)
    assert first.owner != second.owner
    assert second.caller.owner == second.owner
    assert {name_of_owner(each.owner) for each in (first, second)} == {"laptop"}
    assert file.read() == (second,), "and it stays so"


def test_files_of_older_versions_have_no_ids(file: KeyFile) -> None:
    file.path.parent.mkdir()
    old = '{"keys": [{"name": "laptop", "digest": "00", "created_at": 1.0}]}'
    write_secret(file.path, old.encode())
    (key,) = file.read()
    assert key.owner == "laptop", "as what was kept for it says"
    file.revoke("laptop", 101.0)
    assert file.add("laptop", KeyTerms(), 102.0)[0].owner != key.owner


@pytest.mark.parametrize("content", ["", "{", '{"keys": 1}', '{"kyes": []}', "[]"])
def test_what_cannot_be_read_is_no_empty_file(file: KeyFile, content: str) -> None:
    file.path.parent.mkdir()
    write_secret(file.path, content.encode())
    with pytest.raises(KeyFileError, match="every client would get in"):
        file.read()
    with pytest.raises(KeyFileError):
        file.add("laptop", KeyTerms(), 100.0)
    assert file.path.read_text() == content


def test_what_others_could_have_written_is_not_believed(file: KeyFile) -> None:
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
    assert {each.name for each in file.path.parent.iterdir()} == {"keys.json", "keys.lock"}


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
    assert [each.wait(120) for each in running] == [0, 0]
    assert {each.name for each in file.read()} == {f"{n}{i}" for n in "ab" for i in range(10)}


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
