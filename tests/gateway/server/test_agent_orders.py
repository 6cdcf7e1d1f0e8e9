"""What may be started on a host for a gateway elsewhere."""

from __future__ import annotations

import msgspec
import pytest

from gateway.server.agent_sessions import complaint
from gateway.workers.agent_bodies import OrderBody

ORDER = OrderBody(
    id="0" * 32,
    name="big",
    incarnation=1,
    rank=1,
    arguments=("--endpoint", "tcp://10.0.0.1:5555", "--rank", "1"),
    environment={"NCCL_SOCKET_IFNAME": "en5"},
    secret=b"secret",
    needed_bytes=0,
)


def with_(**fields: object) -> OrderBody:
    return msgspec.structs.replace(ORDER, **fields)


def test_a_rank_is_taken():
    assert complaint(ORDER) is None


@pytest.mark.parametrize("argument", ["--parent", "--parent=1", "--par", "--p=1"])
def test_whom_it_must_not_outlive_is_not_the_gateways_to_say(argument):
    assert "the agent's to say" in str(complaint(with_(arguments=(argument, "1"))))


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "DYLD_INSERT_LIBRARIES", "PYTHONPATH", "PATH", "HOME", "NCCL_NET_PLUGIN"],
)
def test_nothing_is_loaded_by_the_environment(name):
    assert name in str(complaint(with_(environment={name: "x"})))


def test_words_that_no_process_can_have():
    assert complaint(with_(arguments=("a\0b",))) is not None
    assert complaint(with_(environment={"NCCL_DEBUG": "a\0b"})) is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "../../etc"},
        {"arguments": ["x"] * 65},
        {"arguments": ["x" * 4097]},
        {"environment": {str(each): "" for each in range(65)}},
        {"needed_bytes": -1},
        {"rank": -1},
        {"name": ""},
    ],
)
def test_bodies_have_bounds(fields):
    body = msgspec.to_builtins(ORDER) | fields
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(body, OrderBody)
