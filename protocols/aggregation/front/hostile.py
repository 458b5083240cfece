"""How a hostile node of the simulator misbehaves in rounds of aggregation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Final

from msgspec import structs

from peerd.errors import ProtocolError
from peerd.ids import RING, NodeId
from peerd.messages import Message, PeerRef
from peerd.sim.hostile.member import Behaviour, Decoded, Frame
from protocols.aggregation.exchange import decode_value
from protocols.aggregation.messages import (
    AnswerKind,
    Enrolled,
    GiveAnswer,
    Invite,
    InviteAnswer,
    ProposeAnswer,
    ResultReady,
    StartRound,
    StopRound,
)
from protocols.aggregation.partial import Partial
from protocols.aggregation.participant import Participant
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.query import parse_query
from protocols.aggregation.statements import NONCE_BYTES, answer_statement, round_id_of, start_statement, stop_statement

LONG_MS: Final = 2**32 - 1
"""The longest that a round can be said to last: 49 days."""
ROUNDS: Final = 24
DIRECT_STARTS: Final = 300
INVENTED: Final = 15
MOVED_BYTES: Final = 8
"""The bytes of a value before its partial: a count of what was moved for it."""
GARBAGE: Final = b"\x81\xa1k\x80" * 40
"""The column of empty maps that once stopped the plugin, again and again."""
COUNT: Final = parse_query("count", files="**/*").to_wire()


class RoundBehaviour(Behaviour):
    """Base: strikes as soon as a round of somebody else's is known."""

    def delivered(self, message: Message, source: PeerRef) -> None:
        if isinstance(message, StartRound) and message.requester.id != self.node.peer.id:
            self.strike(message)

    def strike(self, start: StartRound) -> None:
        """A round has begun."""

    def sign(self, statement: bytes) -> bytes:
        """A proof in the name of the hostile node, which has no other."""
        return self.node.driver.sign(Aggregation.name, statement)

    @property
    def plugin(self) -> Aggregation | None:
        """The plugin underneath, unless the node runs without it."""
        plugin = self.node.plugins.get(Aggregation.name)
        return plugin if isinstance(plugin, Aggregation) else None


class StopsByBroadcast(RoundBehaviour):
    """Has everybody end the round, with a signature that is not the requester's."""

    name = "stops rounds by broadcast"

    def strike(self, start: StartRound) -> None:
        self.node.overlay.broadcast(StopRound(start.round_id, self.sign(stop_statement(start.round_id))))


class StopsDirectly(RoundBehaviour):
    """Tells each node that the round is over."""

    name = "stops rounds directly"

    def strike(self, start: StartRound) -> None:
        for peer in self.node.others():
            self.node.say(peer, StopRound(start.round_id))


class GivesAnswers(RoundBehaviour):
    """Tells everybody what the answer of the round is, in its own name and in that of the requester."""

    name = "gives answers of others"

    def strike(self, start: StartRound) -> None:
        answered_at_ms = round(self.node.driver.wall_time() * 1000)
        for requester in (self.node.peer, start.requester):
            said = start.round_id, requester, answered_at_ms, "TRUE", b"{}"
            self.node.overlay.broadcast(GiveAnswer(*said, self.sign(answer_statement(*said))))


class OffersMore(RoundBehaviour):
    """Offers a result that it does not have, with more contributors than there are nodes."""

    name = "offers what it has not"

    def strike(self, start: StartRound) -> None:
        nodes = len(self.node.others()) + 1
        self.node.say(start.requester, ResultReady(start.round_id, nodes, 100))
        self.node.say(start.requester, ResultReady(start.round_id, 3 * nodes, 100))


class Declines(RoundBehaviour):
    """Tells the requester, by routed messages, that other nodes take no part."""

    name = "declines for others"

    def strike(self, start: StartRound) -> None:
        for _ in self.node.sample(self.node.others(), ROUNDS):
            self.node.overlay.route(start.requester.id, Enrolled(start.round_id, "no data"))


class Answers(RoundBehaviour):
    """Tells nodes, by routed messages, what others answer to their invitations."""

    name = "answers for others"

    def strike(self, start: StartRound) -> None:
        for peer in self.node.sample(self.node.others(), ROUNDS):
            self.node.overlay.route(peer.id, InviteAnswer(start.round_id, 0, 0))


