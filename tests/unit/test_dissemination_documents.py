"""The pure parts of large documents: manifests, what to ask of whom, whose turn it is."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.limits import MIB
from peerd.messages import encode_struct
from peerd.testing import peer
from protocols.dissemination.documents.download import (
    ASK_AGAIN_S,
    ASKED_MAX,
    LAST_S,
    LATE_FACTOR,
    NEIGHBOURS_MAX,
    REFUSED_S,
    SILENCE_S,
    Download,
)
from protocols.dissemination.documents.drafts import description
from protocols.dissemination.documents.manifest import (
    CHUNK_BYTES_MAX,
    CHUNKS_MAX,
    DIGEST_BYTES,
    DOCUMENT_BYTES_MAX,
    Attachment,
    bitmap,
    chunk_bytes_for,
    chunks_of,
    read_bitmap,
)
from protocols.dissemination.documents.uploads import (
    UPLOADS_MAX,
    UPLOADS_PEER_MAX,
    WAITING_PEER_MAX,
    Upload,
    UploadQueue,
)
from protocols.dissemination.messages import PART_BYTES
from protocols.dissemination.service import StreamRefused

PARENT, SIBLING, THIRD = peer(2), peer(3), peer(4)


# Manifests


@given(st.integers(1, DOCUMENT_BYTES_MAX))
def test_every_document_has_a_manifest_that_fits_an_item_and_is_valid(size: int) -> None:
    chunk_bytes = chunk_bytes_for(size)
    count = -(-size // chunk_bytes)
    made = Attachment("a", size, chunk_bytes, bytes(DIGEST_BYTES * count))
    made.check()
    assert made.count == count <= CHUNKS_MAX and chunk_bytes <= CHUNK_BYTES_MAX
    assert len(encode_struct(made)) <= PART_BYTES - 6 * 1024, "the payload has some room"
    assert sum(made.size_of(chunk) for chunk in range(made.count)) == size


@pytest.mark.parametrize(
    "made",
    [
        Attachment("a", 0, 1 * MIB, b""),
        Attachment("a", 1 << 62, 1 * MIB, bytes(32)),
        Attachment("a", 1, 1, bytes(32)),
        Attachment("a", 1, 1 << 31, bytes(32)),
        Attachment("a", 2 * MIB, 1 * MIB, bytes(32)),
        Attachment("a", 1 * MIB, 1 * MIB, bytes(33)),
    ],
)
def test_a_manifest_that_no_correct_producer_makes_is_refused(made: Attachment) -> None:
    with pytest.raises(ProtocolError):
        made.check()


def test_the_id_says_what_is_in_a_document_and_not_how_it_is_called() -> None:
    one = Attachment("a", 5, 1 * MIB, bytes(32))
    assert one.id == Attachment("b", 5, 1 * MIB, bytes(32), "text/plain").id
    assert len({one.id, Attachment("a", 6, 1 * MIB, bytes(32)).id, Attachment("a", 5, 1 * MIB, b"\1" * 32).id}) == 3


@given(st.sets(st.integers(0, 99)))
def test_a_set_of_chunks_travels_as_bits(chunks: set[int]) -> None:
    have = sum(1 << chunk for chunk in chunks)
    assert list(chunks_of(read_bitmap(bitmap(have, 100), 100))) == sorted(chunks)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x00\x00", b"\x00\x04"])
def test_a_map_of_other_chunks_than_there_are_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_bitmap(data, 10)


def test_a_file_with_any_name_has_a_description_that_is_valid() -> None:
    from lxml import etree

    made = Attachment('a"<&\x00\x1b\n.xml', 5, 1 * MIB, bytes(32), "text/plain")
    xml, kind = description("xpath", made)
    assert kind == "application/xml" and etree.fromstring(xml).get("size") == "5"
    assert description("attributes", made)[1] == "application/json"


@pytest.mark.parametrize("kind", ["application/xml", "text/xml; charset=utf-8", "Image/SVG+XML"])
def test_xml_attached_in_a_stream_of_xml_needs_an_item_as_queries_do_not_look_into_it(kind: str) -> None:
    made = Attachment("a.xml", 5, 1 * MIB, bytes(32), kind)
    with pytest.raises(StreamRefused, match="not into the XML attached"):
        description("xpath", made)
    assert description("attributes", made)[1] == "application/json"
    assert description("xpath", replace(made, content_type="text/xml-like"))[1] == "application/xml"


# What to ask of whom


def everything(count: int) -> int:
    return (1 << count) - 1


def test_the_rarest_chunk_is_asked_for_and_what_another_node_gets_is_left_to_it() -> None:
    download = Download(4, 0, Random(1).random)
    download.met(PARENT, everything(4), 0.0)
    download.met(SIBLING, 0b0111, 0.0)
    download.has(SIBLING.id, 3, 0.0, is_here=False)
    download.met(THIRD, 0b0001, 0.0)
    asked_of_parent = {chunk for asked, chunk in download.next_asks(0.0) if asked == PARENT}
    assert asked_of_parent <= {1, 2, 3} and asked_of_parent
    download.validate()


def test_a_chunk_is_asked_for_once_and_at_the_end_a_second_time() -> None:
    download = Download(1, 0, Random(1).random)
    download.met(PARENT, 1, 0.0)
    download.met(SIBLING, 1, 0.0)
    [(first, chunk)] = download.next_asks(0.0)
    assert download.next_asks(LAST_S / 2) == []
    [(second, again)] = download.next_asks(LAST_S)
    assert chunk == again == 0 and {first, second} == {PARENT, SIBLING}
    assert download.next_asks(2 * LAST_S) == [], "there is no third neighbour"
    assert download.expects(first.id, 0) and download.expects(second.id, 0)
    assert download.arrived(second.id, 0, 3.0) and not download.arrived(first.id, 0, 3.5)
    assert not download.expects(first.id, 0)
    download.kept(0)
    assert download.is_complete
    download.validate()


def test_what_a_neighbour_does_not_send_is_asked_of_another() -> None:
    download = Download(2, 0, Random(1).random)
    download.met(PARENT, everything(2), 0.0)
    assert len(download.next_asks(0.0)) == 2
    download.met(SIBLING, everything(2), 0.0)
    [late] = download.late(SILENCE_S)
    download.gone(late.peer.id)
    assert sorted(download.next_asks(SILENCE_S), key=lambda ask: ask[1]) == [(SIBLING, 0), (SIBLING, 1)]
    download.refused(SIBLING.id, 0, SILENCE_S)
    assert not download.is_starved() and download.next_asks(SILENCE_S) == []
    download.refused(SIBLING.id, 1, SILENCE_S)
    assert download.is_starved()
    download.validate()


def test_at_the_end_a_chunk_is_asked_of_more_neighbours_the_longer_it_does_not_come() -> None:
    download = Download(1, 0, Random(1).random)
    for each in (PARENT, SIBLING, THIRD):
        download.met(each, 1, 0.0)
    asked = [whom for now in (0.0, LAST_S, 2 * LAST_S, 3 * LAST_S) for whom, _ in download.next_asks(now)]
    assert len(asked) == 3 and set(asked) == {PARENT, SIBLING, THIRD}
    assert download.next_asks(100 * LAST_S) == []
    download.validate()


def test_a_question_that_was_lost_is_asked_again_though_the_neighbour_says_other_things() -> None:
    """Seed 15 of the swarm, when hand-overs and documents came to it: its neighbours' names kept it from being late."""
    download = Download(2, 0, Random(1).random)
    download.met(PARENT, 0b11, 0.0)
    asked = download.next_asks(0.0)
    assert download.expects(PARENT.id, 0)
    download.met(PARENT, 0b11, ASK_AGAIN_S)
    assert not download.asks_again(0.9 * ASK_AGAIN_S)
    assert download.asks_again(ASK_AGAIN_S) == [(PARENT, 1)] and (PARENT, 1) in asked
    assert not download.asks_again(1.5 * ASK_AGAIN_S)
    assert download.asks_again(2 * ASK_AGAIN_S) == [(PARENT, 1)]


