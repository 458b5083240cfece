"""How a hostile node of the simulator misbehaves in measurement queries. What it says of itself, everybody believes."""

from __future__ import annotations

import struct
from typing import Final

from msgspec.structs import replace

from peerd.ids import NodeId
from peerd.lib.proof_ends import MARK_BYTES, is_short
from peerd.limits import SIGNATURE_BYTES
from peerd.messages import Message, PeerRef, encode_body, encode_struct
from peerd.sim.hostile.member import STRANGERS_HOST, Behaviour, Decoded, Frame, HostileNode
from protocols.measurement.aggregates.messages import (
    KEY_BYTES,
    STALE_MIN_S,
    WHERE_BYTES_MAX,
    AggregateAsk,
    AggregateSpec,
    AggregateWord,
)
from protocols.measurement.aggregates.partial import COUNT_MAX, FUNCTIONS
from protocols.measurement.directory import SHARDS
from protocols.measurement.guarantee.interval import VALUE_MAX, Interval
from protocols.measurement.guarantee.messages import (
    PATH_MAX,
    WANTED_MAX,
    CacheAsk,
    CacheEntry,
    CacheUpdate,
    StandingPromises,
)
from protocols.measurement.guarantee.words import BoundClaim, Measurement, Sample, Want
from protocols.measurement.messages import (
    READ_MAX,
    Described,
    Description,
    MeasureName,
    NodesAnswer,
    NodesQuestion,
    ReadValue,
    ValuesRead,
)
from protocols.measurement.placing.messages import (
    COST_MAX,
    AlongRead,
    AlongWant,
    MoveCaches,
    MovedCache,
    ReadAlong,
    SpliceIn,
    Subtree,
)
from protocols.measurement.placing.splicing import statement
from protocols.measurement.placing.subtree import BITS_MAX

LIE: Final = 123_456.0
"""No honest node of the simulator measures this."""
NAMES: Final = ("walk", "level", "spike")
INVENTED: Final = 40


def lie_of(owner: NodeId, name: str) -> tuple[Measurement, BoundClaim]:
    """A claim about somebody's value."""
    return Measurement(owner, name), BoundClaim(LIE, LIE, Interval(LIE, LIE), Sample(1, 1))


class AnswersForOthers(Behaviour):
    """Adds values of other owners to its answers, as if they were asked of it."""

    name = "answers for other owners"

    def tells(self, peer: PeerRef, message: Message) -> Message | None:
        if not isinstance(message, ValuesRead):
            return message
        lies = [ReadValue(*lie_of(other.id, name), 0.0) for other in self.node.others()[:10] for name in NAMES]
        return ValuesRead((*message.values, *lies)[:60], message.missing)


class TellsUnasked(Behaviour):
    """Sends promises of other owners' values, current ones, that nobody has asked it for."""

    name = "provides unasked"
    gap_s = 0.5

    def act(self) -> None:
        others = self.node.others()
        if not others:
            return
        victim, owner = (self.rng.choice(others) for _ in range(2))
        boot, number = self.rng.randrange(1, 5), self.rng.randrange(1, 20)
        entries = tuple(
            CacheEntry(number, 0, False, claim, measurement)
            for measurement, claim in (lie_of(owner.id, name) for name in NAMES)
        )
        standing = StandingPromises((number,), (0,))
        self.node.say(victim, CacheUpdate(boot << 10, boot << 10, number, 0, entries, standing, (), number))


