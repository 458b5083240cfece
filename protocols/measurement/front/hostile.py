"""How a hostile node of the simulator misbehaves in measurement queries. What it says of itself, everybody believes."""

from __future__ import annotations

from typing import Final

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef, encode_struct
from peerd.sim.hostile.member import STRANGERS_HOST, Behaviour
from protocols.measurement.directory import SHARDS
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.messages import WANTED_MAX, CacheAsk, CacheEntry, CacheUpdate, StandingPromises
from protocols.measurement.guarantee.words import BoundClaim, Measurement, Sample, Want
from protocols.measurement.messages import (
    Described,
    Description,
    MeasureName,
    NodesAnswer,
    NodesQuestion,
    ReadValue,
    ValuesRead,
)

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
            CacheEntry(measurement, number, 0, claim)
            for measurement, claim in (lie_of(owner.id, name) for name in NAMES)
        )
        standing = (StandingPromises(0.0, (number,)),)
        self.node.say(victim, CacheUpdate(boot << 10, boot << 10, number, 0.0, entries, standing, (), number))


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


BEHAVIOURS: Final = {kind.name: kind for kind in (AnswersForOthers, TellsUnasked, AsksForMuch, InventsNodes)}
