"""Events on their way, at each node that they come through (Li 2008, sections 3.4.1 and 3.4.2).

A node splits what comes by next hop, and decides about the cells that it is the root of: a leaf matches, an inner node
sends on to leaves, a guess that was too deep goes to an ancestor. Nothing is promised here: what gets lost is tried
again by the publisher. So everything that is kept is bounded and short-lived.

An address in a message is only what the sender of the message says. What this node sends there because of it (a leaf's
acknowledgement, a refusal) is smaller than what it got, and a refusal goes to one publisher 20 times a second.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from peerd.api import HistorySize, Host, LookupResult, Metric, Part, SendRefusal, handles, on_timer
from peerd.errors import ProtocolError, Unavailable
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.messages import HOPS_MAX, EventAck, ProbePub
from protocols.pubsub.names import EventId, Tree, key_of
from protocols.pubsub.ports import Elsewhere, Here, LeafEvents, Schemas, SchemaView, targets_of
from protocols.pubsub.publishing.answering import Answering
from protocols.pubsub.publishing.handing_over import LINKS_MIN
from protocols.pubsub.publishing.passing import HELD_S, PARKED_S, Journey, Parking, PassedBatches, Quotas, key_of_batch
from protocols.pubsub.publishing.spread import AttributeCell, Batch, places_of, trees_of, ways_to
from protocols.pubsub.tree.cells import Target, lies_within
from protocols.pubsub.tree.meter import MESSAGE_BYTES
from protocols.pubsub.tree.rendezvous import Rendezvous

CAREFUL_FROM: Final = 1
"""From this try on, inner nodes trust no table of leaves, but go down child by child."""
TESTED_FROM: Final = 1
"""From this try on, a way is tested by a lookup before events go there."""
TESTS_MAX: Final = 64
"""Batches that wait for a test; above it events go untested."""
TEST_TIMEOUT_S: Final = 5.0
PARKED_LOOK_S: Final = 0.5
"""How often what waits here is looked at, besides when the tree tells of a change."""
TARGETS_MAX: Final = 16
"""A batch with more different targets goes to all leaves in question; its leaves match exactly anyway."""
TOO_MANY: Final = "too many events come too early"
MERGED: Final = "it lies in a larger leaf now"
NOT_YET: Final = "an earlier event has not come here yet"
NOT_YET_S: Final = 0.1
"""After so long the publisher sends again, from the earlier event on: it was lost, or takes a longer way."""
REFUSALS_EVERY_S: Final = 0.05
"""A publisher that sends too much is told so once in this time. What it is not told of, it sends again later."""
REFUSED_MAX: Final = 1024
"""Publishers of whom it is remembered when they were told."""
SENT_S: Final = 5.0
"""A message is kept for so long after it was sent, in case its next hop turns out to be gone."""
SENT_MAX: Final = 256
"""Messages that are kept so."""
SENT_BYTES_MAX: Final = 2 << 20

METRICS: Final = (
    Metric(
        "peerd_pubsub_probes_total",
        "counter",
        "Messages with events: received, sent, rerouted, repeated, refused, held, early, parked, lapsed, lost.",
        ("what",),
    ),
)


class Forwarding(Part):
    """Takes events to the leaves."""

    def __init__(
        self,
        host: Host,
        config: PubSubConfig,
        schemas: Schemas,
        rendezvous: Rendezvous,
        events: LeafEvents,
        answering: Answering,
    ) -> None:
        self._host, self.config, self._schemas = host, config, schemas
        self._rendezvous, self._events, self._answering = rendezvous, events, answering
        self._heat, self.handing_over = rendezvous.heat, rendezvous.heat.handing_over
        self._seen = PassedBatches()
        self._quotas = Quotas()
        self._parking = Parking()
        self._held = Parking()
        """What comes too early; the other waits until it is clear where it goes."""
        self._is_looking = False
        self._told: OrderedDict[NodeId, float] = OrderedDict()
        self._sent: deque[_Sent] = deque()
        self._sent_bytes = 0
        self._tested: dict[NodeId, list[Journey]] = {}
        """By next hop that is being tested: what waits for that."""

    # This node's own events

    def begin(self, batch: Batch, places: Sequence[AttributeCell], *, remembered: bool) -> None:
        """Events of this node set out along the overlay."""
        if self.hands_over(batch):
            places = self._hand_over(batch, places, remembered)
        fresh = self._seen.new(key_of_batch(batch), places, False, self._host.now())
        self._take(self._journey(batch, fresh, remembered=remembered))

    def hands_over(self, batch: Batch) -> bool:
        """Whether another node is to send a batch on: in its first try, so that a node that drops it does no harm."""
        return self.handing_over.is_on and not batch.attempt

    def _hand_over(self, batch: Batch, places: Sequence[AttributeCell], remembered: bool) -> Sequence[AttributeCell]:
        """Send a batch to a few neighbours, with the cells of all next hops; returns the cells that stay here.

        They do not count as seen: the way from there to a cell may lead through this node.
        """
        ways = ways_to(batch.schema, places, self._next_hops)
        if len(ways.onward) < LINKS_MIN:
            return places
        parts = list(self.handing_over.parts(ways.onward))
        if not parts:
            return places
        for helper, part in parts:
            self._send(helper, self._journey(batch, part, remembered=remembered))
        self.handing_over.note_spared((len(ways.onward) - len(parts)) * (batch.bytes + MESSAGE_BYTES))
        return [*ways.here, *ways.unclear]

    def send_direct(
        self, owner: PeerRef, batch: Batch, places: Sequence[AttributeCell], *, is_lent: bool = False
    ) -> None:
        """Events of this node go at once to the root of these leaves, or its helper, as far as this node remembers."""
        self._send(owner, replace(self._journey(batch, places, remembered=True), is_lent=is_lent))

    def _journey(self, batch: Batch, places: Sequence[AttributeCell], *, remembered: bool) -> Journey:
        return Journey(batch, tuple(places), False, remembered, 0, self._host.now() + PARKED_S)

    # Other nodes' events

    @handles(ProbePub)
    def on_probe(self, probe: ProbePub, source: PeerRef) -> None:
        """Events came over a link."""
        self._count("received")
        if probe.hops == 0 and source.id != probe.publisher.id:
            raise ProtocolError("forged_publisher", f"{source} begins to publish what is {probe.publisher}'s")
        batch = Batch.of(probe)
        key, places, wait_s = key_of_batch(batch), places_of(probe.places), 0.0
        if source.id != self._host.id and not self._seen.has_all(key, places, probe.vouched):
            rate = self.config.events_per_member
            count = 1 if key in self._seen else len(batch.events)  # its events count once, and each way of theirs
            wait_s = self._quotas.wait_s(source.id, batch.publisher.id, count, rate, self._host.now())
            if wait_s > HELD_S:
                self._refuse(batch, places, f"more than {rate} events a second", wait_s)
                return
        self._answering.came(batch, source)
        fresh = self._seen.new(key, places, probe.vouched, self._host.now())
        if fresh:
            how = probe.vouched, probe.remembered, probe.hops + 1
            journey = Journey(batch, tuple(fresh), *how, self._host.now() + PARKED_S, probe.is_lent)
            if wait_s <= 0:
                self._take(journey)
            elif (number := self._held.add(journey)) is not None:
                self._count("held")
                self._host.set_timer("probes_held", wait_s, number)
            else:
                self._refuse(batch, fresh, TOO_MANY, wait_s)
        else:
            self._count("repeated")

    @on_timer("probes_held")
    def on_held(self, number: int) -> None:
        """It is time for events that came too early."""
        for journey in self._held.take_one(number):
            self._take(journey)

    def _take(self, journey: Journey) -> None:
        """Send on what belongs elsewhere, and decide what is here; that may name further cells."""
        batch = journey.batch
        arrived: list[AttributeCell] = []
        too_early: list[AttributeCell] = []
        onward: dict[tuple[PeerRef, bool], list[AttributeCell]] = {}
        schema = self._schemas.get(batch.schema)
        targets = None if schema is None else _Targets(schema, batch)
        if journey.is_lent:
            serves = partial(self._rendezvous.serves, batch.schema)
            lent = [] if schema is None else [place for place in journey.places if serves(*place)]
            for place in lent:
                (arrived if self._is_next(batch, place) else too_early).append(place)
            journey = replace(journey, places=tuple(each for each in journey.places if each not in lent), is_lent=False)
        waiting = [journey]
        while waiting:
            some = waiting.pop()
            ways = ways_to(batch.schema, some.places, self._next_hops)
            for hop, group in ways.onward.items():
                onward.setdefault((hop, some.vouched), []).extend(group)
            unclear = ways.unclear
            if targets is not None:
                for place in ways.here:
                    if self._events.had(batch.events, place):  # a repeat: the leaf may have been split since
                        arrived.append(place)
                        continue
                    decision = self._decide(targets, batch, place, some.vouched)
                    if decision is None:
                        unclear.append(place)
                    elif isinstance(decision, Here):
                        (arrived if self._is_next(batch, place) else too_early).append(place)
                    elif some.remembered and _leads_up(place[1], decision):
                        self._tell(batch, [place], MERGED, 0.0)
                    else:
                        waiting += self._further(some, place[0], decision)
            elif ways.here:
                self._wait_for_schema(replace(some, places=tuple(ways.here)))
            if unclear:
                self._park(replace(some, places=tuple(unclear)))
        for (hop, vouched), group in onward.items():
            self._send(hop, replace(journey, places=tuple(group), vouched=vouched))
        if too_early:
            self._count("early")
            self._tell(batch, too_early, NOT_YET, NOT_YET_S)
        if arrived and schema is not None:
            self._events.arrived(schema, batch.publisher, batch.events, arrived, batch.copies, batch.attempt)
            self._rendezvous.visited(batch.schema, arrived, batch.publisher)

    def _is_next(self, batch: Batch, place: AttributeCell) -> bool:
        """Whether a leaf has had the publisher's event before these, if there is one on its way."""
        if not batch.after:
            return True
        return self._events.has_had(EventId(batch.publisher.id, batch.events[0].epoch, batch.after), place)

    def _next_hops(self, keys: Sequence[NodeId]) -> dict[NodeId, PeerRef | None]:
        """As the host says. Without multicast each key is asked for alone, as a comparison (figure 4.5)."""
        if self.config.multicast:
            return self._host.next_hops(keys)
        return {key: hop for each in keys for key, hop in self._host.next_hops((each,)).items()}

    def _decide(
        self, targets: _Targets, batch: Batch, place: AttributeCell, vouched: bool
    ) -> Here | tuple[Elsewhere, ...] | None:
        """What the tree says about a cell, for all events together; ``None``: not clear now."""
        tree, careful = Tree(batch.schema, place[0]), batch.attempt >= CAREFUL_FROM
        found: list[Elsewhere] = []
        for target in targets.of(place[0]):
            decision = self._rendezvous.decide(tree, place[1], target, vouched=vouched, careful=careful)
            if isinstance(decision, Here):
                return decision
            if not isinstance(decision, Elsewhere):
                return None
            if decision not in found:
                found.append(decision)
        return tuple(found)

    def _further(self, journey: Journey, attribute: int, decisions: Iterable[Elsewhere]) -> Iterator[Journey]:
        key = key_of_batch(journey.batch)
        for decision in decisions:
            cells = [(attribute, cell) for cell in decision.cells]
            fresh = self._seen.new(key, cells, decision.vouched, self._host.now())
            if fresh:
                yield replace(journey, places=tuple(fresh), vouched=decision.vouched)

    # What has to wait

    def tree_changed(self, tree: Tree, cell: int) -> None:
        """The tree says something else about a cell now."""
        self._resume(self._parking.take(tree.schema, (tree.attribute, cell)))

    def _park(self, journey: Journey) -> bool:
        is_kept = self._parking.add(journey) is not None
        self._count("parked" if is_kept else "lost")
        if is_kept and not self._is_looking:
            self._is_looking = True
            self._host.set_timer("probes_parked", PARKED_LOOK_S)
        return is_kept

    @on_timer("probes_parked")
    def look_at_parked(self, payload: None) -> None:
        """Try again what waits here."""
        self._is_looking = False
        self._resume(self._parking.take_all())

    def _resume(self, journeys: Iterable[Journey]) -> None:
        """Take up what has waited, a publisher's earlier events first: they may have come here later, from a holder."""
        for journey in sorted(journeys, key=_place_in_order):
            if self._host.now() >= journey.until_s:
                self._count("lapsed")
            else:
                self._take(journey)

    def _wait_for_schema(self, journey: Journey) -> None:
        schema = journey.batch.schema
        is_asked = self._parking.has(schema)
        if not self._park(journey) or is_asked:
            return

        def done(found: SchemaView | None, why_not: str) -> None:
            waiting = list(self._parking.take(schema))
            if found is not None:
                self._resume(waiting)
            for each in waiting if found is None else ():
                self._refuse(each.batch, each.places, f"no schema {schema}: {why_not}", PARKED_S)

        self._schemas.fetch(schema, done)

    # Messages

    def _send(self, to: PeerRef, journey: Journey) -> None:
        if journey.hops > HOPS_MAX:
            self._count("lost")
        elif journey.batch.attempt < TESTED_FROM or not self._test(to, journey):
            self._send_now(to, journey)

    def _send_now(self, to: PeerRef, journey: Journey) -> None:
        self._give(to, journey)
        now, size = self._host.now(), journey.batch.bytes
        self._sent.append(_Sent(now, to.id, journey, size))
        self._sent_bytes += size
        while len(self._sent) > SENT_MAX or self._sent_bytes > SENT_BYTES_MAX or now - self._sent[0].at_s > SENT_S:
            self._sent_bytes -= self._sent.popleft().bytes

    def _test(self, to: PeerRef, journey: Journey) -> bool:
        """Look up the root of a cell before a failed try is repeated; whether that is under way.

        The next hop may be dead without anybody having noticed. Messages with events are not acknowledged hop by hop,
        but lookups are: the overlay finds out, and the events go another way then. One lookup through a next hop is
        enough for all that is to go there meanwhile.
        """
        if sum(map(len, self._tested.values())) >= TESTS_MAX:
            return False
        if to.id in self._tested:
            self._tested[to.id].append(journey)
            return True
        attribute, cell = journey.places[0]

        def done(result: LookupResult) -> None:
            for each in self._tested.pop(to.id):
                self._go_on(each)

        self._tested[to.id] = [journey]
        try:
            self._host.lookup(key_of(Tree(journey.batch.schema, attribute), cell), done, TEST_TIMEOUT_S)
        except Unavailable:
            del self._tested[to.id]
            return False
        return True

    def _go_on(self, journey: Journey, gone: NodeId | None = None) -> None:
        """Send on what was to wait, or came back from a next hop that is gone, by the ways that there are now."""
        ways = ways_to(journey.batch.schema, journey.places, self._next_hops)
        for hop, group in ways.onward.items():
            if gone is None:
                self._send_now(hop, replace(journey, places=tuple(group)))
            elif hop.id != gone:
                self._count("rerouted")
                self._give(hop, replace(journey, places=tuple(group)))
        if ways.here:
            self._take(replace(journey, places=tuple(ways.here)))

    def _give(self, to: PeerRef, journey: Journey) -> None:
        how = journey.hops, journey.vouched, journey.remembered, self.config.multicast
        weight = journey.batch.bytes + MESSAGE_BYTES
        for probe in journey.batch.probes(journey.places, *how, journey.is_lent):
            self._host.send(to, probe)
            self._heat.note_sent(weight)
            if not journey.hops:
                self.handing_over.note_own(weight)
            self._count("sent")

    def send_refused(self, peer: PeerRef, message_type: type[Message], reason: SendRefusal, count: int) -> None:
        """A next hop is gone: send what went there by another way, once. After that it is the publisher's to try."""
        if message_type is not ProbePub or reason is not SendRefusal.PEER_DOWN:
            return
        begun = self._host.now() - SENT_S
        lost = [sent.journey for sent in self._sent if sent.to == peer.id and sent.at_s >= begun]
        self._sent = deque(sent for sent in self._sent if sent.to != peer.id)
        self._sent_bytes = sum(sent.bytes for sent in self._sent)
        for journey in lost[-count:]:
            self._go_on(journey, peer.id)

    def _refuse(self, batch: Batch, places: Sequence[AttributeCell], why: str, wait_s: float) -> None:
        self._count("refused")
        now, publisher = self._host.now(), batch.publisher
        if now - self._told.get(publisher.id, -REFUSALS_EVERY_S) < REFUSALS_EVERY_S:
            return
        self._told[publisher.id] = now
        self._told.move_to_end(publisher.id)
        while len(self._told) > REFUSED_MAX:
            self._told.popitem(last=False)
        self._tell(batch, places, why, wait_s)

    def _tell(self, batch: Batch, places: Sequence[AttributeCell], why: str, wait_s: float) -> None:
        """Tell the publisher that it has to try again. This is less than what came for these cells."""
        numbers = tuple(event.sequence for event in batch.events)
        ack = EventAck(
            batch.schema, batch.events[0].epoch, numbers, trees_of(places), (), 0, why[:64], max(1, int(1000 * wait_s))
        )
        self._answering.answer(batch.publisher, ack)

    def _count(self, what: str) -> None:
        self._host.count("peerd_pubsub_probes_total", what=what)

    def history(self) -> HistorySize:
        """What is remembered of the events that pass through."""
        return self._seen.history()

    def validate(self) -> None:
        """Assert the invariants."""
        assert len(self._sent) <= SENT_MAX
        assert sum(map(len, self._tested.values())) <= TESTS_MAX
        assert self._is_looking or not len(self._parking)


