"""What strangers and broken peers send to the peer port: each is refused, named, counted, and nothing else suffers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import socket
import ssl
import struct
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from peerd.daemon.links.telemetry import REASONS
from peerd.identity.authority import ClusterAuthority
from peerd.ids import NodeId
from peerd.limits import FRAME_HEADER_BYTES
from peerd.messages import PeerRef
from peerd.telemetry.schema import LinkDown, LinkRefused, LinkUp, PeerMisbehaviour
from peerd.wire.codec import encode
from peerd.wire.frames import HEADER, MAGIC, frame_bytes, parse_header
from peerd.wire.handshake import Goodbye, Hello, HelloAck, LinkHeartbeat
from tests.support.both_loops import both_loops
from tests.support.link_rig import CLUSTER, FAST, CollectingHandler, Note, Peer, Rig, linked, until

STRANGER = PeerRef(NodeId(77), "127.0.0.1", 1)
HELLO = frame_bytes(encode(Hello(1, 1, 0, CLUSTER, STRANGER, 1)))
SHORT = replace(FAST, hello_timeout_s=0.3, frame_idle_s=0.2)


async def talk(peer: Peer, data: bytes, *, then_wait: bool = True) -> bytes:
    """Send bytes to a peer's port; what comes back until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.ref.port)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), 5.0) if then_wait else b""
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def refusals(peer: Peer) -> list[str]:
    return [event.reason for event in peer.node.of(LinkRefused)]


BAD_FIRST_BYTES = {
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "bad_magic"),
    "zeros": (bytes(64), "bad_magic"),
    "oversized": (HEADER.pack(MAGIC, Hello.TYPE_ID, 0, 16 * 1024 + 1), "oversize"),
    "huge": (HEADER.pack(MAGIC, Hello.TYPE_ID, 0, 0xFFFFFFFF), "oversize"),
    "both flags": (HEADER.pack(MAGIC, Hello.TYPE_ID, 3, 4), "bad_flags"),
    "no hello": (frame_bytes(encode(LinkHeartbeat())), "unexpected_message"),
    "ack first": (frame_bytes(encode(HelloAck(1, 0, CLUSTER, STRANGER, 1))), "unexpected_message"),
    "goodbye first": (frame_bytes(encode(Goodbye("x"))), "unexpected_message"),
    "garbage body": (HEADER.pack(MAGIC, Hello.TYPE_ID, 0, 4) + b"\xc1\xc1\xc1\xc1", "malformed"),
    "wrong fields": (HEADER.pack(MAGIC, Hello.TYPE_ID, 0, 2) + b"\x91\x01", "invalid"),
    "truncated": (HELLO[:-3], "hello_timeout"),
    "nothing": (b"", "hello_timeout"),
}


@pytest.mark.parametrize("name", sorted(BAD_FIRST_BYTES))
@both_loops
async def test_bad_first_bytes_are_refused_by_name(name: str) -> None:
    data, reason = BAD_FIRST_BYTES[name]
    async with Rig(settings=SHORT) as rig:
        one, two = rig.pair()
        answer = await talk(one, data)
        await until(lambda: refusals(one) == [reason])
        assert len(answer) <= max(128, len(data)) or reason == "hello_timeout"
        assert reason in REASONS
        assert one.listener.handshakes == 0
        await linked(two, one)
        assert one.node.events[-1].KIND == "link.up"


@both_loops
async def test_a_slow_handshake_does_not_keep_others_out() -> None:
    async with Rig(settings=SHORT) as rig:
        one, two = rig.pair()
        writers = [(await asyncio.open_connection("127.0.0.1", one.ref.port))[1] for _ in range(20)]
        for _ in range(3):
            for writer in writers:
                writer.write(b"\x51")
            await asyncio.sleep(0.02)
        await linked(two, one)
        await until(lambda: one.counters.values.get("peerd_connections_refused_total{reason=hello_timeout}") == 20)
        for writer in writers:
            writer.close()


