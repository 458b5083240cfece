"""One careless interest ends itself only: never its stream, its node, or what others get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.testing.simulation import ring
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.front.judging import plugin_of
from protocols.dissemination.interests.classes import ClassesKind, ClassSet
from protocols.dissemination.interests.guarded import GuardedSet
from protocols.dissemination.interests.xpath.automaton import Automaton
from protocols.dissemination.interests.xpath.document import parse
from protocols.dissemination.interests.xpath.kind import FEW, XPathKind
from protocols.dissemination.messages import Attach, ItemBatch, ReplayItems, StreamItem
from protocols.dissemination.models import (
    StreamSpec,
    StreamSubscriptionRequest,
    StreamSubscriptionView,
    StreamView,
)
from protocols.dissemination.names import START, stream_key
from protocols.dissemination.plugin import Dissemination
from protocols.dissemination.policies.overlap.overlaps import RecentItems
from protocols.dissemination.ports import Interest, ParsedItem
from protocols.dissemination.tree.matching import ASIDE_BYTES, Matching
from protocols.dissemination.tree.member import StreamMember
from protocols.dissemination.tree.replay import BufferLimits
from protocols.dissemination.tree.subscription import Delivered, Unmatchable
from protocols.dissemination.tree.wants import Wants
from tests.support.member_owner import owner

STREAM = stream_key("s")
ME, CHILD = PeerRef(NodeId(1), "127.0.0.1", 1), PeerRef(NodeId(2), "127.0.0.1", 2)


class CarelessSet(ClassSet):
    def match(self, content: Any) -> set[bytes]:
        for interest in self._known.values():
            fail_if_careless(interest, content)
        return super().match(content)


class CarelessKind(ClassesKind):
    """The interest "bad" cannot be matched with items of the class "b"."""

    def make_set(self) -> CarelessSet:
        return CarelessSet()

    def matches(self, interest: Interest, content: Any) -> bool:
        fail_if_careless(interest, content)
        return super().matches(interest, content)


def fail_if_careless(interest: Interest, content: Any) -> None:
    if "bad" in interest.text and content == "b":
        raise KeyError("a label that is not there")


class Producer:
    """A producer with subscriptions of its own, and one child."""

    def __init__(self) -> None:
        self.kind = CarelessKind()
        self.sent: list[Message] = []
        self.failed: list[tuple[str, str]] = []
        self.got: dict[int, list[Delivered]] = {}
        limits, node = BufferLimits(100, 1 << 20, 1e9), owner(self._send, failed=self._failed)
        self.member = StreamMember(ME, STREAM, self.kind, limits, node, is_source=True)
        self.count = 0

    def _send(self, peer: PeerRef, message: Message) -> None:
        self.sent.append(message)

    def _failed(self, interest: Interest | None, why: str) -> None:
        self.failed.append((interest.text if interest else "", why))

    def subscribe(self, number: int, text: str, *, past: bool = False) -> None:
        got = self.got[number] = []
        self.member.subscribe(number, self.kind.parse(text), START if past else None, got.append, 0.0)

    def publish(self, classes: str) -> None:
        for name in classes:
            self.count += 1
            self.member.publish(StreamItem.of(1, self.count, 0, name.encode()), 0.0)
        self.member.flush(0.0)

    def items(self, number: int) -> str:
        return "".join(each.content or "?" for each in self.got[number] if isinstance(each, ParsedItem))

    def carried(self) -> str:
        of_edge = [each for each in self.sent if isinstance(each, ItemBatch | ReplayItems)]
        return "".join(StreamItem.unpack(item).payload.decode() for each in of_edge for item in each.items)


def test_an_interest_that_fails_ends_and_is_told_why_and_others_get_their_items() -> None:
    node = Producer()
    node.subscribe(1, "bad,a")
    node.subscribe(2, "b")
    node.publish("abab")
    assert node.items(1) == "a" and node.items(2) == "bb"
    [told] = [each for each in node.got[1] if isinstance(each, Unmatchable)]
    assert "a label that is not there" in told.why and node.failed == [("a,bad", told.why)]
    node.member.end_failed(1.0)
    assert list(node.member.subscriptions) == [2]
    node.publish("ab")
    assert node.items(2) == "bbb" and len(node.failed) == 1
    with pytest.raises(AssertionError, match="a label that is not there"):  # so that no simulation passes over it
        node.member.validate()


def test_what_is_remembered_does_not_stop_who_attaches_to_it() -> None:
    node = Producer()
    node.publish("aba")
    node.subscribe(1, "bad,a", past=True)
    node.subscribe(2, "b", past=True)
    assert node.items(1) == "a" and isinstance(node.got[1][-1], Unmatchable)
    assert node.items(2) == "b"


def test_a_child_is_sent_what_its_interest_cannot_be_tried_on_so_that_its_own_node_finds_out() -> None:
    node = Producer()
    node.subscribe(2, "b")
    node.publish("ab")
    node.member.received(CHILD, Attach(STREAM, 1, ("bad,a",), START, is_orphan=True), 0.0)
    node.publish("cbab")
    assert node.carried() == "abbab", "with what is remembered, and without the c that was before the failure"
    assert node.items(2) == "bbb"


def test_statistics_of_what_a_member_wants_do_not_fail_with_its_interest() -> None:
    kind = CarelessKind()
    recent = RecentItems(kind)
    for number, name in enumerate("aba", 1):
        recent.add(StreamItem.of(1, number, 0, name.encode()))
    wanted = recent.wanted_by([kind.parse("bad,a")])
    assert wanted is not None and list(wanted.items) == [1, 2, 3]


def test_a_set_that_fails_as_a_whole_is_asked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the automaton did for an attribute's text(): each query by itself is answered, so none of them ends."""
    kind = XPathKind()
    some = [kind.parse(f"//a[@x = {number}]") for number in range(FEW + 4)]
    together = GuardedSet(kind)
    for each in some:
        together.add(each)
    right = Automaton.match

    def fails(self: Automaton, root: Any) -> set[bytes]:
        if len(self) > 1:
            raise KeyError("a label that is not there")
        return right(self, root)

    monkeypatch.setattr(Automaton, "match", fails)
    assert together.match(parse(b"<a x='3'/>")) == {some[3].id}
    assert (together.faults, together.failed) == (1, {})
    monkeypatch.undo()
    assert together.match(parse(b"<a x='4'/>")) == {some[4].id} and together.faults == 1