def test_a_neighbour_that_refuses_what_it_promises_is_left_alone_for_a_moment() -> None:
    download = Download(1, 0, Random(1).random)
    download.met(PARENT, 1, 0.0)
    for now in (0.0, REFUSED_S):
        assert download.next_asks(now) == [(PARENT, 0)]
        download.refused(PARENT.id, 0, now)
        download.has(PARENT.id, 0, now)
        assert download.next_asks(now + 0.9 * REFUSED_S) == []


def test_a_chunk_that_comes_slowly_is_not_late() -> None:
    download = Download(1, 0, Random(1).random)
    download.met(PARENT, 1, 0.0)
    download.next_asks(0.0)
    assert download.expects(PARENT.id, 0)
    assert download.late(100 * SILENCE_S) == []


class Swarm:
    """Nodes with a document, whose messages arrive at once, and one of which dies now and then."""

    def __init__(self, count: int, nodes: int, rng: Random) -> None:
        self.rng = rng
        self.count = count
        self.peers = [peer(10 + number) for number in range(nodes)]
        self.downloads = {
            each.id: Download(count, everything(count) if each is self.peers[0] else 0, rng.random)
            for each in self.peers
        }
        self.sent = 0
        for number, each in enumerate(self.peers[1:], 1):
            for other in rng.sample(self.peers[:number], min(number, 3)):
                self.meet(each.id, other.id)

    def meet(self, one: NodeId, other: NodeId) -> None:
        by_id = {each.id: each for each in self.peers}
        for here, there in ((one, other), (other, one)):
            self.downloads[here].met(by_id[there], self.downloads[there].have, 0.0)

    def step(self, now: float, broken: float) -> None:
        for id, download in list(self.downloads.items()):
            asks = download.next_asks(now)
            assert len(asks) <= ASKED_MAX
            for sender, chunk in asks:
                download.validate()
                self._answer(id, download, sender.id, chunk, now, broken)
                download.validate()

    def _answer(self, id: NodeId, download: Download, sender: NodeId, chunk: int, now: float, broken: float) -> None:
        source = self.downloads.get(sender)
        if source is None:
            download.gone(sender)
        elif self.rng.random() < broken:
            download.broke_off(sender, chunk)
        else:
            assert source.have >> chunk & 1, "nobody is asked for what it does not have"
            assert download.arrived(sender, chunk, now)
            if self.rng.random() < broken:
                download.not_kept(chunk)
                return
            download.kept(chunk)
            self.sent += 1
            for other in self.downloads.values():
                other.has(id, chunk, now)

    def die(self) -> None:
        """Any but the first one; those that are cut off by it meet the first one, as the tree above them says."""
        gone = self.rng.choice(list(self.downloads)[1:])
        del self.downloads[gone]
        for id, other in list(self.downloads.items()):
            other.gone(gone)
            if other.is_starved():
                self.meet(id, self.peers[0].id)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(2, 12), st.integers(0, 1 << 30), st.floats(0, 0.4), st.integers(0, 4))
