"""Whatever a neighbour sends: a member of a tree refuses it or bears it, within its limits."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef, decode_body, encode_body
from protocols.dissemination import messages
from protocols.dissemination.interests.classes import ClassesKind
from protocols.dissemination.messages import (
    DEPTH_MAX,
    ITEM_BYTES_MAX,
    PART_BYTES,
    WANTS_MAX,
    HandOver,
    HandOverStep,
    StreamItem,
)
from protocols.dissemination.names import TERM_MAX, StreamPosition, interest_id, stream_key
from protocols.dissemination.tree.matching import ASIDE_BYTES, at_once
from protocols.dissemination.tree.member import StreamMember
from protocols.dissemination.tree.replay import BufferLimits
from tests.support.examples import examples
from tests.support.member_owner import owner

STREAM = stream_key("s")
PEERS = [PeerRef(NodeId(i + 1), "127.0.0.1", 1000 + i) for i in range(5)]
ME = PEERS[2]
KIND = ClassesKind()
LIMITS = BufferLimits(20, 4096, 60.0)
FAN_OUT = 2

marks = st.builds(StreamPosition, st.integers(0, 2), st.integers(0, 12))
attempts = st.integers(0, 4)
numbers = st.integers(0, 5)
texts = st.lists(st.sampled_from(["", "a", "b", "a,b", "c", "!", "a b"]), max_size=3).map(tuple)
ids = st.lists(st.sampled_from(["a", "b", "a,b", ""]), max_size=3).map(
    lambda names: tuple(interest_id("classes", name) for name in names)
)
items = st.lists(
    st.builds(
        StreamItem.of,
        st.integers(0, 2),
        st.integers(0, 12),
        st.just(0),
        st.sampled_from([b"a", b"b", b"\xff", b"!", b"a " + bytes(ASIDE_BYTES), bytes(ASIDE_BYTES)]),
    ),
    max_size=3,
).map(lambda some: tuple(item.packed for item in some))
parts = st.sampled_from([b"a", b"\xff", b"a " + bytes(PART_BYTES - 2), bytes(PART_BYTES)])
lefts = st.sampled_from([0, 1, PART_BYTES, PART_BYTES + 1, ITEM_BYTES_MAX - PART_BYTES, (1 << 32) - 1])
peers = st.sampled_from(PEERS)
paths = st.none() | st.lists(peers, max_size=3).map(tuple) | st.just(tuple(PEERS[:2]) * (DEPTH_MAX // 2))
some = st.lists(peers, max_size=3).map(tuple)
anything: st.SearchStrategy[Message] = st.one_of(
    st.builds(messages.Attach, st.just(STREAM), attempts, texts, marks, st.booleans(), st.booleans(), st.none()),
    st.builds(messages.Ready, st.just(STREAM), attempts, marks, marks),
    st.builds(messages.Declined, st.just(STREAM), attempts, st.integers(0, 255), some),
    st.builds(messages.Begin, st.just(STREAM), attempts, marks),
    st.builds(messages.DetachFromParent, st.just(STREAM), attempts),
    st.builds(messages.Widen, st.just(STREAM), texts, marks, st.booleans(), attempts, numbers),
    st.builds(messages.ReplayItems, st.just(STREAM), items, attempts, numbers),
    st.builds(messages.Widened, st.just(STREAM), ids, marks, marks, attempts, numbers),
    st.builds(messages.Narrow, st.just(STREAM), ids, attempts, numbers),
    st.builds(messages.ItemBatch, st.just(STREAM), items, marks, attempts, numbers),
    st.builds(messages.TreeHeartbeat, st.just(STREAM), marks, paths, attempts, numbers),
    st.builds(messages.StreamGap, st.just(STREAM), marks, marks, attempts, numbers),
    st.builds(messages.Climb, st.just(STREAM), peers, attempts, st.integers(0, DEPTH_MAX)),
    st.builds(messages.Climbed, st.just(STREAM), attempts, st.booleans()),
    st.builds(messages.Dismiss, st.just(STREAM), attempts),
    st.builds(messages.MoveAway, st.just(STREAM), attempts, some, st.booleans()),
    st.builds(messages.StreamEnds, st.just(STREAM), attempts),
    st.builds(messages.Reserve, st.just(STREAM), peers.map(lambda peer: peer.id)),
    st.builds(messages.Reserved, st.just(STREAM), peers.map(lambda peer: peer.id), st.booleans(), some),
    st.builds(messages.Unreserve, st.just(STREAM)),
    st.builds(messages.ItemPart, st.just(STREAM), parts, lefts, attempts, numbers),
    st.builds(messages.ItemTaken, st.just(STREAM), attempts, numbers),
)
steps = st.one_of(
    st.tuples(st.just("receive"), peers, anything),
    st.tuples(st.just("move"), peers, st.none()),
    st.tuples(st.just("tick"), st.none(), st.none()),
    st.tuples(st.just("gone"), peers, st.none()),
    st.tuples(st.just("work"), st.none(), st.none()),
)


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=60), st.booleans())
def test_a_member_bears_whatever_comes(steps: list[tuple[str, Any, Any]], is_source: bool) -> None:
    sent: list[Message] = []

    def send(peer: PeerRef, message: Message) -> None:
        assert peer.id != ME.id
        sent.append(message)

    member = StreamMember(
        ME,
        STREAM,
        KIND,
        LIMITS,
        owner(send, admit=lambda peer, wants, gone: len(member.down.children) < FAN_OUT),
        is_source=is_source,
    )
    aside: list[tuple[Any, ...]] = []
    member.state.matching.offload = lambda *job: aside.append(job)
    got: list[Any] = []
    member.subscribe(1, KIND.parse("a"), None, got.append, 0.0)
    now = 0.0
    for what, peer, message in steps:
        if what == "tick":
            now += 0.25
            member.tick(now)
        elif what == "work" and aside:
            with suppress(ProtocolError):
                at_once(*aside.pop(0))
        elif what == "gone":
            member.gone(peer.id, now)
        elif what == "move" and not is_source:
            member.move_to(peer, now)
        elif what == "receive" and peer.id != ME.id:
            try:
                member.received(peer, message, now)
            except ProtocolError:
                member.gone(peer.id, now)  # it costs the peer its link
        member.validate()
        assert len(member.down.children) <= FAN_OUT
        assert all(len(child.wants) <= WANTS_MAX for child in member.down.children.values())
        assert len(member.state.path) <= DEPTH_MAX
    for each in sent:
        encode_body(each)  # raises `Bug` above a limit of the message


def test_a_term_that_no_record_can_have_is_refused_before_anybody_steps_down_for_it() -> None:
    """A standby is believed at once: after such a term no record is later, and the stream would have no producer."""

    def claim(term: int) -> HandOver:
        return HandOver(STREAM, HandOverStep.ASK, term, StreamPosition(0, 0))

    assert decode_body(HandOver, encode_body(claim(TERM_MAX))) == claim(TERM_MAX)
    with pytest.raises(ProtocolError):
        decode_body(HandOver, encode_body(claim(TERM_MAX + 1)))