@dataclass(frozen=True, slots=True)
class _Sent:
    """What went to a next hop a short time ago."""

    at_s: float
    to: NodeId
    journey: Journey
    bytes: int


def _place_in_order(journey: Journey) -> tuple[NodeId, int, int]:
    first = journey.batch.events[0]
    return journey.batch.publisher.id, first.epoch, first.sequence


def _leads_up(cell: int, decisions: Iterable[Elsewhere]) -> bool:
    """Whether a cell is none of the tree, or was merged: it may lie in a larger leaf."""
    return any(lies_within(cell, other) for decision in decisions for other in decision.cells)


class _Targets:
    """The targets of a batch's events, worked out when they are needed."""

    def __init__(self, schema: SchemaView, batch: Batch) -> None:
        self._schema = schema
        self._batch = batch
        self._known: list[Mapping[int, Target]] = []

    def of(self, attribute: int) -> Iterator[Target]:
        """The different targets in one tree."""
        told: list[Target] = []
        for index in range(len(self._batch.events)):
            target = self._of_event(index).get(attribute)
            if target is None:  # by this node's edition of the schema it need not come here; the publisher thinks so
                target = Target(None)
            if len(told) == TARGETS_MAX:
                yield Target(None)
                return
            if target not in told:
                told.append(target)
                yield target

    def _of_event(self, index: int) -> Mapping[int, Target]:
        if index == len(self._known):
            event = self._batch.events[index]
            try:
                values = self._schema.decode_values(event.values)
            except ProtocolError:  # whoever passed it on need not have looked at it, and no subscription matches it
                self._known.append({})
            else:
                self._known.append(targets_of(self._schema, event, values))
        return self._known[index]
