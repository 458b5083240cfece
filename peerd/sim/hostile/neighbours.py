"""Lies about who is in the ring: invented neighbours, colluders in place of the true ones, false deaths, deafness."""

from __future__ import annotations

from typing import ClassVar, Final

from msgspec.structs import replace

from peerd.messages import Message, PeerRef
from peerd.overlay import messages
from peerd.overlay.messages import CANDIDATES_MAX, FAILED_MAX
from peerd.sim.hostile.member import Behaviour
from peerd.wire.codec import Decoded
from peerd.wire.frames import Frame

SIDE: Final = 8
NEAR_BITS: Final = (20, 120)
"""Invented neighbours are at most ``2**bits`` away, with bits between these: often nearer than any true one."""
TARGETS_MAX: Final = 8
"""So many nodes are lied to at a time."""
FAR_MAX: Final = 4


class InventedNeighbours(Behaviour):
    """Tells others, again and again, of neighbours of theirs that do not exist."""

    name = "invented neighbours"
    gap_s: ClassVar[float] = 1.0
    targets_max: ClassVar[int] = TARGETS_MAX

    def act(self) -> None:
        node, rng = self.node, self.rng
        for peer in node.sample(node.others(), self.targets_max):
            near = [node.stranger(peer.id, rng.randint(*NEAR_BITS)) for _ in range(2 * SIDE)]
            others = [node.stranger(peer.id, rng.randint(*NEAR_BITS)) for _ in range(CANDIDATES_MAX)]
            node.ask(peer, messages.LeafSetProbe(True, tuple(near[:SIDE]), tuple(near[SIDE:]), tuple(others), ()))


class Colluders(Behaviour):
    """Answers whoever asks for neighbours, table entries or the way to join with its friends, and with far nodes."""

    name = "colluders"

    def tells(self, peer: PeerRef, message: Message) -> Message | None:
        node = self.node
        friends = tuple(friend for friend in node.colluders() if friend.id != peer.id)[:SIDE]
        far = tuple(node.sample(node.others(), FAR_MAX))
        match message:
            case messages.LeafSetProbe() | messages.LeafSetReply() | messages.Announce() | messages.Leave():
                return replace(message, smaller=(*friends, *far), larger=(*far, *friends))
            case messages.JoinReply():
                return replace(message, next_hop=None, smaller=friends, larger=friends, peers=(*friends, *far))
            case messages.EntriesReply():
                return replace(message, peers=(node.peer, *friends, *far)[:SIDE], coordinates=())
        return message


class FalseDeaths(Behaviour):
    """Says of nodes that run that they have failed, and of others, who never were, that they are missing."""

    name = "false deaths"
    gap_s: ClassVar[float] = 1.0

    def act(self) -> None:
        node = self.node
        others = node.others()
        failed = tuple(peer.id for peer in node.sample(others, FAILED_MAX))
        missing = tuple(messages.Absence(node.stranger(node.peer.id, NEAR_BITS[1]), 1.0) for _ in range(SIDE))
        for peer in node.sample(others, TARGETS_MAX):
            node.say(peer, messages.FailureNotice(failed))
            node.say(peer, messages.Absences(missing))

    def tells(self, peer: PeerRef, message: Message) -> Message | None:
        if isinstance(message, messages.LeafSetProbe | messages.LeafSetReply):
            others = [other.id for other in self.node.sample(self.node.others(), FAILED_MAX) if other.id != peer.id]
            return replace(message, failed=tuple(others))
        return message


class HalfDeaf(Behaviour):
    """Hears no probe, ping or join of every other node, and everything from the rest."""

    name = "half deaf"

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        is_question = decoded is not None and isinstance(
            decoded[0], messages.LeafSetProbe | messages.Ping | messages.JoinRequest
        )
        return not is_question or (peer.id >> 64) % 2 == 0