def test_a_set_that_cannot_take_an_interest_goes_on_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = ClassesKind()
    right = ClassSet.add

    def add(self: ClassSet, interest: Interest) -> None:
        if interest.text == "bad":
            raise ValueError("no room")
        right(self, interest)

    monkeypatch.setattr(ClassSet, "add", add)
    together = GuardedSet(kind)
    for text in ("a", "bad", "b"):
        together.add(kind.parse(text))
    assert together.match("a") == {kind.parse("a").id}
    together.remove(kind.parse("bad").id)
    assert together.match("b") == {kind.parse("b").id} and together.faults == 1


def test_an_interest_that_cannot_be_compared_with_others_costs_them_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node asks which interest covers which: a bug in that stopped whoever attached beside the careless one."""
    kind = ClassesKind()

    def covers(wide: Interest, narrow: Interest) -> bool:
        raise KeyError("a label that is not there")

    monkeypatch.setattr(kind, "covers", covers)
    wants, some = Wants(kind), [kind.parse("b"), kind.parse("bad,a")]
    wants.need("child", some[:1], None, START)
    wants.widened([some[0].id], START)
    assert len(wants.need("other", some[1:], None, START)) == 1, "the parent is asked for it"
    wants.release("child")


ATTRIBUTES_TEXT = "//a//b[@c/text() = 'x']"
DOCUMENT = b"<a><b c='x'>x</b></a>"


class Streamed:
    """A stream on a small ring; its producer is the first node."""

    def __init__(self, kind: str) -> None:
        self.simulation = ring(3, 1, plugins=lambda index: [Dissemination(DisseminationConfig())])
        self.plugins = [plugin_of(node) for node in self.simulation.nodes]
        told: list[StreamView | Exception] = []
        self.plugins[0].changes.create(StreamSpec(name="s", kind=kind, policy="first_fit"), told.append)
        self.simulation.run_until(lambda: bool(told), limit_s=30.0)
        self.told: list[StreamSubscriptionView | Exception] = []

    def subscribe(self, node: int, interests: Sequence[str], after: str | None = None) -> list[str]:
        """The ids of subscriptions at one node."""
        before = len(self.told)
        for text in interests:
            request = StreamSubscriptionRequest(stream="s", interest=text, after=after)
            self.plugins[node].subscribing.subscribe(request, self.told.append)
        self.simulation.run_until(lambda: len(self.told) == before + len(interests), limit_s=30.0)
        views = [each for each in self.told[before:] if isinstance(each, StreamSubscriptionView)]
        assert len(views) == len(interests), self.told[before:]
        return [view.id for view in views]

    def publish(self, *payloads: bytes) -> list[str]:
        ids = [self.plugins[0].publishers.publish("s", each).id for each in payloads]
        self.simulation.run_for(3.0)
        return ids

    def received(self, node: int, id: str) -> tuple[int, str]:
        """How much one has got, and why it was ended."""
        view, feed = self.plugins[node].subscribing.reading(id)
        return view.received, feed.ended.reason if feed.ended is not None else ""


@pytest.mark.parametrize("count", [1, FEW + 1])
def test_a_comparison_of_an_attributes_text_is_a_query_like_others(count: int) -> None:
    """It stopped the stream for everybody, also after it had ended; and with items remembered, whoever attached."""
    streamed = Streamed("xpath")
    others = [f"//a[b = {number}]" for number in range(count - 1)]
    for node in (0, 1):
        ids = streamed.subscribe(node, [ATTRIBUTES_TEXT, "//b[@c]", *others])
        before = streamed.received(node, ids[1])[0]
        numbers = [id.rpartition("-")[2] for id in streamed.publish(DOCUMENT, DOCUMENT)]
        assert int(numbers[1]) == int(numbers[0]) + 1
        assert streamed.received(node, ids[0]) == (0, "") and streamed.received(node, ids[1]) == (before + 2, "")
    past = streamed.subscribe(2, [ATTRIBUTES_TEXT, "//b[@c]", *others], after="start")
    streamed.simulation.run_for(2.0)
    assert streamed.received(2, past[0]) == (0, "") and streamed.received(2, past[1]) == (4, "")


@pytest.mark.parametrize("padding", [0, ASIDE_BYTES])
@pytest.mark.parametrize("node", [0, 1])
def test_who_subscribed_with_an_interest_that_fails_is_told_and_nobody_else(
    node: int, padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClassesKind, "make_set", CarelessKind.make_set)
    right = ClassesKind.matches

    def matches(self: ClassesKind, interest: Interest, content: Any) -> bool:
        fail_if_careless(interest, content)
        return right(self, interest, content)

    monkeypatch.setattr(ClassesKind, "matches", matches)
    streamed = Streamed("classes")
    [bad, good], [elsewhere] = streamed.subscribe(node, ["bad", "b"]), streamed.subscribe(2, ["b"])
    item = b"b " + bytes(padding)
    streamed.publish(b"a", item, item)
    got, why = streamed.received(node, bad)
    assert got == 0 and "a label that is not there" in why
    assert streamed.received(node, good) == streamed.received(2, elsewhere) == (2, "")
    late = streamed.subscribe(node, ["bad", "b"], after="start")
    streamed.publish(item)
    assert streamed.received(node, late[0])[1] and streamed.received(node, late[1]) == (3, "")


def test_whatever_is_raised_on_an_items_way_the_next_one_has_another_number(monkeypatch: pytest.MonkeyPatch) -> None:
    streamed = Streamed("classes")
    [id] = streamed.subscribe(1, ["a"])
    producer = streamed.plugins[0]
    for place, name in ((Matching, "match"), (StreamMember, "_flow")):
        monkeypatch.setattr(place, name, lambda *given: pytest.fail("a bug"))
        with pytest.raises(pytest.fail.Exception, match="a bug"):
            producer.publishers.publish("s", b"a")
        monkeypatch.undo()
        before = streamed.received(1, id)[0]
        streamed.publish(b"a", b"a")
        assert streamed.received(1, id) == (before + 2, "")
