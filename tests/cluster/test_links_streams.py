"""Bulk connections on real sockets: both directions at once, back-pressure, ends clean and not clean."""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import replace

import pytest

from peerd.daemon.tasks import running_tasks
from peerd.driver import Stream
from peerd.errors import Bug
from peerd.ids import NodeId
from peerd.limits import MIB
from peerd.messages import PeerRef
from peerd.telemetry.schema import LinkRefused, PeerMisbehaviour
from peerd.wire.codec import encode
from peerd.wire.frames import frame_bytes
from peerd.wire.handshake import Hello
from tests.support.both_loops import both_loops
from tests.support.link_rig import CLUSTER, FAST, CollectingHandler, Rig, linked, until

TLS = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])


def sender(data: bytes, expected_bytes: int | None = None) -> CollectingHandler:
    return CollectingHandler(to_send=memoryview(data), expected_bytes=expected_bytes)


@TLS
@both_loops
async def test_values_cross_both_ways_at_once_and_unchanged(tls: bool) -> None:
    async with Rig(tls=tls) as rig:
        one, two = rig.pair()
        there, back = random.Random(1).randbytes(9 * MIB + 17), random.Random(2).randbytes(7 * MIB + 3)
        two.node.make_handler = lambda: sender(back)
        ours = sender(there, expected_bytes=len(back))
        one.links.open_stream(two.ref, ours)
        await until(lambda: two.node.handlers and len(two.node.handlers[0].received) == len(there), 20.0)
        await until(lambda: len(ours.received) == len(back))
        theirs = two.node.handlers[0]
        assert hashlib.sha256(ours.received).digest() == hashlib.sha256(back).digest()
        assert hashlib.sha256(theirs.received).digest() == hashlib.sha256(there).digest()
        assert ours.stream is not None and theirs.stream is not None
        assert (ours.stream.peer, theirs.stream.peer) == (two.ref, one.ref)
        ours.stream.close()
        await until(lambda: ours.reasons == theirs.reasons == [None])
        assert one.counters.values["peerd_streams"] == two.counters.values["peerd_streams"] == 0


@TLS
@both_loops
async def test_a_reader_that_stops_makes_the_writer_wait(tls: bool) -> None:
    async with Rig(tls=tls) as rig:
        one, two = rig.pair()
        data = random.Random(3).randbytes(40 * MIB)
        ours = sender(data)
        one.links.open_stream(two.ref, ours)
        await until(lambda: two.node.handlers and two.node.handlers[0].received)
        theirs = two.node.handlers[0]
        transport = theirs.transport
        transport.pause_reading()  # stands for a slow disk
        await until(lambda: ours.stream is not None and not ours.stream.is_writable)
        left = len(data)
        while len(ours.to_send) < left:  # until the buffers on the way are full
            left = len(ours.to_send)
            await linked(one, two)  # control is not behind bulk
            await asyncio.sleep(0.2)
        assert left > MIB
        transport.resume_reading()
        await until(lambda: len(theirs.received) == len(data), 20.0)
        assert theirs.received == data
        ours.bulk.abort()
        await until(lambda: ours.reasons == ["aborted"])


@TLS
@both_loops
async def test_what_was_written_before_close_arrives(tls: bool) -> None:
    async with Rig(tls=tls) as rig:
        one, two = rig.pair()
        data = random.Random(4).randbytes(3 * MIB)

        class WriteAndClose(CollectingHandler):
            def opened(self, stream: Stream) -> None:
                stream.write(data)  # far above the high-water mark, on purpose
                stream.close()

        ours = WriteAndClose()
        one.links.open_stream(two.ref, ours)
        await until(lambda: two.node.handlers and two.node.handlers[0].reasons, 10.0)
        assert two.node.handlers[0].received == data
        assert two.node.handlers[0].reasons == [None]
        await until(lambda: ours.reasons == [None])


@TLS
@both_loops
async def test_who_gives_a_stream_up_before_hello_is_answered_hears_of_its_end_once(tls: bool) -> None:
    class Abandoning(CollectingHandler):
        def opened(self, stream: Stream) -> None:
            stream.write(b"never mind")
            stream.abort()

    async with Rig(tls=tls) as rig:
        one, two = rig.pair()
        ours = Abandoning()
        one.links.open_stream(two.ref, ours)
        await until(lambda: ours.reasons)
        after = sender(b"this one is meant")
        one.links.open_stream(two.ref, after)
        await until(lambda: any(handler.received == b"this one is meant" for handler in two.node.handlers))
        assert ours.reasons == ["aborted"] and after.reasons == []
        assert not two.node.of(PeerMisbehaviour) and not one.node.of(LinkRefused)
        await until(lambda: [rig_node.counters.values.get("peerd_streams") for rig_node in (one, two)] == [1, 1])


