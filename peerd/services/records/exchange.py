"""Two nodes compare their records, and each gets what it lacks.

First digests of a shared range, then versions where those differ, then records: what is equal costs two messages. One
message is under way at a time, at background priority, with a pause after each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

from peerd.api import Part, Priority, RecordVersion, handles
from peerd.ids import NodeId
from peerd.lib.proof_ends import SeenEnds
from peerd.messages import Message, PeerRef
from peerd.services.records import messages
from peerd.services.records.batches import batches, complete, first_batch, whole
from peerd.services.records.messages import (
    BUCKETS,
    DIGEST_BYTES,
    DIGESTS_BYTES,
    HELD,
    LACKS_PROOF,
    PAGE_RECORDS_MAX,
    REFUSED,
)
from peerd.services.records.record import Record, RecordId, summary
from peerd.services.records.state import RecordState
from peerd.services.records.table import CHANGED, OUT_OF_ROOM, REFUSALS, RecordTable
from peerd.services.records.view import PLACES, Arc

ATTEMPTS: Final = 3
SLICE_S: Final = 60.0
"""After so long a comparison makes way for those with others; what it has not done, the next one does."""
PAGE_RECORDS: Final = PAGE_RECORDS_MAX - 32
"""A page holds whole places, so it ends a little before its limit; that two records have one place is an accident."""
NARROW_RECORDS: Final = 64
"""With more records in a part that differs, its own parts are compared first: their digests are shorter than so many
versions."""

CHARGED_RECORDS: Final = 256
"""Digests of so many records take a node about as long as handling a message, and cost their sender as much."""

Task = Callable[[], None]


class Exchange:
    """A comparison with one peer, started here.

    ``finished`` is called once, with this object and whether everything was answered. It is handed the object, rather
    than holding it, so that a comparison that is over is freed at once.
    """

    def __init__(self, state: RecordState, peer: PeerRef, finished: Callable[[Exchange, bool], None]) -> None:
        self._state = state
        self._host = state.host
        self._finished = finished
        self._tasks: deque[Task] = deque()
        self._attempts = 0
        self._ends_at = float("inf")
        self.peer = peer
        self.started_at = state.host.now()
        self.sent = 0
        self.received = 0
        self.confirmed: dict[RecordId, RecordVersion] = {}
        """For each record, a version that the peer is known to hold, unless it has a newer one."""
        self.is_established = False
        """Whether the peer is established, as it said in a comparison."""
        self.is_equal = False
        """Whether the ranges held the same versions."""

    def compare(self, shared: Sequence[Arc], pull: Sequence[Arc] = ()) -> None:
        """Exchange records until both hold the same in shared ranges; only take what is lacking in ranges to pull."""
        self._ends_at = self.started_at + SLICE_S
        arcs = [(arc, False) for arc in shared] + [(arc, True) for arc in pull]
        self._tasks.append(partial(self._ask_digests, arcs, is_first=True))

    def offer(self, records: Sequence[Record]) -> None:
        """Give the peer what it lacks of these."""
        for first in range(0, len(records), PAGE_RECORDS):
            page = records[first : first + PAGE_RECORDS]
            self._tasks.append(partial(self._offer_page, page))

    def step(self) -> None:
        """The next message, or the end."""
        if not self._tasks:
            self._finished(self, True)
        elif self._host.now() > self._ends_at:
            self._finished(self, False)
        else:
            self._tasks[0]()

    def _request(self, message: Message, answered: Callable[[Message], bool]) -> None:
        """``answered`` says whether the reply was of the right kind; only then is the task done."""

        def replied(reply: Message, source: PeerRef) -> None:
            done = self._tasks.popleft()
            if answered(reply):
                self._attempts = 0
                self._host.set_timer("exchange", self._state.config.sync_pause)
            else:
                self._tasks.appendleft(done)
                silent()

        def silent() -> None:
            self._attempts += 1
            if self._attempts >= ATTEMPTS:
                self._finished(self, False)
            else:
                self._host.set_timer("exchange", self._state.config.push_retry)

        timeout_s = self._state.config.peer_timeout
        self._host.request(self.peer, message, timeout_s, replied, silent, Priority.BACKGROUND)

    # Digests, versions, records

    def _ask_digests(self, arcs: Sequence[tuple[Arc, bool]], *, is_first: bool) -> None:
        def answered(reply: Message) -> bool:
            if not isinstance(reply, messages.DigestReply) or len(reply.differing) != len(arcs):
                return False
            self.is_established = reply.is_established
            if is_first:
                self.is_equal = not any(differing.parts for differing in reply.differing)
            for (arc, is_pull), differing in zip(arcs, reply.differing, strict=True):
                for number in differing.parts:
                    if number < BUCKETS:
                        self._tasks.append(partial(self._look_into, arc.part(number, BUCKETS), is_pull))
            return True

        table = self._state.table
        ranges = [
            messages.RangeDigests(arc.low, arc.high, packed_digests(table, arc), is_pull, arc.low_item, arc.high_item)
            for arc, is_pull in arcs
        ]
        is_empty = self._state.is_established and not len(table)
        self._request(messages.DigestRequest(tuple(ranges), is_empty), answered)

    def _look_into(self, part: Arc, is_pull: bool) -> None:
        """A part that differs: its versions, or the digests of its parts when it holds much.

        The records of one key lie in one point of the ring, so the next cut is through the range from the first to the
        last record that is here. What the peer may have outside of it is compared whole.
        """
        count, first, last = self._state.table.extent(part)
        if count <= NARROW_RECORDS:
            self._ask_versions(part, is_pull)
            return
        edges = [part.low_place, first, last + 1, part.high_place]
        arcs = [Arc.of_places(low, high) for low, high in pairwise(edges) if (high - low) % PLACES]
        self._ask_digests([(arc, is_pull) for arc in arcs], is_first=False)

    def _ask_versions(self, arc: Arc, is_pull: bool) -> None:
        records = self._state.table.within(arc, PAGE_RECORDS)
        page, rest = arc, None
        if len(records) >= PAGE_RECORDS:
            after = records[-1].identity.place + 1
            page, rest = Arc.of_places(arc.low_place, after), Arc.of_places(after, arc.high_place)

        def answered(reply: Message) -> bool:
            if not isinstance(reply, messages.VersionsReply):
                return False
            if rest is not None and rest.low_place != rest.high_place:
                self._tasks.appendleft(partial(self._ask_versions, rest, is_pull))
            verdicts = [self._state.admit(copy) for copy in whole(reply.newer, reply.ends)]
            self.received += verdicts.count(CHANGED)
            is_full = all(verdict in OUT_OF_ROOM for verdict in verdicts)  # to ask on would bring nothing either
            behind = _behind(page, reply.newer[-1]) if reply.is_partial and not is_full else None
            if behind is not None:
                self._tasks.appendleft(partial(self._ask_versions, behind, is_pull))
            if not is_pull:
                self._give([records[index] for index in reply.wanted if index < len(records)])
            return True

        entries = tuple(summary(record) for record in records)
        self._request(messages.VersionsRequest(page.low, page.high, entries, page.low_item, page.high_item), answered)

    def _offer_page(self, records: Sequence[Record]) -> None:
        def answered(reply: Message) -> bool:
            if not isinstance(reply, messages.VersionsReply):
                return False
            wanted = dict.fromkeys(reply.wanted)
            self._confirm(record for index, record in enumerate(records) if index not in wanted)
            self._give([record for index, record in enumerate(records) if index in wanted])
            return True

        nothing = NodeId(0)
        self._request(
            messages.VersionsRequest(nothing, nothing, tuple(summary(record) for record in records)), answered
        )

    def _give(self, records: Sequence[Record]) -> None:
        for batch in reversed(batches(records)):
            self._tasks.appendleft(partial(self._give_batch, batch))

    def _give_batch(self, records: Sequence[Record]) -> None:
        def answered(reply: Message) -> bool:
            if not isinstance(reply, messages.ReplicaAck) or len(reply.statuses) != len(records):
                return False
            held = [record for record, status in zip(records, reply.statuses, strict=True) if status == HELD]
            self._confirm(held)
            self.sent += len(held)
            for copy in whole(reply.newer, reply.ends):
                self._state.admit(copy)
            return True

        self._request(messages.ReplicaPut(*self._state.batch(records)), answered)

    def _confirm(self, records: Iterable[Record]) -> None:
        self.confirmed.update((record.identity, record.version) for record in records)


def _behind(page: Arc, copy: messages.RecordCopy) -> Arc | None:
    """What is left of a page whose records came in order up to this one; it is less each time, so there is an end."""
    after = RecordId(copy.key, copy.namespace, copy.item, copy.owner).place + 1
    is_within = 0 < (after - page.low_place) % PLACES < page.width
    return Arc.of_places(after, page.high_place) if is_within else None


def packed_digests(table: RecordTable, arc: Arc) -> bytes:
    """The digests of a range, as they travel: without the zeros at the end."""
    if not len(table):
        return b""
    return b"".join(number.to_bytes(DIGEST_BYTES, "big") for number in table.digests(arc, BUCKETS)).rstrip(b"\0")


class Responder(Part):
    """Answers what an `Exchange`, a push or a root of another node asks."""

    def __init__(self, state: RecordState) -> None:
        self._state = state
        self._seen = SeenEnds()

    @handles(messages.ReplicaPut)
    def _put(self, message: messages.ReplicaPut, source: PeerRef) -> messages.ReplicaAck:
        """Take records in; say which are held here now, and return what is newer."""
        self._state.refresh()
        statuses: list[int] = []
        newer: list[Record] = []
        copies, lacking = complete(message, self._seen)
        for index, copy in enumerate(copies):
            if index in lacking:
                statuses.append(LACKS_PROOF)
                continue
            verdict = self._state.admit(copy)
            if verdict == CHANGED:
                self._seen.note(copy.write.proof)
            if verdict == "forged":  # checking it took as long as handling some messages
                self._state.host.charge(source, 1)
            statuses.append(REFUSED if verdict in REFUSALS else HELD)
            held = self._state.table.get(RecordId(copy.key, copy.namespace, copy.item, copy.owner))
            if held is not None and held.version.rank > copy.version.rank:
                newer.append(held)
        return messages.ReplicaAck(tuple(statuses), *self._state.batch(first_batch(newer)[0]))

    @handles(messages.ReplicaGet)
    def _get(self, message: messages.ReplicaGet, source: PeerRef) -> messages.ReplicaGot:
        """A root that has not caught up asks for one record."""
        name = message.key, message.namespace, message.item
        record = self._state.current(name, message.owner)
        others = [each for each in self._state.table.named(name) if each is not record]
        if record is None:
            return messages.ReplicaGot(
                None, self._state.is_established, tuple(map(self._state.copy, first_batch(others)[0]))
            )
        others = first_batch([record, *others])[0][1:]
        return messages.ReplicaGot(
            self._state.copy(record), self._state.is_established, tuple(map(self._state.copy, others))
        )

    @handles(messages.DigestRequest)
    def _digests(self, message: messages.DigestRequest, source: PeerRef) -> messages.DigestReply:
        """Compare digests of ranges. Every record in them is looked at, and much of that costs as messages do."""
        state, view = self._state, self._state.refresh()
        looked_at = sum(state.table.extent(_arc(one))[0] for one in message.ranges)
        if looked_at >= CHARGED_RECORDS:
            state.host.charge(source, looked_at // CHARGED_RECORDS)
        differing = tuple(messages.DifferingParts(self._differing(one)) for one in message.ranges)
        shared = [_arc(one) for one in message.ranges if not one.is_pull]
        if shared and shared == list(view.shared_arcs(source.id)):
            is_equal = not any(each.parts for each in differing)
            state.schedule.compared(source.id, state.host.now(), state.table.writes, is_equal=is_equal)
        if message.is_empty:
            state.heard_empty(source)
        return messages.DigestReply(differing, state.is_established)

    def _differing(self, theirs: messages.RangeDigests) -> tuple[int, ...]:
        ours = packed_digests(self._state.table, _arc(theirs))
        if ours == theirs.digests:
            return ()
        mine, other = (digests.ljust(DIGESTS_BYTES, b"\0") for digests in (ours, theirs.digests))
        found: list[int] = []
        for number in range(BUCKETS):
            place = slice(number * DIGEST_BYTES, (number + 1) * DIGEST_BYTES)
            if mine[place] != other[place] and (any(mine[place]) or not theirs.is_pull):
                found.append(number)
        return tuple(found)

    @handles(messages.VersionsRequest)
    def _versions(self, message: messages.VersionsRequest, source: PeerRef) -> messages.VersionsReply:
        """Compare versions of one range, or of the entries only."""
        table = self._state.table
        table.lapse(self._state.host.now())
        wanted: list[int] = []
        theirs: dict[RecordId, tuple[int, int, int]] = {}
        for index, entry in enumerate(message.entries):
            identity = RecordId(entry.key, entry.namespace, entry.item, entry.owner)
            theirs[identity] = entry.version.rank
            held = table.get(identity)
            if held is None or held.version.rank < entry.version.rank:
                wanted.append(index)
        arc = _arc(message)
        if arc.low_place == arc.high_place:
            return messages.VersionsReply(tuple(wanted), (), False)
        newer, is_partial = first_batch(table.newer(arc, theirs))
        copies, ends = self._state.batch(newer)
        return messages.VersionsReply(tuple(wanted), copies, is_partial, ends)


def _arc(message: messages.RangeDigests | messages.VersionsRequest) -> Arc:
    return Arc(message.low, message.high, message.low_item, message.high_item)
