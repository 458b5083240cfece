"""The streams that this node produces, over restarts: their records, and the past of durable ones, read from disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from peerd.api import Host, Part, on_timer
from peerd.errors import ConfigError, Unavailable
from peerd.ids import NodeId
from peerd.lib.saved import Rows
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.interests.errors import ItemError
from protocols.dissemination.loading import load_kind
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import StreamPosition, epoch_of
from protocols.dissemination.ports import InterestKind
from protocols.dissemination.producer.keeping import PastItems
from protocols.dissemination.producer.log import KeptItem, ProducerLog, ProducerLogs
from protocols.dissemination.registry import EndedEarly
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.taking_part import StreamNodes, StreamsOwner

OWNER_PREFIX: Final = "owner."
LOOK_AGAIN_S: Final = 0.5
LOOKS_MAX: Final = 40
"""Before its past counts, a durable stream's record is looked for so often; a node that is alone goes on without."""
SETTLE_S: Final = 0.05
_RETURNING: Final = "stream_returning"


@dataclass(slots=True)
class _Returning:
    """A durable stream whose past is being read."""

    record: StreamRecord
    kind: InterestKind
    log: ProducerLog
    looks: int = 0
    is_checked: bool = False
    slices: Iterator[list[KeptItem]] | None = None
    floor: StreamPosition | None = None
    items: list[tuple[StreamItem, float]] = field(default_factory=list)


