"""READ over T (section 4.2.2): one question for many values, which splits where their owners are below different nodes.

Each node that owns some of them, or caches them well enough, answers the reader itself. What nobody has answered, or is
where T does not lead, the reader asks of the owners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from peerd.api import Host, Part, handles, on_timer
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.lib.leases import at_most
from peerd.lib.proof_ends import SeenEnds, is_short, shortened
from peerd.messages import Message, PeerRef, encode_body
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.messages import PATH_MAX
from protocols.measurement.guarantee.words import Known, Measurement, Want
from protocols.measurement.messages import READ_MAX, NotRead, ReadValue
from protocols.measurement.placing.messages import COST_MAX, AlongRead, AlongWant, ReadAlong, SpliceIn
from protocols.measurement.placing.statistics import Statistics
from protocols.measurement.placing.tree import RouteTree

if TYPE_CHECKING:
    from protocols.measurement.placing.candidates import SquareRoutes

ANSWER_S: Final = 1.5
"""What has no answer over T by then is asked of its owner."""
FEW_OWNERS: Final = 4
"""Of so many nobody asks over T if it is not the rule: little is shared, and the way is longer."""
DIRECT_COST: Final = 2.0
"""Messages of a READ to an owner."""
TREE_WEIGHT: Final = 2.0
"""A message over T counts as so many. In a ring of 40 nodes it has three times the bytes of one to or from an owner,
with its way, its reader and the signature (216 and 72): twice with the headers of TLS, TCP and IP, some 74 bytes."""
EXPLORE: Final = 16
"""Every so many questions that are cheaper otherwise, T is tried again: somebody may cache by now."""
OWNERS_MAX: Final = 16_384
"""Of so many owners a reader remembers that the way to them knows its certificate; then it begins anew."""
_LATE: Final = "along"
Q = TypeVar("Q", ReadAlong, SpliceIn)


def statement(question: ReadAlong) -> bytes:
    """What a reader signs: all that stays the same on the way, its address as well, since others answer there."""
    return b"read along " + encode_body(replace(question, wants=(), path=(), cost=0.0, proof=b""))


class WayProofs:
    """Signatures of questions that others pass on, with their signer's certificate only where somebody may lack it.

    A question has the certificate on ways that its signer has not had an answer over yet, and a mark of it on the
    others. A node that does not know the mark (it has started anew, has forgotten it, or is new on the way) sends the
    question back to whom it has it from, who sends it again with the certificate, which it then keeps to its end.
    Nothing is remembered of a question for that, nor of who knows what.
    """

    def __init__(self, host: Host, send: Callable[[PeerRef, Message], None]) -> None:
        self._host, self._send, self._seen = host, send, SeenEnds()

    def signed(self, question: Q, statement: bytes) -> Q:
        """A question of this node, whole."""
        proof = self._host.sign(statement)
        self._seen.note(proof)
        return replace(question, proof=proof)

    def on_known_way(self, question: Q) -> Q:
        """A genuine question, as it goes on where nodes have probably seen the certificate."""
        return question if is_short(question.proof) else replace(question, proof=shortened(question.proof))

    def on_new_way(self, question: Q) -> Q:
        """A genuine question, as it goes on where nodes may lack the certificate."""
        whole = self._seen.whole(question.proof)
        return question if whole is None else replace(question, proof=whole)

    def came_back(self, question: Q, source: PeerRef) -> bool:
        """Whether this node has sent it to one that does not know the mark, which then gets it again, whole."""
        is_back = question.path[-1:] == (self._host.id,) and is_short(question.proof)
        if is_back and not is_short((again := self.on_new_way(question)).proof):
            wants = tuple(replace(want, cost=0.0) for want in again.wants)  # who is beyond may lack it, too
            self._send(source, replace(again, wants=wants))
        return is_back

    def is_genuine(
        self, question: ReadAlong | SpliceIn, signer: NodeId, statement: bytes, source: PeerRef
    ) -> bool | None:
        """Whether the signer has said that; ``None``: the mark is not known here, and the source gets it back."""
        proof = self._seen.whole(question.proof)
        if proof is None:
            self._send(source, question)
            return None
        is_genuine = self._host.verify(signer, statement, proof)
        if is_genuine:
            self._seen.note(proof)
        return is_genuine


class FoundAlong(NamedTuple):
    """An answer, for whoever asks. ``messages``: all that it took, with the first of several that came together."""

    measurement: Measurement
    known: Known
    provider: NodeId
    messages: int


class _Asked(NamedTuple):
    wants: dict[Measurement, Want]
    at: float


class ReadsAlong(Part):
    """``found`` gets answers; ``direct`` what has to be asked of the owners. ``updates_of``: how often bounds of a
    width around a value that this node owns are broken, a second."""

    def __init__(
        self,
        host: Host,
        caching: Caching,
        ways: RouteTree | SquareRoutes,
        statistics: Statistics,
        proofs: WayProofs,
        send: Callable[[PeerRef, Message], None],
        updates_of: Callable[[str, float], float],
    ) -> None:
        self._host, self._caching, self._ways, self._statistics = host, caching, ways, statistics
        self._proofs, self._send, self._updates_of = proofs, send, updates_of
        self.found: Callable[[Sequence[FoundAlong]], None] = lambda found: None
        self.direct: Callable[[Mapping[NodeId, list[Want]]], None] = lambda wants: None
        self._asked: dict[int, _Asked] = {}
        self._answered_of: set[NodeId] = set()
        """Owners of which this node has had an answer over T."""
        self._since_explored = 0

    # As a reader

    def is_cheaper(self, wants: Mapping[NodeId, Sequence[Want]]) -> bool:
        """Whether these cost fewer messages over T than to ask each owner, by what they cost the last time."""
        if len(wants) <= FEW_OWNERS:
            return False
        costs = [self._statistics.known(want.measurement)[0] for some in wants.values() for want in some]
        if 0.0 in costs or TREE_WEIGHT * sum(costs) < DIRECT_COST * len(wants):
            return True
        self._since_explored += 1
        return self._since_explored % EXPLORE == 0

    def ask(self, missing: Mapping[NodeId, Sequence[Want]], max_age_s: float) -> None:
        """Ask over T."""
        wants = [want for some in missing.values() for want in some]
        wants.sort(key=self._way)  # so that questions that have to be cut go to few nodes each
        me, now = self._host.peer, self._host.now()
        for first in range(0, len(wants), READ_MAX):
            some = wants[first : first + READ_MAX]
            number = self._host.rng.getrandbits(63)
            self._asked[number] = _Asked({want.measurement: want for want in some}, now)
            self._host.set_timer(_LATE, ANSWER_S, number)
            along = [AlongWant(want.measurement, want.half_width, *self._paid(want.measurement)) for want in some]
            question = ReadAlong(me, number, max_age_s, tuple(along), (me.id,), 0.0, b"")
            nowhere = self._go_on(self._proofs.signed(question, statement(question)), along, None)
            self._not_along(number, [want.measurement for want in nowhere])

    def _paid(self, measurement: Measurement) -> tuple[float, float]:
        """What this reader itself has paid: what others say that they have, who pass here, is not."""
        return self._statistics.known(measurement) if measurement.owner in self._answered_of else (0.0, 0.0)

    def _way(self, want: Want) -> int:
        peer = self._ways.branch(want.measurement.owner, None)
        return 0 if peer is None else peer.id

    @handles(AlongRead)
    def _on_answer(self, answer: AlongRead, source: PeerRef) -> None:
        asked = self._asked.get(answer.number)
        if asked is None:
            return  # too late
        if len(answer.updates) != len(answer.values):
            raise ProtocolError("malformed", "there is a rate for each value")
        found: list[FoundAlong] = []
        missing = [each.measurement for each in answer.missing]
        messages = round(answer.cost * len(answer.values))
        for value, updates_s in zip(answer.values, answer.updates, strict=True):
            want = asked.wants.get(value.measurement)
            if want is None or not self._ways.may_answer(source.id, value.measurement.owner):
                continue
            if not (value.claim.interval.is_within(want.half_width) or source.id == value.measurement.owner):
                missing.append(value.measurement)
                continue
            del asked.wants[value.measurement]
            known = Known(value.claim, asked.at - at_most(value.age_s))
            found.append(FoundAlong(value.measurement, known, source.id, messages))
            messages = 0
            self._statistics.paid(value.measurement, answer.cost, updates_s)
            if len(self._answered_of) >= OWNERS_MAX:
                self._answered_of.clear()
            self._answered_of.add(value.measurement.owner)
        self._not_along(answer.number, missing)
        if found:
            self.found(found)

    def _not_along(self, number: int, measurements: Iterable[Measurement]) -> None:
        """T does not lead to these."""
        asked = self._asked[number]
        direct: dict[NodeId, list[Want]] = {}
        for measurement in measurements:
            want = asked.wants.pop(measurement, None)
            if want is not None:
                direct.setdefault(measurement.owner, []).append(want)
        if not asked.wants:
            self._host.cancel_timer(_LATE, number)
            del self._asked[number]
        if direct:
            self.direct(direct)

    @on_timer(_LATE)
    def _is_late(self, number: int) -> None:
        self._not_along(number, list(self._asked[number].wants))

    # On the way

    @handles(ReadAlong)
    def _on_read(self, question: ReadAlong, source: PeerRef) -> None:
        path, me = question.path, self._host.id
        if self._proofs.came_back(question, source):
            return
        if len(set(path)) != len(path) or path[:1] != (question.reader.id,) or path[-1] != source.id:
            raise ProtocolError("malformed", "the way of a question begins at who asks, ends here, and has no loop")
        if me in path:
            return  # T has changed meanwhile: the reader asks the owner
        is_genuine = self._proofs.is_genuine(question, question.reader.id, statement(question), source)
        if not is_genuine:
            if is_genuine is None or source.id != question.reader.id:
                return  # who has passed it on may know another key of the reader's
            raise ProtocolError("forged", "the reader has not signed this question")
        shared = min(COST_MAX, question.cost + 1.0 / len(question.wants))
        values, updates, rest, nowhere = [], [], [], []
        for want in question.wants:
            sought = Want(want.measurement, want.half_width)
            if (value := self._here(sought, question.max_age_s)) is None and want.measurement.owner == me:
                nowhere.append(want)
            elif value is None:
                beyond = max(0.0, want.cost - shared)
                self._statistics.read(sought, question.max_age_s, beyond, want.updates, group=question.number)
                rest.append(want)
            else:  # what this reader paid the last time says nothing of what it would pay beyond
                self._statistics.read(sought, question.max_age_s, group=question.number)
                values.append(value)
                updates.append(self.updates_s(sought))
        if len(path) < PATH_MAX - 1:
            nowhere += self._go_on(replace(question, path=(*path, me), cost=shared), rest, source.id)
        else:
            nowhere += rest
        if not (values or nowhere):
            return
        missing = tuple(NotRead(want.measurement, "T does not lead there") for want in nowhere)
        cost = min(COST_MAX, shared + 1.0 / (len(values) or 1))
        self._send(question.reader, AlongRead(question.number, cost, tuple(values), tuple(updates), missing))

    def _go_on(self, question: ReadAlong, wants: Iterable[AlongWant], came_from: NodeId | None) -> list[AlongWant]:
        """Split the question over T; returns what leads nowhere."""
        branches: dict[PeerRef, list[AlongWant]] = {}
        nowhere = []
        for want in wants:
            peer = self._ways.branch(want.measurement.owner, came_from)
            if peer is None or peer.id in question.path:
                nowhere.append(want)
            else:
                branches.setdefault(peer, []).append(want)
        for peer, some in branches.items():
            if came_from is None or self._host.may_pass(peer):
                was_read = all(want.cost for want in some)
                proven = (self._proofs.on_known_way if was_read else self._proofs.on_new_way)(question)
                self._send(peer, replace(proven, wants=tuple(some)))
            else:
                nowhere += some
        return nowhere

    def _here(self, want: Want, max_age_s: float) -> ReadValue | None:
        """What this node owns, or holds well enough."""
        now = self._host.now()
        if want.measurement.owner == self._host.id:  # nobody knows it better, however old it is
            known = self._caching.fresh(want.measurement, now)
            return None if known is None else ReadValue(want.measurement, known.claim, max(0.0, now - known.basis))
        answer = self._caching.read(want.measurement, now, "", max_age_s)
        if answer is None or answer.is_stale or not answer.claim.interval.is_within(want.half_width):
            return None
        return ReadValue(want.measurement, answer.claim, answer.age_s)

    def updates_s(self, want: Want) -> float:
        """How often such bounds were broken here lately, a second."""
        if want.measurement.owner == self._host.id:
            return self._updates_of(want.measurement.name, want.half_width)
        return self._statistics.updates_s(want.measurement)