def test_all_who_live_get_every_chunk_once_whoever_dies_and_whatever_breaks(
    count: int, nodes: int, seed: int, broken: float, deaths: int
) -> None:
    swarm = Swarm(count, nodes, Random(seed))
    for step in range(2000):
        if len(swarm.downloads) > 2 and step in range(1, 1 + deaths):
            swarm.die()
        swarm.step(float(step), broken)
        if all(each.is_complete for each in swarm.downloads.values()):
            break
    assert all(each.is_complete for each in swarm.downloads.values())
    assert swarm.sent <= count * (nodes - 1)


def test_over_slow_links_a_chunk_is_late_after_twice_the_time_that_chunks_take() -> None:
    download = Download(2, 0, Random(1).random)
    download.met(PARENT, 0b11, 0.0)
    [(_, first), (_, last)] = download.next_asks(0.0)
    download.arrived(PARENT.id, first, 4.0)
    download.kept(first)
    download.met(SIBLING, 0b11, 4.0)
    assert LAST_S < LATE_FACTOR * 4.0
    assert download.next_asks(LATE_FACTOR * 4.0 - 0.1) == []
    assert download.next_asks(LATE_FACTOR * 4.0) == [(SIBLING, last)]
    download.validate()


def test_a_chunk_that_two_are_sending_is_over_for_both_when_one_has_sent_it() -> None:
    download = Download(1, 0, Random(1).random)
    download.met(PARENT, 1, 0.0)
    download.met(SIBLING, 1, 0.0)
    [(first, _)] = download.next_asks(0.0)
    [(second, _)] = download.next_asks(LAST_S)
    assert download.expects(first.id, 0) and download.expects(second.id, 0)
    assert download.arrived(first.id, 0, LAST_S + 1)
    download.validate()
    assert not download.arrived(second.id, 0, LAST_S + 2)
    download.kept(0)
    download.validate()


