"""READ over T (section 4.2.2) or by way of squares (section 3.4): one question for many values, which splits where
their owners are beyond different nodes.

Each node that owns some of them, or caches them well enough, answers the reader itself. What nobody has answered, or is
where the way does not lead, the reader asks of the owners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from peerd.api import Host, Part, handles, on_timer
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.lib.leases import at_most
from peerd.lib.proof_ends import SeenEnds, is_short, shortened
from peerd.messages import Message, PeerRef, encode_body
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.directory import Directory
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.messages import PATH_MAX
from protocols.measurement.guarantee.words import BoundClaim, Known, Measurement, Want
from protocols.measurement.messages import READ_MAX, NotRead, ReadValue
from protocols.measurement.placing.messages import COST_MAX, AlongRead, AlongWant, QuestionWay, ReadAlong, SpliceIn
from protocols.measurement.placing.statistics import Statistics
from protocols.measurement.placing.tree import TreeRoutes

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
"""A trial of another way has one of so many questions: somebody may cache by now."""
TRIAL: Final = 8
"""Decisions of what to cache while a way is tried."""
LEARNT: Final = 0.25
"""The share of the last question in what a way costs: one that is lost does not end it."""
WORTH: Final = 0.9
"""A way that costs more than this, in multiples of asking the owners, is not worth that it is longer."""
CHOSEN: Final = {"owners": None, "tree": QuestionWay.TREE, "squares": QuestionWay.SQUARES}
"""The way of all questions, by ``placing``."""
DISTRUSTED_S: Final = 600.0
"""For so long nothing is believed of a cache that has told something wrong. Each takes a check of `CHECK_S` to find."""
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


@dataclass(slots=True)
class _Asked:
    wants: dict[Measurement, Want]
    at: float
    way: QuestionWay
    owners: int
    cost: float = 0.0


class WayChooser:
    """Which way a reader's questions go, by what they have cost it lately, in multiples of asking the owners. Pure.

    A way is tried for a while, not with one question: caches come to be where questions go again and again.
    """

    def __init__(self, trial_s: float) -> None:
        self._trial_s = trial_s
        self.costs: dict[QuestionWay, float] = {}
        self._tried: dict[QuestionWay, float] = {}
        """When the last trial of a way ends, or has ended; the trial under way is the last."""
        self._in_trial = self._since = 0
        """Questions of the last trial, and after it."""

    def choose(self, ways: Sequence[QuestionWay], now: float) -> QuestionWay | None:
        """One of these; ``None``: owners are asked."""
        latest = max(self._tried, key=self._tried.__getitem__, default=None)
        if latest is not None and now < self._tried[latest]:
            self._in_trial += 1
            return latest
        best = min(self.costs, key=self.costs.__getitem__, default=None)
        best = None if best is None or self.costs[best] > WORTH else best
        new = [way for way in ways if way not in self._tried]
        if not new and self._since >= EXPLORE * self._in_trial:
            new = sorted(self._tried.keys() - {best}, key=self._tried.__getitem__)
        if new:
            self._tried[new[0]] = now + self._trial_s
            self._in_trial, self._since = 1, 0
            return new[0]
        self._since += 1
        return best

    def paid(self, way: QuestionWay, cost: float) -> None:
        """A question that went this way has cost so much."""
        before = self.costs.get(way, cost)
        self.costs[way] = before + LEARNT * (cost - before)


class ReadsAlong(Part):
    """``found`` gets answers; ``direct`` what has to be asked of the owners. ``updates_of``: how often bounds of a
    width around a value that this node owns are broken, a second."""

    def __init__(
        self,
        host: Host,
        config: MeasurementConfig,
        caching: Caching,
        tree: TreeRoutes,
        directory: Directory,
        statistics: Statistics,
        proofs: WayProofs,
        send: Callable[[PeerRef, Message], None],
        updates_of: Callable[[str, float], float],
    ) -> None:
        self._host, self._config, self._caching, self._statistics = host, config, caching, statistics
        self._tree, self._directory = tree, directory
        self.chooser = WayChooser(TRIAL * config.decide_interval)
        self._proofs, self._send, self._updates_of = proofs, send, updates_of
        self.found: Callable[[Sequence[FoundAlong]], None] = lambda found: None
        self.direct: Callable[[Mapping[NodeId, list[Want]]], None] = lambda wants: None
        self.checks: Callable[[Sequence[FoundAlong]], None] = lambda found: None
        """May look into answers of others than owners."""
        self.is_signed: Callable[[Measurement, BoundClaim, NodeId], bool] = lambda measurement, claim, cache: True
        """Whether that answer of a cache may be believed."""
        self._asked: dict[int, _Asked] = {}
        self._distrusted: dict[NodeId, float] = {}
        """Nodes that have told something wrong, and until when they are not believed."""
        self._answered_of: set[NodeId] = set()
        """Owners of which this node has had an answer over T."""

    @cached_property
    def squares(self) -> SquareRoutes:
        """The other way beside T, which many nodes never need."""
        from protocols.measurement.placing.candidates import SquareRoutes

        return SquareRoutes(self._host, self._directory)

    def _routes(self, way: QuestionWay) -> TreeRoutes | SquareRoutes:
        return self.squares if way is QuestionWay.SQUARES else self._tree

    # As a reader

    def choose(self, wants: Mapping[NodeId, Sequence[Want]]) -> QuestionWay | None:
        """Which way these are asked; ``None``: of their owners."""
        if self._config.placing != "auto":
            return CHOSEN[self._config.placing]
        if len(wants) <= FEW_OWNERS:
            return None
        is_placed = self._host.id in self._directory.spots
        return self.chooser.choose(list(QuestionWay) if is_placed else [QuestionWay.TREE], self._host.now())

    def ask(self, missing: Mapping[NodeId, Sequence[Want]], max_age_s: float, way: QuestionWay) -> None:
        """Ask on this way."""
        wants = [want for some in missing.values() for want in some]
        me, now = self._host.peer, self._host.now()
        first_hop = partial(self._routes(way).branch, path=(me.id,))
        # Sorted, so that questions that have to be cut go to few nodes each.
        wants.sort(key=lambda want: 0 if (peer := first_hop(want.measurement.owner)) is None else peer.id)
        for first in range(0, len(wants), READ_MAX):
            some = wants[first : first + READ_MAX]
            number = self._host.rng.getrandbits(63)
            owners = len({want.measurement.owner for want in some})
            self._asked[number] = _Asked({want.measurement: want for want in some}, now, way, owners)
            self._host.set_timer(_LATE, ANSWER_S, number)
            along = [AlongWant(want.measurement, want.half_width, *self._paid(want.measurement)) for want in some]
            question = ReadAlong(me, number, max_age_s, tuple(along), (me.id,), 0.0, b"", way is QuestionWay.SQUARES)
            nowhere = self._go_on(self._proofs.signed(question, statement(question)), along, None)
            self._not_along(number, [want.measurement for want in nowhere])

    def _paid(self, measurement: Measurement) -> tuple[float, float]:
        """What this reader itself has paid: what others say that they have, who pass here, is not."""
        return self._statistics.known(measurement) if measurement.owner in self._answered_of else (0.0, 0.0)

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
        asked.cost += TREE_WEIGHT * answer.cost * (len(answer.values) or 1)
        for value, updates_s in zip(answer.values, answer.updates, strict=True):
            want = asked.wants.get(value.measurement)
            if want is None or not self._routes(asked.way).may_answer(source.id, value.measurement.owner):
                continue
            if not (source.id == value.measurement.owner or self._is_believed(source.id, value, want)):
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
            self.checks(found)

    def _is_believed(self, cache: NodeId, value: ReadValue, want: Want) -> bool:
        is_trusted = self._distrusted.get(cache, 0.0) <= self._host.now()
        is_enough = is_trusted and value.claim.interval.is_within(want.half_width)
        return is_enough and self.is_signed(value.measurement, value.claim, cache)

    def distrust(self, node: NodeId) -> None:
        """A cache has told something wrong: owners are asked for what it answers, for a while."""
        now = self._host.now()
        self._distrusted = {each: until for each, until in self._distrusted.items() if until > now}
        self._distrusted[node] = now + DISTRUSTED_S

    def _not_along(self, number: int, measurements: Iterable[Measurement]) -> None:
        """T does not lead to these."""
        asked = self._asked[number]
        direct: dict[NodeId, list[Want]] = {}
        for measurement in measurements:
            want = asked.wants.pop(measurement, None)
            if want is not None:
                direct.setdefault(measurement.owner, []).append(want)
        asked.cost += DIRECT_COST * len(direct)
        if not asked.wants:
            self.chooser.paid(asked.way, asked.cost / (DIRECT_COST * asked.owners))
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
        hop = 1.0 / len(question.wants)
        shared = min(COST_MAX, question.cost + hop)
        # Over T the answer comes from here, if not from beyond. A candidate by squares is asked because it is nearer
        # than the owner: that it answers sooner counts like the answer.
        spared = shared if question.is_by_squares else shared + hop
        values, updates, rest, nowhere = [], [], [], []
        for want in question.wants:
            sought = Want(want.measurement, want.half_width)
            value = self._here(sought, question.max_age_s)
            if value is None and want.measurement.owner == me:
                nowhere.append(want)
                continue
            # Where it is known here, what this reader paid the last time says nothing of what it would pay beyond.
            beyond, hint = (max(0.0, want.cost - spared), want.updates) if value is None else (0.0, 0.0)
            self._statistics.read(sought, question.max_age_s, beyond, hint, group=question.number)
            self._statistics.passes(want.measurement, question.max_age_s, question.reader.id, shared + hop)
            if value is None:
                rest.append(want)
            else:
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
        nowhere, routes = [], self._routes(QuestionWay(question.is_by_squares))
        for want in wants:
            peer = routes.branch(want.measurement.owner, question.path)
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
        answer = self._caching.read(want.measurement, now, max_age_s)
        if answer is None or answer.is_stale or not answer.claim.interval.is_within(want.half_width):
            return None
        return ReadValue(want.measurement, answer.claim, answer.age_s)

    def updates_s(self, want: Want) -> float:
        """How often such bounds were broken here lately, a second."""
        if want.measurement.owner == self._host.id:
            return self._updates_of(want.measurement.name, want.half_width)
        return self._statistics.updates_s(want.measurement)