class StartsDirectly(RoundBehaviour):
    """Sends the start of the round directly, again and again: no round is started so."""

    name = "starts rounds directly"

    def strike(self, start: StartRound) -> None:
        others = self.node.others()
        for number in range(DIRECT_STARTS):
            self.node.say(others[number % len(others)], start)


class EndlessRounds(RoundBehaviour):
    """Starts rounds of 49 days, and never asks for a result."""

    name = "endless rounds"
    gap_s: ClassVar[float] = 15.0

    def act(self) -> None:
        node = self.node
        begins_at_ms = round(node.driver.wall_time() * 1000)
        for _ in range(ROUNDS):
            nonce = self.rng.randbytes(NONCE_BYTES)
            round_id = round_id_of(nonce, node.peer, COUNT, begins_at_ms, LONG_MS, True, True)
            how = True, True, begins_at_ms, LONG_MS, nonce, self.sign(start_statement(round_id))
            node.overlay.broadcast(StartRound(round_id, node.peer, COUNT, 0, LONG_MS, *how))


class FalseValues(RoundBehaviour):
    """Base: gives partners and requester another value than the one that it has."""

    gap_s: ClassVar[float] = 0.2

    def act(self) -> None:
        for participant in self._participants().values():
            if participant.aggregate is not None:
                participant.aggregate = replace(
                    participant.aggregate, encoded=self.given(participant.aggregate.partial)
                )

    def tells(self, peer: PeerRef, message: Message) -> Message | None:
        if not isinstance(message, Invite | InviteAnswer) or not message.value:
            return message
        query = self._participants()[message.round_id].query
        try:
            partial, _ = decode_value(query, message.value)
        except ProtocolError:
            return message  # false already
        return structs.replace(message, value=self.given(partial))

    def _participants(self) -> Mapping[bytes, Participant]:
        return {} if self.plugin is None else self.plugin.participating.participants

    def given(self, held: Partial) -> bytes:
        """Return what is given in place of this."""
        return bytes(MOVED_BYTES) + held.encode()


class InventsContributors(FalseValues):
    """Says of its own data that it is that of many nodes, most of which do not exist."""

    name = "invents contributors"

    def given(self, held: Partial) -> bytes:
        """The value of an aggregate that says of `INVENTED` more nodes that they have contributed to it."""
        own = self.node.peer.id
        shares = {NodeId((own + number) % RING): (0, 0) for number in range(1, INVENTED + 1)}
        shares |= zip(held.contributors, held.shares, strict=True)
        names = tuple(sorted(shares))
        told = replace(held, contributors=names, shares=tuple(shares[name] for name in names))
        return bytes(MOVED_BYTES) + told.encode()


class GivesGarbage(FalseValues):
    """Gives its partners and the requester values that cannot be decoded."""

    name = "gives garbage"

    def given(self, held: Partial) -> bytes:
        return bytes(MOVED_BYTES) + GARBAGE


class NeverSwaps(RoundBehaviour):
    """Agrees to every swap that is proposed, and then knows nothing of it."""

    name = "never swaps"

    def tells(self, peer: PeerRef, message: Message) -> Message | None:
        return structs.replace(message, accepted=True) if isinstance(message, ProposeAnswer) else message


class RefusesEverybody(RoundBehaviour):
    """Answers every invitation with NO, which says that it has that node's data already."""

    name = "refuses everybody"

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        if decoded is None or not isinstance(decoded[0], Invite):
            return True
        self.node.say(peer, InviteAnswer(decoded[0].round_id, decoded[0].level, AnswerKind.NO))
        return False


KINDS: Final[tuple[type[Behaviour], ...]] = (
    *(StopsByBroadcast, StopsDirectly, GivesAnswers, OffersMore, Declines, Answers, StartsDirectly),
    *(EndlessRounds, InventsContributors, GivesGarbage, NeverSwaps, RefusesEverybody),
)
BEHAVIOURS: Final[Mapping[str, type[Behaviour]]] = {kind.name: kind for kind in KINDS}
