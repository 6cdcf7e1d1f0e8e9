"""Which boot this is, from the real system, and macOS's word against a compiled stub."""

from __future__ import annotations

import ctypes
import errno

import pytest

from gateway.system.boot import present_boot
from gateway.system.memory_darwin import Sysctl
from tests.support.stub import compile_stub

pytestmark = pytest.mark.processes

_STUB = """
#include <errno.h>
#include <string.h>

/* As <sys/sysctl.h> declares it. */
int sysctlbyname(const char *name, void *old, size_t *size, void *new, size_t new_size) {
    static const char session[] = "0F6A5F0C-3E0B-4B53-9E0C-6D2A3C0B7A11";
    static const char longer[200] = {'x'};
    int number = 7;
    const void *value;
    size_t length;
    if (new || new_size) { errno = EPERM; return -1; }
    if (!strcmp(name, "kern.bootsessionuuid")) { value = session; length = sizeof session; }
    else if (!strcmp(name, "kern.version")) { value = longer; length = sizeof longer; }
    else if (!strcmp(name, "hw.number")) { value = &number; length = sizeof number; }
    else { errno = ENOENT; return -1; }
    if (*size < length) { errno = ENOMEM; return -1; }
    memcpy(old, value, length);
    *size = length;
    return 0;
}
"""


@pytest.fixture(scope="module")
def sysctl(tmp_path_factory: pytest.TempPathFactory) -> Sysctl:
    return Sysctl(compile_stub(tmp_path_factory.mktemp("stub"), _STUB))


def test_this_boot_has_one_name() -> None:
    assert present_boot() == present_boot() != ""


def test_macos_names_a_boot_by_its_session(sysctl: Sysctl) -> None:
    assert sysctl.text("kern.bootsessionuuid") == "0F6A5F0C-3E0B-4B53-9E0C-6D2A3C0B7A11"


def test_a_number_narrower_than_asked_for(sysctl: Sysctl) -> None:
    assert sysctl.number("hw.number", ctypes.c_int64(0)) == 7


@pytest.mark.parametrize(
    ("name", "number"), [("kern.nothing", errno.ENOENT), ("kern.version", errno.ENOMEM)]
)
def test_unreadable_boot_is_error(sysctl: Sysctl, name: str, number: int) -> None:
    with pytest.raises(OSError, match=name) as caught:
        sysctl.text(name)
    assert caught.value.errno == number
