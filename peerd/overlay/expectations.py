"""The members that went without goodbye, and so still belong to the ring. Pure state.

A node that is silent is missing, not gone. It stays expected until it is back, said goodbye, was denied, an operator
forgot it, or a stated time has passed. A node knows this first-hand of its former members; of others it takes the word
of members, and only when at least `INFORMANTS_MIN` of them (all, where there are fewer) say the same: nobody alone can
make up an expected node.

The word of a member that a node was dismissed counts in the same way, so nobody alone can have others forget, either.
What was dismissed is remembered, too (a *dismissal*), so that a node that missed the news cannot bring it back. An
absence that began after the dismissal is a new one. A goodbye ends the life that said it and those before, which their
boot epochs tell; where those are not known, the times decide. Clocks differ, so only ages travel, never times.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.messages import PeerRef

ABSENT_MAX: Final = 192
"""Missing members that one node keeps; those that it lost last stay."""
CLAIMS_MAX: Final = 1024
"""How many missing members are kept that not enough others have named yet."""
CLAIMS_PER_INFORMANT_MAX: Final = 64
"""At most so many of these claims may come from one informant."""
DISMISSALS_MAX: Final = 256
INFORMANTS_MIN: Final = 2
"""Members that have to name a missing node before it counts; in a ring with fewer, all of them."""
DISMISSAL_SLACK_S: Final = 2.0
"""An absence that seems to begin within this time after a dismissal counts as older than it: messages take time."""
OUTSIDE_MAX_S: Final = 600.0
"""How long a missing node is kept that would not be a member here any more: others watch its place now."""


class Dismissed(Frozen, order=True):
    """When a node was dismissed. ``epoch``: of the life that said goodbye; 0: it did not, or nobody knows."""

    at: float
    epoch: int = 0

    def ends(self, lost_at: float, *, is_dated: bool, epoch: int) -> bool:
        """Whether an absence that began then, in the life of that epoch, is over by this."""
        if self.epoch and epoch:
            return epoch <= self.epoch
        return not is_dated or lost_at <= self.at + DISMISSAL_SLACK_S


@dataclass(slots=True)
class Absent:
    """A missing member. ``lost_at``: when it was last heard, monotonic seconds of this node (an estimate when told).

    ``is_dated``: that time is known; otherwise any dismissal is newer. ``epoch``: the boot epoch of the life that
    ended, 0 when not known.
    """

    peer: PeerRef
    lost_at: float
    is_dated: bool = True
    epoch: int = 0
    given_up_at: float = 0.0
    """When this node removed it, which is what people are told: a member that is no neighbour may not have been heard
    for long before it died. Where this node did not see that, `lost_at`."""
    outside_since: float | None = None
    dismissed_by: dict[NodeId, Dismissed] = field(default_factory=dict)
    """Members that say that it was dismissed, and what each says."""


@dataclass(slots=True)
class Claim:
    """What others say of a missing member."""

    peer: PeerRef
    lost_at: float
    is_dated: bool
    epoch: int
    """The earliest that anybody names: nobody alone can make an absence outlast a goodbye."""
    informants: dict[NodeId, None] = field(default_factory=dict)


class Expectations:
    """Missing members, claims about others, and dismissals; oldest first."""

    def __init__(self, own: NodeId, expect_for_s: float) -> None:
        self.own = own
        self.changes = 0
        """Grows with every change of what has to survive a restart."""
        self._expect_for_s = expect_for_s
        self._absent: dict[NodeId, Absent] = {}
        self._claims: dict[NodeId, Claim] = {}
        self._claimed_by: dict[NodeId, int] = {}
        self._dismissed: dict[NodeId, Dismissed] = {}
        self._denied: frozenset[NodeId] = frozenset()

    def __len__(self) -> int:
        return len(self._absent)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._absent

    def __iter__(self) -> Iterator[Absent]:
        return iter(self._absent.values())

    def get(self, node_id: NodeId) -> Absent | None:
        """The missing member of that id, if it is one."""
        return self._absent.get(node_id)

    def dismissals(self) -> dict[NodeId, Dismissed]:
        """Who was dismissed, and when."""
        return dict(self._dismissed)

    @property
    def denied(self) -> frozenset[NodeId]:
        """Nodes that must not be expected, whatever anybody says."""
        return self._denied

    # First-hand

    def lost(
        self,
        peer: PeerRef,
        lost_at: float,
        now: float,
        *,
        is_dated: bool = True,
        epoch: int = 0,
        is_first_hand: bool = True,
    ) -> bool:
        """A member went without goodbye. Returns whether it is missing from now on, and was not before.

        ``is_first_hand``: this node has removed it just now.
        """
        if peer.id in self._absent or not self._is_possible(peer.id, lost_at, now, is_dated=is_dated, epoch=epoch):
            return False
        self._drop_claim(peer.id)
        while len(self._absent) >= ABSENT_MAX:
            del self._absent[next(iter(self._absent))]
        self._absent[peer.id] = Absent(peer, lost_at, is_dated, epoch, now if is_first_hand else lost_at)
        self.changes += 1
        return True

    def _is_possible(self, node_id: NodeId, lost_at: float, now: float, *, is_dated: bool, epoch: int) -> bool:
        if node_id == self.own or node_id in self._denied or now - lost_at >= self._expect_for_s:
            return False
        dismissed = self._dismissed.get(node_id)
        return dismissed is None or not dismissed.ends(lost_at, is_dated=is_dated, epoch=epoch)

    def returned(self, node_id: NodeId) -> Absent | None:
        """The node is back: what was said of it before does not count. Returns its entry among the missing, if any."""
        self._drop_claim(node_id)
        if self._dismissed.pop(node_id, None) is not None:
            self.changes += 1
        return self._take(node_id)

    # Hearsay

    def claimed(
        self, peer: PeerRef, lost_at: float, informant: NodeId, now: float, *, is_dated: bool = True, epoch: int = 0
    ) -> bool:
        """``informant`` says that ``peer`` is missing. Returns false when this node knows better: it was dismissed."""
        if not self._is_possible(peer.id, lost_at, now, is_dated=is_dated, epoch=epoch):
            return peer.id not in self._dismissed
        known = self._absent.get(peer.id)
        if known is not None:
            if is_dated and not known.is_dated and lost_at < known.lost_at:
                known.lost_at, known.given_up_at, known.is_dated = lost_at, lost_at, True
            return True
        claim = self._claims.get(peer.id)
        is_new = claim is None or informant not in claim.informants
        count = self._claimed_by.get(informant, 0)
        if not is_new or count >= CLAIMS_PER_INFORMANT_MAX or (claim is None and len(self._claims) >= CLAIMS_MAX):
            return True
        if claim is None:
            claim = self._claims[peer.id] = Claim(peer, lost_at, is_dated, epoch)
        self._claimed_by[informant] = count + 1
        claim.informants[informant] = None
        claim.lost_at, claim.is_dated = min(claim.lost_at, lost_at), claim.is_dated or is_dated
        claim.epoch = min(claim.epoch or epoch, epoch or claim.epoch)
        return True

    def settle(self, members: Container[NodeId], count: int, now: float) -> list[Absent]:
        """Take over what enough of the ``count`` members say. Returns who is missing now and was not before."""
        needed = min(INFORMANTS_MIN, count)
        found = []
        for claim in list(self._claims.values()):
            backing = sum(informant in members for informant in claim.informants)
            if claim.peer.id in members or not needed or backing < needed:
                continue
            self._drop_claim(claim.peer.id)
            is_dated, epoch = claim.is_dated, claim.epoch
            if self.lost(claim.peer, claim.lost_at, now, is_dated=is_dated, epoch=epoch, is_first_hand=False):
                found.append(self._absent[claim.peer.id])
        return found

    def _drop_claim(self, node_id: NodeId) -> None:
        claim = self._claims.pop(node_id, None)
        for informant in claim.informants if claim is not None else ():
            self._claimed_by[informant] -= 1
            if not self._claimed_by[informant]:
                del self._claimed_by[informant]

    # Dismissal

    def dismiss(self, node_id: NodeId, dismissed: Dismissed) -> Absent | None:
        """Absences from before that do not count any more. Returns the entry that this ended, if any."""
        if node_id == self.own:
            return None
        before = self._dismissed.pop(node_id, None)
        self._dismissed[node_id] = dismissed if before is None else max(before, dismissed)
        while len(self._dismissed) > DISMISSALS_MAX:
            del self._dismissed[next(iter(self._dismissed))]
        self.changes += before is None or dismissed > before
        claim = self._claims.get(node_id)
        if claim is not None and dismissed.ends(claim.lost_at, is_dated=claim.is_dated, epoch=claim.epoch):
            self._drop_claim(node_id)
        absent = self._absent.get(node_id)
        if absent is None or not dismissed.ends(absent.lost_at, is_dated=absent.is_dated, epoch=absent.epoch):
            return None
        return self._take(node_id)

    def dismissal_claimed(
        self, node_id: NodeId, dismissed: Dismissed, informant: NodeId, members: Container[NodeId], count: int
    ) -> Absent | None:
        """A member says that a missing node was dismissed. Returns the entry, if enough members say so.

        What does not end an absence here is not kept.
        """
        absent = self._absent.get(node_id)
        if absent is None or informant not in members:
            return None
        if not dismissed.ends(absent.lost_at, is_dated=absent.is_dated, epoch=absent.epoch):
            return None
        said = {each: word for each, word in absent.dismissed_by.items() if each in members}
        said[informant] = max(dismissed, said.get(informant, dismissed))
        absent.dismissed_by = said
        if len(said) < min(INFORMANTS_MIN, count):
            return None
        return self.dismiss(node_id, sorted(said.values())[-min(INFORMANTS_MIN, count)])

    def dismissal(self, node_id: NodeId) -> Dismissed | None:
        """How the node was dismissed last, if it was and has not been back since."""
        return self._dismissed.get(node_id)

    def deny(self, denied: frozenset[NodeId]) -> list[Absent]:
        """Replace the list of nodes that must not be expected. Returns who was missing and is not expected now."""
        self._denied = denied
        for node_id in [node_id for node_id in self._claims if node_id in denied]:
            self._drop_claim(node_id)
        return [absent for node_id in sorted(denied) if (absent := self._take(node_id)) is not None]

    # Time and place

    def expire(self, now: float) -> list[Absent]:
        """Stop expecting the members that have been missing for all of ``expect_for``; returns them."""
        for node_id in [key for key, each in self._dismissed.items() if now - each.at >= self._expect_for_s]:
            del self._dismissed[node_id]
        for node_id in [key for key, claim in self._claims.items() if now - claim.lost_at >= self._expect_for_s]:
            self._drop_claim(node_id)
        over = [key for key, absent in self._absent.items() if now - absent.lost_at >= self._expect_for_s]
        return [absent for node_id in over if (absent := self._take(node_id)) is not None]

    def drop_outside(self, is_near: Callable[[NodeId], bool], now: float) -> None:
        """Forget, in silence, about nodes whose place in the ring has long been watched by others."""
        for node_id, absent in list(self._absent.items()):
            if is_near(node_id):
                absent.outside_since = None
            elif absent.outside_since is None:
                absent.outside_since = now
            elif now - absent.outside_since >= OUTSIDE_MAX_S:
                self._take(node_id)

    def _take(self, node_id: NodeId) -> Absent | None:
        absent = self._absent.pop(node_id, None)
        self.changes += absent is not None
        return absent

    # Persistence

    def restore(self, absent: Iterable[Absent], dismissed: Iterable[tuple[NodeId, Dismissed]], now: float) -> None:
        """Take over what was kept from before a restart."""
        for node_id, each in dismissed:
            if len(self._dismissed) < DISMISSALS_MAX and node_id != self.own:
                self._dismissed[node_id] = each
        for lost in absent:
            is_dated, epoch = lost.is_dated, lost.epoch
            self.lost(lost.peer, lost.lost_at, now, is_dated=is_dated, epoch=epoch, is_first_hand=False)

    def validate(self) -> None:
        """Assert the bounds, and that the tables agree with each other."""
        assert len(self._absent) <= ABSENT_MAX
        assert len(self._claims) <= CLAIMS_MAX
        assert len(self._dismissed) <= DISMISSALS_MAX
        assert self.own not in self._absent
        assert self._absent.keys().isdisjoint(self._claims)
        assert self._denied.isdisjoint(self._absent)
        counts: dict[NodeId, int] = {}
        for claim in self._claims.values():
            assert claim.informants
            for informant in claim.informants:
                counts[informant] = counts.get(informant, 0) + 1
        assert counts == self._claimed_by
        assert all(count <= CLAIMS_PER_INFORMANT_MAX for count in counts.values())