@both_loops
async def test_bytes_right_behind_the_hello_reach_the_handler() -> None:
    async with Rig() as rig:
        one = rig.add(1)
        stranger = PeerRef(NodeId(7), "127.0.0.1", 1)
        hello = frame_bytes(encode(Hello(1, 1, 0, CLUSTER, stranger, 1, purpose=1)))
        data = random.Random(5).randbytes(600_000)
        _, writer = await asyncio.open_connection("127.0.0.1", one.ref.port)
        writer.write(hello + data)
        await until(lambda: one.node.handlers and len(one.node.handlers[0].received) == len(data))
        assert one.node.handlers[0].received == data
        writer.close()
        await until(lambda: one.node.handlers[0].reasons == [None])


@both_loops
async def test_a_stream_to_nobody_is_closed_with_the_reason() -> None:
    async with Rig() as rig:
        one, two = rig.pair()
        await two.stop()
        handler = CollectingHandler()
        one.links.open_stream(two.ref, handler)
        assert handler.reasons == []
        await until(lambda: handler.reasons == ["refused"])
        assert handler.stream is None


@both_loops
async def test_streams_are_bounded() -> None:
    async with Rig(settings=replace(FAST, streams_max=2)) as rig:
        one, two = rig.pair()
        handlers = [CollectingHandler() for _ in range(3)]
        for handler in handlers:
            one.links.open_stream(two.ref, handler)
        await until(lambda: sum(handler.reasons == ["streams_max"] for handler in handlers) == 1)
        assert sum(handler.reasons == [] for handler in handlers) == 2


@both_loops
async def test_a_handler_that_finds_a_violation_ends_the_stream_and_the_peer_is_scored() -> None:
    async with Rig() as rig:
        one, two = rig.pair()
        two.node.make_handler = lambda: CollectingHandler(fail_on_read="malformed")
        ours = sender(b"x" * 1000)
        one.links.open_stream(two.ref, ours)
        await until(lambda: two.node.handlers and two.node.handlers[0].reasons == ["malformed"])
        assert [event.reason for event in two.node.of(PeerMisbehaviour)] == ["malformed"]
        await until(lambda: ours.reasons)


@both_loops
async def test_a_crash_ends_streams_not_cleanly() -> None:
    async with Rig() as rig:
        one, two = rig.pair()
        ours = sender(bytes(60 * MIB))
        one.links.open_stream(two.ref, ours)
        await until(lambda: two.node.handlers)
        two.links._streams.abort()
        await until(lambda: ours.reasons)
        assert ours.reasons[0] in ("reset", "error")
        assert two.node.handlers[0].reasons == ["stopping"]


@both_loops
async def test_a_stop_ends_streams_within_its_bound() -> None:
    async with Rig() as rig:
        one, two = rig.pair()
        ours = sender(bytes(60 * MIB))
        one.links.open_stream(two.ref, ours)
        await until(lambda: two.node.handlers)
        two.node.handlers[0].transport.pause_reading()  # a peer that hangs
        before = asyncio.get_running_loop().time()
        await one.stop(timeout_s=0.3)
        assert asyncio.get_running_loop().time() - before < 2.0
        assert ours.reasons == ["stopping"]


@both_loops
async def test_nothing_is_dialled_after_the_stop() -> None:
    async with Rig() as rig:
        one, two = rig.pair()
        await one.stop()
        handler, answers = CollectingHandler(), list[PeerRef | None]()
        one.links.open_stream(two.ref, handler)
        one.links.dial(two.ref.host, two.ref.port, answers.append)
        assert running_tasks() == []
        await until(lambda: handler.reasons == ["stopping"] and answers == [None])


async def test_a_handler_that_fails_at_the_end_leaves_no_stream_behind() -> None:
    class Failing(CollectingHandler):
        def closed(self, reason: str | None) -> None:
            raise ValueError("in a handler")

    unhandled: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
    async with Rig() as rig:
        one, two = rig.pair()
        handler = Failing()
        one.links.open_stream(two.ref, handler)
        await until(lambda: handler.stream is not None and two.node.handlers)
        handler.bulk.abort()
        await until(lambda: one.links.sockets == 0)
    assert len(unhandled) == 1


@both_loops
async def test_padding_is_for_simulations() -> None:
    async with Rig() as rig:
        one, two = rig.pair()
        ours = CollectingHandler()
        one.links.open_stream(two.ref, ours)
        await until(lambda: ours.stream is not None)
        with pytest.raises(Bug, match="padding"):
            ours.bulk.write_padding(10)
