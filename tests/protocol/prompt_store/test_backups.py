"""That Time Machine leaves stored prompts out, against a stub of macOS's setxattr."""

from __future__ import annotations

import ctypes
import plistlib
import sys
from pathlib import Path

import pytest

from protocol.prompt_store import home
from protocol.prompt_store.home import exclude_from_backups
from protocol.prompt_store.store import PromptStore
from tests.support.stub import compile_stub

# As <sys/xattr.h> of macOS declares it, with the position that Linux doesn't have.
_STUB = """
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

char path_[256], name_[256], value_[256];
int size_ = -1;

int setxattr(const char *path, const char *name, const void *value, size_t size,
             uint32_t position, int options) {
    if (strstr(path, "refused")) { errno = ENOTSUP; return -1; }
    snprintf(path_, sizeof path_, "%s", path);
    snprintf(name_, sizeof name_, "%s", name);
    memcpy(value_, value, size);
    size_ = position || options ? -1 : (int)size;
    return 0;
}
"""


class Stub:
    def __init__(self, folder: Path) -> None:
        self.path = compile_stub(folder, _STUB)
        self._library = ctypes.CDLL(self.path)

    def text(self, name: str) -> str:
        return (ctypes.c_char * 256).in_dll(self._library, name).value.decode()

    @property
    def value(self) -> bytes:
        size = ctypes.c_int.in_dll(self._library, "size_").value
        return (ctypes.c_char * 256).in_dll(self._library, "value_").raw[:size]


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    return Stub(tmp_path)


def test_the_attribute_is_that_of_tmutil(stub: Stub) -> None:
    exclude_from_backups(Path("/prompts/ü"), stub.path)
    assert stub.text("path_") == "/prompts/ü"
    assert stub.text("name_") == "com.apple.metadata:com_apple_backup_excludeItem"
    assert stub.value.startswith(b"bplist00")
    assert plistlib.loads(stub.value) == "com.apple.backupd"
    with pytest.raises(OSError, match="refused"):
        exclude_from_backups(Path("/refused"), stub.path)


@pytest.mark.parametrize("folder", ["prompts", "refused"])
def test_a_store_leaves_itself_out_and_works_where_that_fails(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setattr(
        home, "exclude_from_backups", lambda at: exclude_from_backups(at, stub.path)
    )
    monkeypatch.setattr(sys, "platform", "darwin")
    store = PromptStore(tmp_path / folder, 1 << 20, 1 << 20)
    assert store.obstacle() is None
    excluded = str(tmp_path / folder / "bulkhead-prompts")
    assert stub.text("path_") == ("" if folder == "refused" else excluded)