@both_loops
async def test_a_peer_that_says_a_frame_byte_by_byte_loses_its_link() -> None:
    async with Rig(settings=SHORT) as rig:
        one = rig.add(1)
        reader, writer = await asyncio.open_connection("127.0.0.1", one.ref.port)
        writer.write(HELLO)
        await until(lambda: one.node.of(LinkUp))
        frame = frame_bytes(encode(Note(1)))
        for position in range(len(frame) - 1):
            writer.write(frame[position : position + 1])
            await asyncio.sleep(0.05)
            if one.node.of(LinkDown):
                break
        await until(lambda: one.node.of(LinkDown))
        assert one.node.of(LinkDown)[0].reason == "frame_idle"
        assert one.node.received == []
        writer.close()
        with suppress(ConnectionResetError):  # what it had not read yet may make the end a reset
            assert await asyncio.wait_for(reader.read(), 2.0)


@both_loops
async def test_chunked_frames_arrive_whole() -> None:
    async with Rig(settings=FAST) as rig:
        one = rig.add(1)
        _, writer = await asyncio.open_connection("127.0.0.1", one.ref.port)
        data = HELLO + b"".join(frame_bytes(encode(Note(number, "x" * number))) for number in range(30))
        for start in range(0, len(data), 7):
            writer.write(data[start : start + 7])
            await writer.drain()
            await asyncio.sleep(0)
        await until(lambda: one.node.numbers() == list(range(30)))
        writer.close()


@both_loops
async def test_frames_right_behind_the_hello_are_not_lost() -> None:
    async with Rig() as rig:
        one = rig.add(1)
        *whole, cut = (frame_bytes(encode(Note(number))) for number in range(6))
        data = HELLO + b"".join(whole) + cut[:9]
        _, writer = await asyncio.open_connection("127.0.0.1", one.ref.port)
        writer.write(data)
        await until(lambda: one.node.numbers() == list(range(5)))
        writer.write(cut[9:])
        await until(lambda: one.node.numbers() == list(range(6)))
        writer.close()


BAD_LATER_BYTES = {
    "garbage": (b"\x00" * 64, "bad_magic"),
    "oversized": (HEADER.pack(MAGIC, Note.TYPE_ID, 0, 64 * 1024 + 1), "oversize"),
    "flood": (frame_bytes(encode(Note(1))) * 100, "flood"),
    "bad goodbye": (HEADER.pack(MAGIC, Goodbye.TYPE_ID, 0, 1) + b"\xc1", "malformed"),
}


@pytest.mark.parametrize("name", sorted(BAD_LATER_BYTES))
@both_loops
async def test_bad_bytes_on_a_link_cost_the_link(name: str) -> None:
    data, reason = BAD_LATER_BYTES[name]
    async with Rig(settings=replace(FAST, messages_per_second=50, messages_burst=50)) as rig:
        one = rig.add(1)
        _, writer = await asyncio.open_connection("127.0.0.1", one.ref.port)
        writer.write(HELLO + data)
        await until(lambda: one.node.down)  # told a turn of the loop after the event
        assert [event.reason for event in one.node.of(PeerMisbehaviour)] == [reason]
        assert one.node.of(LinkDown)[0].reason == "misbehaved"
        assert one.node.down == [(STRANGER, "misbehaved")]
        assert one.node.received == []
        writer.close()


@both_loops
async def test_who_keeps_misbehaving_is_banned() -> None:
    async with Rig() as rig:
        one = rig.add(1)
        for _ in range(11):
            await talk(one, HELLO + b"\x00" * 16)
        await talk(one, HELLO)
        await until(lambda: one.counters.values.get("peerd_connections_refused_total{reason=banned}") == 1)
        assert one.counters.values["peerd_peer_misbehaviour_total{reason=bad_magic}"] == 11


@both_loops
async def test_a_reset_in_the_middle_of_a_frame_ends_the_link_and_nothing_more() -> None:
    async with Rig() as rig:
        one = rig.add(1)
        _, writer = await asyncio.open_connection("127.0.0.1", one.ref.port)
        writer.write(HELLO + frame_bytes(encode(Note(1)))[:-1])
        await until(lambda: one.node.of(LinkUp))
        sock = writer.get_extra_info("socket")
        sock.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SOL_SOCKET, SO_LINGER: close sends a reset
        writer.transport.abort()
        await until(lambda: one.node.of(LinkDown))
        assert one.node.of(LinkDown)[0].reason in ("reset", "eof")
        assert one.node.received == []
        await until(lambda: one.node.down)


