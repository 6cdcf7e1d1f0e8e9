"""At which priority a spare imports."""

from __future__ import annotations

import ctypes
from pathlib import Path

from tests.support.stub import compile_stub
from worker.runtime.engine_thread import lower_by_qos

# As <pthread/qos.h> and <sys/qos.h> of macOS declare them.
_STUB = """
typedef enum { USER_INITIATED = 0x19, UTILITY = 0x11, BACKGROUND = 0x09 } qos_class_t;
int taken = 0, relative = -1;
int pthread_set_qos_class_self_np(qos_class_t class, int priority) {
    taken = class == UTILITY;
    relative = priority;
    return 0;
}
"""


def test_a_mac_does_not_throttle_the_disk(tmp_path: Path) -> None:
    library = compile_stub(tmp_path, _STUB)
    lower_by_qos(library)
    stub = ctypes.CDLL(library)
    assert ctypes.c_int.in_dll(stub, "taken").value == 1
    assert ctypes.c_int.in_dll(stub, "relative").value == 0
