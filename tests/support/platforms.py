"""Which system the tests take this one for."""

from __future__ import annotations

import sys

import pytest

# False with `-p tests.support.as_mac` as well.
LINUX = sys.platform == "linux"


def linux_only(reason: str) -> pytest.MarkDecorator:
    """Leaves a test out elsewhere. `reason` is what of Linux it needs."""
    return pytest.mark.skipif(not LINUX, reason=reason)
