"""What is due to subscribers of one event: one item for each node that has a subscription that matches. Pure.

Of a group (pieces with the same group name and the same filter) one member gets the event. Which one is decided by a
hash of the event and the member (rendezvous hashing), so the members share the events evenly. Whoever decides again,
another leaf that holds the same group or a new root of this one, decides the same, and the member's node drops the
repeat: turns that each leaf counts for itself would give the event to two members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.pubsub.bodies import event_bytes
from protocols.pubsub.messages import SUBS_MAX, DeliveredEvent, EventBody, SubObject
from protocols.pubsub.names import EventId, SubscriptionKey
from protocols.pubsub.ports import SchemaView

CHOSEN_BYTES: Final = 9
"""What the number of a chosen subscription takes."""
Keeps = tuple[int, int, int]
"""A durable subscription's number, and for how many seconds and how many bytes events are kept for it."""
KEYS_KEPT_MAX: Final = 16
"""So many pieces of a node are remembered with an item, to be given up when the node says that it has none."""


class Member(Frozen):
    """One member of a group: a subscription of a node."""

    peer: PeerRef
    sid: int
    keep_s: int = 0
    keep_bytes: int = 0


class Pick(Frozen):
    """Which member of a group gets an event, and who comes next if that one does not answer.

    ``others`` were not tried yet, ``tried`` were, and have not said that they do not want it. ``again``: how often it
    was passed to one that was tried before, or was silent.
    """

    member: Member
    others: tuple[Member, ...] = ()
    tried: tuple[Member, ...] = ()
    again: int = 0

    def passed_on(self, to: Member, *, is_again: bool, is_refused: bool) -> Pick:
        """Let another member have it. ``is_refused``: the present one does not want it."""
        tried = self.tried if is_refused else (*self.tried, self.member)
        others, tried = (tuple(each for each in row if each is not to) for row in (self.others, tried))
        return Pick(to, others, tried, self.again + is_again)


@dataclass(slots=True, eq=False)
class PendingDelivery:
    """One event for one node. Until the node has answered, it is *pending*.

    ``is_for_all``: some of the node's subscriptions that match are in no group. ``picks``: its members of groups that
    were chosen. ``replay_sid``: the subscription that asked for this event of the past. ``keeps``: what durable ones
    state, by number: for how long and how many bytes. ``kept``: its number on the disk that it comes from.
    """

    event: EventBody
    event_id: EventId
    schema: SchemaView
    is_for_all: bool
    picks: tuple[Pick, ...] = ()
    keys: tuple[SubscriptionKey, ...] = ()
    replay_sid: int | None = None
    keeps: tuple[Keeps, ...] = ()
    kept: int | None = None
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = event_bytes(self.event) + CHOSEN_BYTES * (1 + len(self.picks))

    @property
    def chosen(self) -> tuple[int, ...]:
        """The subscriptions that have to be named to the node."""
        if self.replay_sid is not None:
            return (self.replay_sid,)
        return tuple(pick.member.sid for pick in self.picks)

    def delivery(self) -> DeliveredEvent:
        """As it travels."""
        return DeliveredEvent(self.event, self.chosen, self.replay_sid is not None)


@dataclass(slots=True)
class _Due:
    peer: PeerRef
    is_for_all: bool = False
    picks: list[Pick] = field(default_factory=list)
    keys: list[SubscriptionKey] = field(default_factory=list)
    keeps: dict[Keeps, None] = field(default_factory=dict)


def items_for(
    schema: SchemaView,
    event_id: EventId,
    event: EventBody,
    pieces: Iterable[SubObject],
    is_silent: Callable[[NodeId], bool],
) -> list[tuple[PeerRef, PendingDelivery]]:
    """What is due of an event that these pieces match: at least one item for each of their nodes, groups apart.

    Members of groups whose node ``is_silent`` are chosen only where there is no other.
    """
    due: dict[NodeId, _Due] = {}
    groups: dict[tuple[str, str], dict[tuple[NodeId, int], SubObject]] = {}
    for piece in pieces:
        if piece.group:
            groups.setdefault((piece.group, piece.filter), {})[piece.subscriber.id, piece.sid] = piece
        else:
            _enter(due, piece).is_for_all = True
    for name in sorted(groups):
        members = [Member(each.subscriber, each.sid, each.keep_s, each.keep_bytes) for each in groups[name].values()]
        pick = choose(event_id, members, is_silent)
        _enter(due, groups[name][pick.member.peer.id, pick.member.sid]).picks.append(pick)
    return [(each.peer, item) for each in due.values() for item in _items(schema, event, event_id, each)]


def _enter(due: dict[NodeId, _Due], piece: SubObject) -> _Due:
    entry = due.setdefault(piece.subscriber.id, _Due(piece.subscriber))
    if piece.keep_s:
        entry.keeps[piece.sid, piece.keep_s, piece.keep_bytes] = None
    if len(entry.keys) < KEYS_KEPT_MAX:
        entry.keys.append(piece.key)
    return entry


def _items(schema: SchemaView, event: EventBody, event_id: EventId, due: _Due) -> Iterable[PendingDelivery]:
    for start in range(0, max(1, len(due.picks)), SUBS_MAX):
        picks = tuple(due.picks[start : start + SUBS_MAX])
        is_for_all = due.is_for_all and start == 0
        yield PendingDelivery(event, event_id, schema, is_for_all, picks, tuple(due.keys), keeps=tuple(due.keeps))


def choose(event_id: EventId, members: Sequence[Member], is_silent: Callable[[NodeId], bool]) -> Pick:
    """Which of a group's members gets an event, and the order of the others."""
    ranked = sorted(members, key=lambda member: _rank(event_id, member))
    chosen = next((member for member in ranked if not is_silent(member.peer.id)), ranked[0])
    return Pick(chosen, tuple(member for member in ranked if member is not chosen))


def _rank(event_id: EventId, member: Member) -> bytes:
    words = (*event_id, member.peer.id, member.sid)
    return blake2b(b"%d %d %d %d %d" % words, digest_size=8).digest()