def test_there_is_room_for_a_stated_number_of_neighbours() -> None:
    download = Download(8, 0, Random(1).random)
    met = [download.met(peer(100 + number), 0, 0.0) for number in range(NEIGHBOURS_MAX + 1)]
    assert met == [True] * NEIGHBOURS_MAX + [False]


# Whose turn it is


def test_neighbours_take_turns_and_nobody_has_more_than_its_share() -> None:
    queue = UploadQueue()
    for chunk in range(WAITING_PEER_MAX):
        assert queue.add(Upload(PARENT, b"d", chunk, MIB))
    assert not queue.add(Upload(PARENT, b"d", 999, MIB)), "above its limit"
    assert queue.add(Upload(SIBLING, b"d", 7, MIB))
    first, second, third = queue.next(), queue.next(), queue.next()
    assert first is not None and second is not None and third is not None
    assert [each.peer for each in (first, second, third)] == [PARENT, SIBLING, PARENT]
    assert queue.next() is None, f"{UPLOADS_PEER_MAX} for one neighbour"
    queue.ended(first)
    following = queue.next()
    assert following is not None and following.peer == PARENT
    queue.gone(PARENT.id)
    assert queue.next() is None


def test_a_node_sends_a_stated_number_of_chunks_at_once() -> None:
    queue = UploadQueue()
    for number in range(UPLOADS_MAX + 3):
        queue.add(Upload(peer(50 + number), b"d", 0, MIB))
    taken = [queue.next() for _ in range(UPLOADS_MAX + 3)]
    assert sum(each is not None for each in taken) == UPLOADS_MAX == queue.active
    assert queue.uses(b"d") and not queue.uses(b"e")


@pytest.mark.parametrize(("size", "at_once"), [(256 * 1024, UPLOADS_MAX), (2 * MIB, 8), (4 * MIB, 4), (16 * MIB, 4)])
def test_fewer_large_chunks_are_sent_at_once(size: int, at_once: int) -> None:
    queue = UploadQueue()
    for number in range(UPLOADS_MAX):
        queue.add(Upload(peer(50 + number), b"d", 0, size))
    taken = [queue.next() for _ in range(UPLOADS_MAX)]
    assert [each is not None for each in taken] == [True] * at_once + [False] * (UPLOADS_MAX - at_once)


def test_who_asks_twice_for_a_chunk_gets_it_once() -> None:
    queue = UploadQueue()
    upload = Upload(PARENT, b"d", 1, MIB)
    assert queue.add(upload) and queue.add(upload)
    assert queue.next() == upload
    assert queue.add(upload) and queue.next() is None