class AsksForMuch(Behaviour):
    """Wants everything of everybody, exactly, twice a second, and never drops it."""

    name = "holds everything"
    gap_s = 0.2

    def act(self) -> None:
        others = self.node.others()
        if not others:
            return
        owners = [self.rng.choice(others).id for _ in range(WANTED_MAX // len(NAMES))]
        wants = tuple(Want(Measurement(owner, name), 0.0) for owner in owners for name in NAMES)
        number = int(self.node.driver.now() * 1000)
        self.node.say(self.rng.choice(others), CacheAsk(1 << 40, number, 3600.0, 0.0, wants))


class InventsNodes(Behaviour):
    """As the root of a shard, tells of nodes that are not there, and forgets those that are."""

    name = "invents nodes"
    gap_s = 2.0

    def tells(self, peer: PeerRef, message: Message) -> Message | None:
        if not isinstance(message, NodesAnswer) or not message.nodes:
            return message
        nodes = tuple(self._invented(number) for number in range(INVENTED))
        return NodesAnswer(self.rng.randbytes(8), (*message.nodes[::2], *nodes), True, True)

    def _invented(self, number: int) -> Described:
        node = NodeId((self.rng.getrandbits(120) << 8) | number % SHARDS)
        names = tuple(MeasureName(name) for name in (NAMES if number % 2 else ("No Name\n",)))
        return Described(node, encode_struct(Description(PeerRef(node, STRANGERS_HOST, 7420), 1, (), names)))

    def act(self) -> None:
        """Have everybody work: one question after the other, of the shards that there are and of others."""
        others = self.node.others()
        for number in range(20 if others else 0):
            self.node.say(self.rng.choice(others), NodesQuestion(number, NodeId(0)))


class SaysAllAreBelow(Behaviour):
    """Tells everybody that all nodes are below it, and lets questions that come to it end there, without a word."""

    name = "says all are below"
    gap_s = 2.0

    def act(self) -> None:
        for other in self.node.others():
            self.node.say(other, Subtree((), b"\xff" * (BITS_MAX // 8)))

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        return decoded is None or not isinstance(decoded[0], ReadAlong | SpliceIn)


class MovesToItself(Behaviour):
    """Tells everybody that it provides from now on, with ways that are right and ways that cannot be."""

    name = "moves caches to itself"
    gap_s = 0.5

    def act(self) -> None:
        others = self.node.others()
        if len(others) < 2:
            return
        victim, owner = self.rng.sample(others, 2)
        me = self.node.peer
        ways = ((victim.id, me.id), (victim.id, owner.id, owner.id, me.id), (owner.id, me.id), (victim.id,))
        moved = tuple(MovedCache(Measurement(owner.id, name), self.rng.choice(ways)) for name in NAMES)
        self.node.say(victim, MoveCaches(self.rng.choice((me, owner)), moved))


class ForgesQuestions(Behaviour):
    """Asks in the name of others, from ways that nobody went, sends what it has heard from others again, with other
    marks as well, and says that it knows no mark, also of what nobody has sent it."""

    name = "forges questions"
    gap_s = 0.1

    def __init__(self, node: HostileNode) -> None:
        super().__init__(node)
        self._heard: list[ReadAlong | SpliceIn] = []

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        if decoded is not None and isinstance(decoded[0], ReadAlong | SpliceIn):
            self._heard = [*self._heard[-50:], decoded[0]]
            if is_short(decoded[0].proof):
                self.node.say(peer, decoded[0])
        return True

    def act(self) -> None:
        others, me = self.node.others(), self.node.peer
        if len(others) < 3:
            return
        victim, to, owner = self.rng.sample(others, 3)
        way = self.rng.choice(
            ((victim.id, me.id), (victim.id,), (victim.id, to.id), (victim.id, me.id, victim.id), (me.id,))
        )
        proof = self.rng.choice((b"x" * SIGNATURE_BYTES, b"x" * (SIGNATURE_BYTES + MARK_BYTES)))
        wants = tuple(AlongWant(Measurement(owner.id, name), 1e9, COST_MAX, COST_MAX) for name in NAMES)
        number = self.rng.getrandbits(63)
        self.node.say(to, ReadAlong(victim, number, 1e9, wants, way, COST_MAX, proof))
        self.node.say(to, SpliceIn(victim, 1 << 50, number, 1e9, 0.0, wants, way, proof))
        if self._heard:
            again = self.rng.choice(self._heard)
            path = (*again.path[: PATH_MAX - 2], me.id)
            proof = self.rng.choice((again.proof, again.proof[:SIGNATURE_BYTES] + self.rng.randbytes(MARK_BYTES)))
            self.node.say(to, replace(again, path=path, wants=wants, proof=proof))
            if isinstance(again, SpliceIn):
                owners = [each for each in others if each.id == again.wants[0].measurement.owner]
                self.node.say(owners[0] if owners else to, replace(again, path=path, boot=1 << 50))
            else:
                stranger = PeerRef(again.reader.id, STRANGERS_HOST, 7420)
                self.node.say(to, replace(again, path=path, reader=stranger))


class SplicesMuch(Behaviour):
    """Has everybody cache everything for it, exactly and at once, and never goes on to hold anything."""

    name = "splices everything"
    gap_s = 0.1

    def act(self) -> None:
        others, me = self.node.others(), self.node.peer
        if not others:
            return
        owners = [self.rng.choice(others).id for _ in range(READ_MAX // len(NAMES))]
        wants = tuple(AlongWant(Measurement(owner, name), 0.0, 0.0, 1.0) for owner in owners for name in NAMES)
        number = int(self.node.driver.now() * 1000)
        asked = SpliceIn(me, 1 << 40, number, 1e9, self.rng.choice((0.0, 5.0)), wants, (me.id,), b"")
        host = self.node.hosts["measurement"]
        self.node.say(self.rng.choice(others), replace(asked, proof=host.sign(statement(asked))))


class InventsOnTheWay(Behaviour):
    """Answers the questions that come to it over T itself, with values that nobody has measured."""

    name = "invents on the way"

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        if decoded is None or not isinstance(question := decoded[0], ReadAlong):
            return True
        lies = tuple(
            ReadValue(*lie_of(want.measurement.owner, want.measurement.name), 0.0)
            for want in question.wants
            if want.measurement.owner != self.node.peer.id
        )
        self.node.say(question.reader, AlongRead(question.number, 1.0, lies, (0.0,) * len(lies)))
        return False


class OverstatesSums(Behaviour):
    """Says of its subtree that all nodes that a word can count are there, with any value."""

    name = "overstates sums"

    def tells(self, peer: PeerRef, message: Message) -> Message | None:
        if not isinstance(message, AggregateWord):
            return message
        value = self.rng.choice((LIE, VALUE_MAX, -VALUE_MAX))
        return replace(message, counted=COUNT_MAX, expected=COUNT_MAX, age_s=0.0, interval=Interval(value, value))


class IsEverybodysChild(Behaviour):
    """Says to everybody that it is at the next place below, and tells all who then ask it the same value."""

    name = "is everybody's child"
    gap_s = 2.0

    def act(self) -> None:
        for other in self.node.others():
            self.node.say(other, Subtree((self.node.peer.id,)))

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        if decoded is None or not isinstance(ask := decoded[0], AggregateAsk):
            return True
        number = int(self.node.driver.now() * 1000)
        word = AggregateWord(ask.spec.key, 1 << 50, number, ask.boot, ask.number, 0.0, 1, 1, 0.0, Interval(LIE, LIE))
        self.node.say(peer, word)
        return False


class AsksForManySums(Behaviour):
    """Asks everybody for the aggregates of ever other regions, exactly and as often as may be, some of them dear."""

    name = "asks for many sums"
    gap_s = 0.05

    def act(self) -> None:
        others = self.node.others()
        number = int(self.node.driver.now() * 1000)
        for other in self.rng.sample(others, min(4, len(others))):
            where = self.rng.choice(
                (f"level > {number}", " AND ".join(["level > 1"] * (WHERE_BYTES_MAX // 14)), "level >")
            )
            spec = AggregateSpec(number % len(FUNCTIONS), "level", where, 0.0, STALE_MIN_S + number % 1000 / 1000)
            self.node.say(other, AggregateAsk(1 << 50, number, spec, self.rng.choice((0.0, VALUE_MAX))))


class SaysImpossibleSums(Behaviour):
    """Says words that cannot be: bounds that are no numbers or in the wrong order, and words that nobody asked for."""

    name = "says impossible sums"

    def tells(self, peer: PeerRef, message: Message) -> Message | None:
        if not isinstance(message, AggregateWord):
            return message
        self.node.say(peer, replace(message, key=self.rng.randbytes(KEY_BYTES), asked=message.asked + 1))
        body = encode_body(replace(message, counted=1, expected=2, interval=Interval(1.0, 2.0)))
        one, two, nan = (struct.pack(">d", each) for each in (1.0, 2.0, float("nan")))
        turned = body.replace(one + b"\xcb" + two, two + b"\xcb" + one), body.replace(one + b"\xcb", nan + b"\xcb")
        self.node.throw(peer, (message.TYPE_ID, 0, self.rng.choice(turned)))
        return None


BEHAVIOURS: Final = {
    kind.name: kind
    for kind in (
        AnswersForOthers,
        TellsUnasked,
        AsksForMuch,
        InventsNodes,
        SaysAllAreBelow,
        MovesToItself,
        ForgesQuestions,
        SplicesMuch,
        OverstatesSums,
        IsEverybodysChild,
        AsksForManySums,
        SaysImpossibleSums,
    )
}
"""`InventsOnTheWay` is not among them: its values are told, until an owner is asked."""