@both_loops
async def test_connections_beyond_the_rate_are_closed_before_anything_is_spent() -> None:
    settings = replace(FAST, accepts_per_second=0.001, accepts_burst=3)
    async with Rig(settings=settings) as rig:
        one = rig.add(1)
        await asyncio.gather(*(talk(one, b"") for _ in range(10)))
        assert one.counters.values["peerd_accepts_throttled_total{reason=accept_rate}"] == 7


@both_loops
async def test_half_open_handshakes_are_bounded() -> None:
    async with Rig(settings=replace(SHORT, transient_links_max=4)) as rig:
        one = rig.add(1)
        await asyncio.gather(*(talk(one, b"") for _ in range(10)))
        assert one.counters.values["peerd_accepts_throttled_total{reason=transient_links_max}"] == 6
        assert one.listener.handshakes == 0


@both_loops
async def test_silent_connections_of_one_host_give_way_to_newcomers() -> None:
    """None of them ends by itself in this test: that would take `hello_timeout_s`."""
    settings = replace(FAST, transient_links_max=8, transient_links_host_max=5, hello_timeout_s=60.0)
    async with Rig(settings=settings) as rig:
        one, two = rig.pair()
        silent = [await asyncio.open_connection("127.0.0.1", one.ref.port) for _ in range(20)]
        await until(lambda: one.listener.handshakes == 5)
        await linked(two, one)
        counted = one.counters.values["peerd_accepts_throttled_total{reason=transient_links_host_max}"]
        assert counted in (15, 16) and one.listener.handshakes in (4, 5)
        for reader, _ in silent[:15]:
            with suppress(ConnectionResetError):
                await asyncio.wait_for(reader.read(), 5.0)  # the oldest ones were closed
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@both_loops
async def test_a_connection_of_the_last_moment_is_closed_too(tls: bool) -> None:
    """Its handshake has not had its first step when the listener ends them all."""
    async with Rig(tls=tls) as rig:
        listener = rig.pair()[0].listener
        accepted: list[socket.socket] = []  # or the garbage collector would close them
        accept = listener._accept

        def noted() -> tuple[socket.socket, Any]:
            found = accept()
            accepted.append(found[0])
            return found

        listener._accept = noted
        with socket.create_connection(listener.address, timeout=10.0) as client:
            listener._accept_waiting()
            listener.close()
            await listener.wait_closed()
            assert len(accepted) == 1
            with suppress(ConnectionResetError):
                while await asyncio.to_thread(client.recv, 4096):
                    pass  # it may have said HELLO


@both_loops
async def test_a_full_listener_closes_the_oldest_of_the_host_with_the_most() -> None:
    settings = replace(FAST, transient_links_max=4, hello_timeout_s=60.0)
    async with Rig(settings=settings) as rig:
        one = rig.add(1)
        family, port = socket.AF_INET, one.ref.port
        sockets = []
        for host in ("127.0.0.2", "127.0.0.3", "127.0.0.3", "127.0.0.4", "127.0.0.5"):
            sock = socket.socket(family)
            sock.bind((host, 0))
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            sockets.append(sock)
        await until(lambda: "peerd_accepts_throttled_total{reason=transient_links_max}" in one.counters.values)
        hosts = sorted(one.listener._handshakes._of_host)
        assert hosts == ["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"]
        assert one.listener.handshakes == 4
        for sock in sockets:
            sock.close()


@both_loops
async def test_running_out_of_descriptors_pauses_accepting_and_ends_nothing() -> None:
    async with Rig() as rig:
        one, two = rig.pair()
        three = rig.add(3)
        await linked(one, two)

        def exhausted() -> tuple[object, object]:
            raise OSError(24, "Too many open files")

        accept = two.listener._accept
        two.listener._accept = exhausted  # type: ignore[assignment]  # stands for the kernel
        three.note(two.ref, 3)
        await until(lambda: "peerd_accepts_throttled_total{reason=file_descriptors}" in two.counters.values)
        one.note(two.ref, 1)
        await until(lambda: two.node.numbers() == [1])
        assert two.counters.values["peerd_accepts_throttled_total{reason=file_descriptors}"] == 1
        two.listener._accept = accept
        await until(lambda: two.node.numbers() == [1, 3])


