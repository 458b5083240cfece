"""The link policy alone: what it decides, with a host that only notes it down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, strategies as st

from peerd.api import Priority, SendRefusal
from peerd.ids import NodeId
from peerd.linking.channel import Channel
from peerd.linking.policy import DUPLICATE_PATIENCE, OUT_OF_REACH_FAILURES, WITNESS_MEMORY_S, LinkPolicy
from peerd.linking.settings import LinkSettings
from peerd.messages import PeerRef
from peerd.wire.frames import Frame

OWN, SMALLER, LARGER = NodeId(50), NodeId(10), NodeId(90)
SETTINGS = LinkSettings()
FRAME = (0x100, 0, b"x")


def peer(node_id: int) -> PeerRef:
    return PeerRef(NodeId(node_id), "10.0.0.1", node_id)


@dataclass(eq=False)
class FakeDial:
    channel: Channel
    delay_s: float
    has_said_hello: bool = True
    is_abandoned: bool = False

    def abandon(self) -> None:
        self.is_abandoned = True


@dataclass(eq=False)
class FakeLink:
    policy: LinkPolicy[FakeLink]
    peer: PeerRef
    dialled: bool
    established_at: float
    boot_epoch: int = 1
    used_at: float = 0.0
    goodbye: str | None = None
    is_up: bool = True
    plugins: dict[str, tuple[int, int]] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)

    def wake(self) -> None: ...
    def flush(self) -> None: ...

    def retire(self, reason: str) -> None:
        self.lose(reason)

    def abort(self, reason: str) -> None:
        self.lose(reason)

    def lose(self, reason: str, goodbye: str | None = None) -> None:
        self.is_up, self.goodbye = False, goodbye
        self.ended.append(reason)
        self.policy.link_lost(self, reason)


class FakeHost:
    """`peerd.linking.channel.LinkHost`: time stands still unless it is moved."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.soon: list[Callable[[], None]] = []
        self.dials: list[FakeDial] = []
        self.downs: list[tuple[NodeId, str]] = []
        self.dropped: dict[str, int] = {}
        self.refused: list[tuple[NodeId, int, SendRefusal]] = []
        self.writables: list[NodeId] = []
        self.duplicates: list[str] = []
        self.refusals: list[str] = []

    def now(self) -> float:
        return self.time

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def start_dial(self, channel: Channel, delay_s: float) -> FakeDial:
        self.dials.append(FakeDial(channel, delay_s))
        return self.dials[-1]

    def dial_refused(self, peer: PeerRef, reason: str) -> None:
        self.refusals.append(reason)

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        self.downs.append((peer.id, reason))

    def frames_dropped(self, frames: int, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + frames

    def frame_refused(self, peer: PeerRef, frame: Frame, reason: SendRefusal) -> None:
        self.refused.append((peer.id, frame[0], reason))

    def writable(self, peer: PeerRef) -> None:
        self.writables.append(peer.id)

    def duplicate_identity(self, detail: str) -> None:
        self.duplicates.append(detail)

    def settle(self) -> None:
        """Run what was to run soon."""
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


def made(settings: LinkSettings = SETTINGS) -> tuple[LinkPolicy[FakeLink], FakeHost]:
    host = FakeHost()
    return LinkPolicy(OWN, settings, host, lambda: 1.0), host


def up(policy: LinkPolicy[FakeLink], host: FakeHost, node_id: int, *, dialled: bool = True, epoch: int = 1) -> FakeLink:
    link = FakeLink(policy, peer(node_id), dialled, host.time, epoch, host.time)
    channel = policy.channel(link.peer)
    policy.link_up(link, channel.dial if dialled else None)
    return link


def fail(policy: LinkPolicy[FakeLink], host: FakeHost, reason: str = "refused") -> bool:
    """Let the newest dial fail."""
    dial = host.dials[-1]
    return policy.dial_failed(dial.channel, dial, reason)


def test_frames_wait_for_one_dial_and_go_with_it_when_it_fails() -> None:
    policy, host = made()
    for _ in range(3):
        policy.send(peer(10), FRAME, Priority.NORMAL)
    assert len(host.dials) == 1 and host.dials[0].delay_s == 0.0
    assert fail(policy, host) and host.downs == []
    host.settle()
    assert host.downs == [(SMALLER, "refused")] and host.dropped["peer_down"] == 3


def test_the_pause_between_dials_doubles_until_sending_fails_at_once() -> None:
    policy, host = made()
    pauses: list[float] = []
    while len(pauses) < 20 and "backoff" not in host.dropped:
        policy.send(peer(10), FRAME, Priority.NORMAL)
        if "backoff" in host.dropped:
            break
        pauses.append(host.dials[-1].delay_s)
        host.time += host.dials[-1].delay_s
        fail(policy, host)
        host.settle()
    assert pauses == pytest.approx([0.0, 0.1, 0.2, 0.4, 0.8]), "the next one is longer than a frame waits"
    policy.send(peer(10), FRAME, Priority.NORMAL)
    host.settle()
    assert host.downs[-1] == (SMALLER, "backoff") and len(host.downs) == 6, "told once for both frames"


def test_a_peer_that_was_out_of_reach_and_answers_ends_every_pause() -> None:
    policy, host = made()
    for node_id in (10, 90):
        for _ in range(OUT_OF_REACH_FAILURES + 3):
            policy.send(peer(node_id), FRAME, Priority.NORMAL)
            fail(policy, host)
            host.time += 1.7
            host.settle()
    host.time += 0.1
    policy.send(peer(90), FRAME, Priority.NORMAL)
    host.settle()
    assert host.downs[-1] == (LARGER, "backoff")
    dials = len(host.dials)
    up(policy, host, 10, dialled=False)
    policy.send(peer(90), FRAME, Priority.NORMAL)
    assert len(host.dials) == dials + 1 and host.dials[-1].delay_s == 0.0


def test_a_lost_link_is_dialled_again_unless_it_ended_on_purpose() -> None:
    for reason, goodbye, dials, downs in (
        ("reset", None, 1, []),
        ("silent", None, 1, []),
        ("idle", None, 0, []),
        ("links_max", None, 0, []),
        ("goodbye:idle", "idle", 0, []),
        ("goodbye:stopping", "stopping", 0, [(SMALLER, "stopping")]),
        ("misbehaved", None, 0, [(SMALLER, "misbehaved")]),
        ("denied", None, 0, [(SMALLER, "denied")]),
    ):
        policy, host = made()
        link = up(policy, host, 10)
        link.lose(reason, goodbye)
        host.settle()
        assert (len(host.dials), host.downs) == (dials, downs), reason


def test_what_is_queued_brings_back_a_link_that_was_closed_on_purpose() -> None:
    policy, host = made()
    link = up(policy, host, 10)
    policy.send(peer(10), FRAME, Priority.NORMAL)
    link.lose("idle")
    assert len(host.dials) == 1 and host.dropped == {}


def test_a_peer_that_refuses_for_its_own_dial_is_given_some_time() -> None:
    policy, host = made()
    policy.send(peer(10), FRAME, Priority.NORMAL)
    for _ in range(DUPLICATE_PATIENCE):
        assert not fail(policy, host, "duplicate_link")
    assert fail(policy, host, "duplicate_link")
    host.settle()
    assert host.downs == [(SMALLER, "duplicate_link")]


def test_of_two_dials_at_once_the_smaller_id_refuses() -> None:
    for other, expected in ((10, None), (90, "duplicate_link")):
        policy, host = made()
        policy.send(peer(other), FRAME, Priority.NORMAL)
        refusal = policy.admit(NodeId(other), 1)
        assert (refusal and refusal[0]) == expected
        host.dials[-1].has_said_hello = False
        assert policy.admit(NodeId(other), 1) is None, "a dial that has not begun is only a plan"
    up(policy, host, 90, dialled=False)
    assert host.dials[-1].is_abandoned


@given(st.lists(st.tuples(st.sampled_from([10, 90]), st.booleans(), st.integers(1, 3)), max_size=12))
def test_at_most_one_link_to_a_peer_stays_and_it_is_of_the_newest_process(ups: list[tuple[int, bool, int]]) -> None:
    policy, host = made()
    links = []
    for node_id, dialled, epoch in ups:
        if dialled or policy.admit(NodeId(node_id), epoch) is None:
            links.append(up(policy, host, node_id, dialled=dialled, epoch=epoch))
            host.time += 0.5
    for node_id in {node_id for node_id, _, _ in ups}:
        alive = [link for link in links if link.peer.id == node_id and link.is_up]
        assert alive in ([], [policy.links.get(NodeId(node_id))])


def test_an_older_process_with_the_same_identity_is_refused_and_a_newer_one_replaces_it() -> None:
    policy, host = made()
    old = up(policy, host, 10, epoch=5)
    refusal = policy.admit(SMALLER, 4)
    assert refusal is not None and refusal[0] == "duplicate_identity"
    assert policy.admit(SMALLER, 6) is None
    new = up(policy, host, 10, dialled=False, epoch=6)
    assert old.ended == ["duplicate_identity"] and policy.links == {SMALLER: new} and host.dials == []


def test_one_witness_does_not_end_a_node_that_has_links_and_two_do() -> None:
    policy, host = made()
    up(policy, host, 10)
    policy.duplicate_claimed("says one", NodeId(1))
    host.time += WITNESS_MEMORY_S
    policy.duplicate_claimed("says another, much later", NodeId(2))
    assert host.duplicates == []
    policy.duplicate_claimed("says a third", NodeId(3))
    assert host.duplicates == ["says a third"]


def test_one_witness_is_believed_only_when_all_others_could_have_answered() -> None:
    policy, host = made()
    policy.duplicate_claimed("says the first seed", SMALLER)
    policy.duplicate_claimed("says it again", SMALLER)
    host.time += SETTINGS.dial_timeout_s / 2
    policy.duplicate_claimed("says it a third time", SMALLER)
    assert host.duplicates == [], "the other seeds may still be dialled"
    host.time += SETTINGS.dial_timeout_s / 2
    policy.duplicate_claimed("says it all the time, and nobody else says anything", SMALLER)
    assert len(host.duplicates) == 1


def test_one_witness_is_not_believed_once_somebody_else_has_a_link() -> None:
    policy, host = made()
    policy.duplicate_claimed("says one", SMALLER)
    other = up(policy, host, 90)
    host.time += SETTINGS.dial_timeout_s
    policy.duplicate_claimed("says one", SMALLER)
    other.lose("eof", goodbye="stopping")
    policy.duplicate_claimed("says one", SMALLER)
    assert host.duplicates == []
    policy.duplicate_claimed("says another", NodeId(2))
    assert len(host.duplicates) == 1


def test_no_peer_has_all_bulk_connections() -> None:
    policy, _ = made()
    streams: list[NodeId] = []
    while policy.admit_stream(LARGER, streams) is None:
        streams.append(LARGER)
    assert SETTINGS.streams_max // 2 <= len(streams) <= SETTINGS.streams_max // 2 + 1
    while policy.admit_stream(SMALLER, streams) is None:
        streams.append(SMALLER)
    for number in range(100, 100 + SETTINGS.streams_max - len(streams)):
        assert policy.admit_stream(NodeId(number), streams) is None, "each of many still gets one"
        streams.append(NodeId(number))
    refusal = policy.admit_stream(NodeId(1), streams)
    assert refusal is not None and refusal[0] == "streams_max"


def test_who_stops_dials_admits_and_tells_nothing() -> None:
    policy, host = made()
    policy.send(peer(10), FRAME, Priority.NORMAL)
    up(policy, host, 90)
    policy.stop()
    assert host.dials[0].is_abandoned
    policy.links[LARGER].lose("reset")
    policy.send(peer(90), FRAME, Priority.NORMAL)
    host.settle()
    refusal = policy.admit(NodeId(7), 1)
    assert refusal is not None and refusal[0] == "stopping" and host.downs == [] and len(host.dials) == 1


def test_peers_that_nobody_wants_are_forgotten_and_those_with_a_link_or_a_frame_are_not() -> None:
    policy, host = made(replace(SETTINGS, backoff_max_s=30.0))
    up(policy, host, 10)
    policy.send(peer(90), FRAME, Priority.NORMAL)
    gone = up(policy, host, 70)
    gone.lose("idle")
    host.time += 31.0
    policy.forget_idle()
    assert set(policy.channels) == {SMALLER, LARGER}