class ProducedStreams(Part):
    def __init__(
        self, host: Host, config: Callable[[], DisseminationConfig], nodes: StreamNodes, owner: StreamsOwner
    ) -> None:
        self._host, self._nodes, self._registry, self._owner = host, nodes, nodes.registry, owner
        self._records = Rows(host.store, "stream.", StreamRecord)
        self.logs = ProducerLogs(host, lambda: config().replay_bytes)
        self._returning: dict[NodeId, _Returning] = {}

    def check_back(self, key: NodeId) -> None:
        """Raise `Unavailable` for a stream of this node's whose past is still being read."""
        found = self._returning.get(key)
        if found is not None:
            raise Unavailable(f"the past of {found.record.name} is being read from disk")

    # A new stream

    def create(self, record: StreamRecord, owner: str, on_done: Callable[[StreamNode | Exception], None]) -> None:
        """Begin to produce, and write the record. Raises `StreamRefused`; and `Unavailable` where it cannot be kept."""
        known = self._nodes.get(record.key)
        if known is not None and not known.record.says_the_same(record):
            other = known.record.differences(record) or f"node {known.record.producer.id:.8} produces it"
            raise StreamRefused("conflict", f"there is a stream {record.name} already: {other}")
        if known is not None:
            on_done(known)
            return
        node = self.make(record)  # at once: newcomers may ask before the ring has confirmed the record

        def done(why: Exception | None) -> None:
            if why is None:
                self.remember(record)
                self.give_to(record.name, owner)
            elif not isinstance(why, EndedEarly):  # after that another stream may have its name by now
                self._not_created(node)
                if isinstance(why, Unavailable):  # it may have been written, although nobody has said so
                    self._registry.withdraw(record)
            on_done(node if why is None else why)

        self._registry.create(record, done)

    def _not_created(self, node: StreamNode) -> None:
        self._nodes.give_up(node, "not created")
        with suppress(Unavailable):
            self.logs.remove(node.record.name)

    def make(self, record: StreamRecord) -> StreamNode:
        """Begin to produce. Raises `StreamRefused`, and `Unavailable` where a durable stream cannot be kept."""
        self.check_back(record.key)
        node = self._nodes.make(record, None, self.logs)
        if node.keeping is not None:
            try:
                node.keeping.begin(node.member.state.watermark)
            except (Unavailable, StreamRefused):
                self._not_created(node)
                raise
        return node

    # A stream that another node has produced until now, or will from now on

    def keep_from_now_on(self, node: StreamNode) -> None:
        """Begin to keep what comes. Where the disk refuses, it goes out without, and `Keeping.tick` tries again."""
        keeping = node.keeping
        if keeping is not None:
            node.tells_kept = True
            try:
                keeping.begin(node.member.state.watermark)
            except (Unavailable, StreamRefused) as error:
                node.kept_or_not(False, str(error))

    # What is on disk of it

    def remember(self, record: StreamRecord) -> None:
        """This node produces the stream from now on, also when it is started again."""
        with suppress(Unavailable):  # then it lives until this node stops, and has to be created again
            self._records.save(record.name, record)

    def give_to(self, name: str, owner: str) -> None:
        """Remember whose stream it is. Where the disk refuses, it is nobody's, so that only operators end it."""
        with suppress(Unavailable):
            self._host.store.put(OWNER_PREFIX + name, owner.encode())

    def owner_of(self, name: str) -> str:
        """Who has created a stream at this node; empty: nobody who is known here."""
        return (self._host.store.get(OWNER_PREFIX + name) or b"").decode()

    def forget(self, record: StreamRecord) -> None:
        """It does so no more. Raises `Unavailable`."""
        self._records.remove(record.name)
        self._host.store.delete(OWNER_PREFIX + record.name)
        self.logs.remove(record.name)

    # A restart

    def produce_again(self) -> None:
        """Go on with the streams that this node produced before it was restarted."""
        self._records.load()
        names = set()
        for record in [record for record in self._records.values() if self._nodes.is_own(record)]:
            names.add(record.name)
            try:
                self._return(record)
            except (ValueError, StreamRefused):
                self._records.drop(record.name)
        with suppress(Unavailable):  # the disk refuses: they are in nobody's way
            for name in sorted(self.logs.keys() - names):
                self.logs.remove(name)

    def _return(self, record: StreamRecord) -> None:
        log = None
        if record.durable:
            with suppress(Unavailable):
                log = self.logs.open(record.name)
        if log is None:
            self._go_on(record, None)
            return
        try:
            kind = load_kind(record.kind)
        except (ConfigError, ValueError) as error:
            raise StreamRefused("invalid", f"{record.name}: {error}") from error
        self._returning[record.key] = _Returning(record, kind, log)
        self._host.set_timer(_RETURNING, 0.0, record.key)

    @on_timer(_RETURNING)
    def on_returning(self, key: NodeId) -> None:
        """The next step: ask the ring whether the past counts, then read some of it."""
        found = self._returning[key]
        if not found.is_checked:
            self._check(found)
        elif not found.log.is_settled:
            self._host.set_timer(_RETURNING, SETTLE_S, key)
        elif self._read(found):
            self._host.set_timer(_RETURNING, 0.0, key)

    def _check(self, found: _Returning) -> None:
        key = found.record.key

        def told(answer: StreamRecord | Exception) -> None:
            if self._returning.get(key) is not found:
                return
            found.looks += 1
            if isinstance(answer, Unavailable) and found.looks < LOOKS_MAX:
                self._host.set_timer(_RETURNING, LOOK_AGAIN_S, key)
                return
            found.is_checked = True
            if isinstance(answer, StreamRecord) and answer.is_unkept and self._nodes.is_own(answer):
                self._came_back(found, None)
            else:
                self._host.set_timer(_RETURNING, 0.0, key)

        self._registry.find(found.record.name, told)

    def _read(self, found: _Returning) -> bool:
        """Read some; whether there is more to be done."""
        if found.slices is None:
            found.slices = found.log.read()
        try:
            some = next(found.slices, None)
        except Unavailable:
            some = []
        if some:
            self._take(found, some)
            return True
        is_whole = some is None and found.floor is not None
        past = PastItems(found.floor, tuple(found.items), found.log) if is_whole and found.floor is not None else None
        self._came_back(found, past)
        return False

    def _take(self, found: _Returning, some: list[KeptItem]) -> None:
        now, wall_ms = self._host.now(), self._host.wall_time() * 1000
        for kept in some:
            if found.floor is None:
                sequence = kept.at.sequence if kept.item is None else kept.at.sequence - 1
                found.floor = StreamPosition(kept.at.epoch, sequence)
            if kept.item is None:
                continue
            with suppress(ItemError):
                age_s = max(0.0, (wall_ms - kept.kept_ms) / 1000)
                found.kind.content(kept.item)  # only to see that it can be read
                found.items.append((kept.item, now - age_s))

    def _came_back(self, found: _Returning, past: PastItems | None) -> None:
        del self._returning[found.record.key]
        if past is not None and past.last.epoch > epoch_of(found.record.term, self._host.boot_epoch):
            past = None  # it was written by a boot that came later: somebody has put an old state directory back
        try:
            self._go_on(found.record, past)
        except StreamRefused:
            self._records.drop(found.record.name)

    def _go_on(self, record: StreamRecord, past: PastItems | None) -> None:
        if record.durable and past is None:  # what may still be on the disk does not count, until a new log does
            record = record.model_copy(update={"is_unkept": True})
        node = self._nodes.make(record, past, self.logs)
        if node.keeping is not None and past is None:
            with suppress(Unavailable, StreamRefused):  # it goes out without, and `Keeping.tick` tries again
                node.keeping.begin(node.member.state.watermark)
        if record.has_standbys:
            self._owner.returned(node)
        else:
            self._registry.keep(node.record, self._host.rng.uniform(0.5, 2.0))