@both_loops
async def test_an_error_of_one_connection_does_not_keep_the_next_one_out() -> None:
    async with Rig() as rig:
        one, two = rig.pair()
        accept = two.listener._accept

        def unlucky() -> tuple[object, object]:
            two.listener._accept = accept
            raise OSError(errno.EHOSTUNREACH, "No route to host")

        two.listener._accept = unlucky  # type: ignore[assignment]  # stands for the kernel
        await linked(one, two)
        assert two.listener._accept is accept


@both_loops
async def test_versions_that_do_not_meet_are_named_on_both_sides() -> None:
    async with Rig() as rig:
        old = rig.add(1, protocol_min=1, protocol_max=2)
        new = rig.add(2, protocol_min=5, protocol_max=7)
        old.note(new.ref, 1)
        await until(lambda: old.node.down)
        assert old.node.down == [(new.ref, "version")]
        for peer in (old, new):
            (event,) = peer.node.of(LinkRefused)
            assert event.reason == "version"
            for part in ("1..2", "5..7", str(old.ref), str(new.ref)):
                assert part in event.detail


@both_loops
async def test_another_cluster_is_refused_by_name() -> None:
    async with Rig() as rig:
        ours, theirs = rig.add(1), rig.add(2, cluster="other")
        ours.note(theirs.ref, 1)
        await until(lambda: ours.node.down)
        assert ours.node.down == [(theirs.ref, "wrong_cluster")]
        assert refusals(theirs) == ["wrong_cluster"]


@pytest.mark.parametrize("tls", [False, True])
@both_loops
async def test_somebody_else_at_the_address_is_no_link(tls: bool) -> None:
    async with Rig(tls=tls) as rig:
        one, two = rig.pair()
        missing = PeerRef(NodeId(12345), two.ref.host, two.ref.port)
        one.note(missing, 1)
        await until(lambda: one.node.down)
        assert one.node.down == [(missing, "wrong_callee")]
        assert (len(one.links), two.node.received) == (0, [])


@both_loops
async def test_a_peer_that_closes_instead_of_answering_is_told_apart() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with Rig() as rig:
        one = rig.add(1)
        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        mute = PeerRef(NodeId(5), "127.0.0.1", server.sockets[0].getsockname()[1])
        one.note(mute, 1)
        await until(lambda: one.node.down)
        assert one.node.down == [(mute, "closed_early")]
        server.close()


@both_loops
async def test_a_peer_that_never_answers_is_a_timeout() -> None:
    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with Rig(settings=replace(FAST, dial_timeout_s=0.2)) as rig:
        one = rig.add(1)
        server = await asyncio.start_server(wait, "127.0.0.1", 0)
        mute = PeerRef(NodeId(5), "127.0.0.1", server.sockets[0].getsockname()[1])
        one.note(mute, 1)
        await until(lambda: one.node.down)
        assert one.node.down == [(mute, "timeout")]
        server.close()


@both_loops
async def test_a_bulk_connection_that_is_given_up_ends_without_a_frame_that_no_stream_knows() -> None:
    """The other end may have accepted it, and would blame this node for a Goodbye on a stream."""
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionResetError):
            while data := await reader.read(1000):
                heard.append(data)
        heard.append(b"")
        writer.close()

    async with Rig(settings=replace(FAST, dial_timeout_s=0.2)) as rig:
        one = rig.add(1)
        server = await asyncio.start_server(listen, "127.0.0.1", 0)
        handler = CollectingHandler()
        one.links.open_stream(PeerRef(NodeId(5), "127.0.0.1", server.sockets[0].getsockname()[1]), handler)
        await until(lambda: handler.reasons and heard and not heard[-1])
        assert handler.reasons == ["timeout"]
        (type_id, _, length) = parse_header(b"".join(heard), 0, 1 << 16)
        assert type_id == Hello.TYPE_ID and len(b"".join(heard)) == FRAME_HEADER_BYTES + length
        server.close()


# TLS


@both_loops
async def test_a_certificate_of_another_authority_is_refused_and_the_dialler_knows() -> None:
    async with Rig(tls=True) as rig:
        one = rig.add()
        stranger = rig.add(authority=ClusterAuthority.create(CLUSTER), trusted=rig.authority)
        stranger.note(one.ref, 1)
        await until(lambda: stranger.node.down)
        assert stranger.node.down == [(one.ref, "auth_rejected")]
        await until(lambda: refusals(one))
        assert refusals(one)[0] == "bad_certificate"
        assert one.node.events == one.node.of(LinkRefused)


