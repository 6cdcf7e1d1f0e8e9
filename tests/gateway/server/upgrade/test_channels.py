"""Messages and descriptors between two gateways."""

from __future__ import annotations

import asyncio
import os
import socket

import msgspec

from gateway.server.upgrade.channels import DescriptorChannel, MessageChannel
from gateway.server.upgrade.messages import Cancelled, Finished, FromPredecessor

_DECODER: msgspec.msgpack.Decoder[FromPredecessor] = msgspec.msgpack.Decoder(FromPredecessor)


async def test_messages_arrive_whole_and_in_order() -> None:
    ours, its = socket.socketpair()
    sender, receiver = (
        await MessageChannel.over(ours, _DECODER),
        await MessageChannel.over(its, _DECODER),
    )
    for number in range(1000):
        sender.send(Cancelled(number))
    sender.send(Finished())
    for number in range(1000):
        assert await receiver.receive() == Cancelled(number)
    assert await receiver.receive() == Finished()
    await sender.sent()
    sender.close()
    assert await receiver.receive() is None
    receiver.close()


async def test_invalid_message_ends_channel() -> None:
    ours, its = socket.socketpair()
    receiver = await MessageChannel.over(its, _DECODER)
    ours.sendall(b"\0\0\0\3abc")
    assert await receiver.receive() is None
    receiver.close()
    ours.close()


async def test_descriptors_arrive_with_kind_and_number() -> None:
    """More than the socket takes at once."""
    ours, its = socket.socketpair()
    sender, receiver = DescriptorChannel(ours), DescriptorChannel(its)
    count = 400
    for number in range(count):
        read, write = os.pipe()
        os.write(write, b"%d" % number)
        os.close(write)
        sender.send(b"prnt", number, read)
    found: list[tuple[bytes, int, bytes]] = []
    arrived = asyncio.Event()

    def received(what: bytes, number: int, descriptor: int) -> None:
        assert not os.get_inheritable(descriptor)
        found.append((what, number, os.read(descriptor, 10)))
        os.close(descriptor)
        arrived.set()

    receiver.watch(received)
    async with asyncio.timeout(60):
        await sender.sent()
        while len(found) < count:
            arrived.clear()
            await arrived.wait()
    assert found == [(b"prnt", number, b"%d" % number) for number in range(count)]
    sender.close()
    receiver.close()


async def test_descriptors_to_ended_gateway_are_dropped() -> None:
    ours, its = socket.socketpair()
    sender = DescriptorChannel(ours)
    its.close()
    read, write = os.pipe()
    os.close(write)
    sender.send(b"conn", 0, read)
    await asyncio.wait_for(sender.sent(), 60)
    sender.close()
