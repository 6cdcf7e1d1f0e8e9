"""Messages between a gateway and `bulkhead remote`, as bytes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.model_settings import HostSettings
from gateway.system.child import ExitStatus
from gateway.system.memory_reading import Footprint
from gateway.system.processes import ProcessIdentity
from gateway.workers.host import RankEnd
from gateway.workers.ssh_messages import (
    API,
    PREAMBLE,
    FindProcesses,
    FootprintReading,
    FrameError,
    FrameReader,
    NumberedForGateway,
    NumberedForRemote,
    RankEnded,
    RankLines,
    RemoteHello,
    StartRank,
    decode_for_gateway,
    decode_for_remote,
    encode,
)
from gateway.workers.ssh_session import disagreement, ssh_command
from tests.support.ssh_host import order

FOR_GATEWAY = [
    RemoteHello(API, "1.0", {"mlx": "1"}, "10.0.0.2"),
    RankLines(("a", "é"), 3),
    RankEnded(RankEnd(ExitStatus(None, "SIGKILL"), "signal SIGKILL", by_host=True)),
    FootprintReading(Footprint(1, None, 2)),
]


@given(data=st.data())
def test_messages_come_whole_however_the_bytes_are_cut(data: st.DataObject) -> None:
    sent = [NumberedForGateway(number, message) for number, message in enumerate(FOR_GATEWAY)]
    noise = b"Welcome\nto studio2\n"
    stream = noise + PREAMBLE + b"".join(map(encode, sent))
    reader = FrameReader(after_preamble=True)
    received: list[NumberedForGateway] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        received += map(decode_for_gateway, reader.feed(stream[:size]))
        stream = stream[size:]
    assert received == sent


def test_messages_for_the_remote_program_come_whole() -> None:
    for message in (StartRank(order()), FindProcesses((ProcessIdentity(7, "8"),))):
        (content,) = FrameReader(after_preamble=False).feed(encode(NumberedForRemote(1, message)))
        assert decode_for_remote(content) == NumberedForRemote(1, message)


def test_stream_without_messages_is_refused() -> None:
    with pytest.raises(FrameError, match="prints without end"):
        list(FrameReader(after_preamble=True).feed(bytes(2 << 20)))
    with pytest.raises(FrameError, match="something else than messages"):
        list(FrameReader(after_preamble=False).feed(b"\xff" * 8))


def test_hello_of_another_version_is_read() -> None:
    content = msgspec.msgpack.encode([0, {"type": "hello", "api": 9, "version": "2.0", "new": []}])
    message = decode_for_gateway(content).message
    assert isinstance(message, RemoteHello)
    assert disagreement("studio2", message) == (
        "studio2 has Bulkhead 2.0, whose messages have version 9, and this one 1: install the "
        "same on both hosts."
    )


def test_ssh_asks_nobody_and_takes_no_destination_for_an_option() -> None:
    command = ssh_command(HostSettings(ssh="me@studio2", command="~/bin/bulkhead"))
    assert command[0] == "ssh"
    assert "BatchMode=yes" in command
    assert "ServerAliveInterval=5" in command
    assert command[-3:] == ("--", "me@studio2", "~/bin/bulkhead remote")