@both_loops
async def test_the_dialler_refuses_a_server_of_another_authority() -> None:
    async with Rig(tls=True) as rig:
        one = rig.add()
        stranger = rig.add(authority=ClusterAuthority.create(CLUSTER))
        one.note(stranger.ref, 1)
        await until(lambda: one.node.down)
        assert one.node.down == [(stranger.ref, "bad_certificate")]


@both_loops
async def test_an_expired_certificate_is_refused() -> None:
    async with Rig(tls=True) as rig:
        one, expired = rig.add(), rig.add(lifetime=timedelta(seconds=1))
        await asyncio.sleep(1.3)
        expired.note(one.ref, 1)
        await until(lambda: expired.node.down)
        assert expired.node.down == [(one.ref, "auth_rejected")]
        assert refusals(one)[0] == "bad_certificate"
        assert "expired" in one.node.of(LinkRefused)[0].detail


@both_loops
async def test_a_client_without_a_certificate_gets_nothing() -> None:
    async with Rig(tls=True) as rig:
        one = rig.add()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", one.ref.port, ssl=context, server_hostname="")
        writer.write(HELLO)
        with contextlib.suppress(ssl.SSLError, ConnectionError):  # the alert, where the loop shows it
            assert await reader.read() == b""
        writer.transport.abort()
        await until(lambda: refusals(one) == ["no_certificate"])


@both_loops
async def test_plain_bytes_on_a_tls_port_are_refused() -> None:
    async with Rig(tls=True) as rig:
        one = rig.add()
        assert HELLO not in await talk(one, HELLO)
        await until(lambda: refusals(one) == ["tls"])


@both_loops
async def test_silence_on_a_tls_port_is_bounded() -> None:
    async with Rig(tls=True, settings=replace(FAST, tls_handshake_timeout_s=0.2)) as rig:
        one = rig.add()
        await talk(one, b"")
        await until(lambda: refusals(one) == ["tls_timeout"])


@both_loops
async def test_a_certificate_of_another_cluster_name_is_refused_though_the_authority_is_trusted() -> None:
    async with Rig(tls=True) as rig:
        assert rig.authority is not None
        one = rig.add()
        other_name = rig.add()
        other_name.context.local = replace(other_name.context.local, cluster="other")
        other_name.note(one.ref, 1)
        await until(lambda: other_name.node.down)
        assert other_name.node.down == [(one.ref, "wrong_cluster")]
        one.note(other_name.ref, 1)
        await until(lambda: one.node.down)
        assert one.node.down == [(other_name.ref, "wrong_cluster")]


@both_loops
async def test_claiming_an_id_that_the_certificate_does_not_prove_is_refused() -> None:
    async with Rig(tls=True) as rig:
        one, liar = rig.add(), rig.add()
        claimed = replace_id(liar.ref, 4711)
        liar.context.local = replace(liar.context.local, node=claimed)
        liar.note(one.ref, 1)
        await until(lambda: liar.node.down)
        assert liar.node.down == [(one.ref, "id_mismatch")]
        assert one.node.received == []


@both_loops
async def test_a_denied_node_loses_its_link_and_gets_no_other() -> None:
    async with Rig(tls=True) as rig:
        one, two = rig.add(), rig.add()
        await linked(two, one)
        one.links.deny(frozenset({two.ref.id}))
        await until(lambda: two.node.down)
        assert two.node.down == [(one.ref, "denied")]
        assert [event.reason for event in one.node.of(LinkDown)] == ["denied"]


def replace_id(peer: PeerRef, node_id: int) -> PeerRef:
    return PeerRef(NodeId(node_id), peer.host, peer.port)


@both_loops
async def test_a_copied_state_directory_is_found_out_under_tls() -> None:
    async with Rig(tls=True) as rig:
        old = rig.add(epoch=10)
        files = rig.path / "copy"
        shutil.copytree(rig.path / "node-0", files)
        new = rig.add(epoch=11, files=files)
        answers: list[PeerRef | None] = []
        old.links.dial("127.0.0.1", new.ref.port, answers.append)
        await until(lambda: answers == [None])
        assert (len(old.duplicates), len(new.duplicates)) == (1, 0)
