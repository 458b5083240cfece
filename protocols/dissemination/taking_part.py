"""The streams that this node takes part in: made when they are needed, ticked together, and given up again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from peerd.api import Host, Part, on_timer
from peerd.errors import ConfigError
from peerd.ids import NodeId, format_id
from peerd.messages import Message, PeerRef
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.documents.manifest import Attachment
from protocols.dissemination.events import StreamOver
from protocols.dissemination.loading import load_kind, load_policy
from protocols.dissemination.messages import (
    Attach,
    AttachRefusal,
    Climb,
    Climbed,
    Declined,
    DetachFromParent,
    ItemBatch,
    ItemPart,
    ItemTaken,
    ReplayItems,
    Reserve,
    Reserved,
    StreamGap,
    StreamItem,
    TreeHeartbeat,
    Widened,
)
from protocols.dissemination.metrics import StreamLedger
from protocols.dissemination.names import epoch_of
from protocols.dissemination.producer.keeping import PastItems
from protocols.dissemination.producer.log import ProducerLogs
from protocols.dissemination.registry import RENEWALS_PER_LEASE, StreamRegistry
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import SEEDS_MAX, SeedRef, StreamRecord
from protocols.dissemination.stream_node import StreamNode

TICK_S: Final = 0.25
TICK: Final = "streams"
_FLUSH: Final = "stream_flush"
_PACED: Final = "stream_paced"
BOOT_BITS: Final = 22
ATTEMPT_BITS: Final = 12
"""A boot is told by milliseconds since 1970, which have 42 bits until the year 2109; an attempt's number has 64."""
TOLD_OFF_MAX: Final = 64
"""Answers a tick to nodes that take this one for a member of a stream that it is not in."""
LOOKUP_S: Final = 5.0
"""Least time between two looks at the record of a stream whose producer is not reached."""
RIVAL_SHARE: Final = 0.5
"""Who has no way to its producer leaves a stream after this share of a lease in which the ring shows another one of its
name, and goes back to an earlier term of the stream in the same way."""
TOLD_S: Final = 0.5
"""The same, where a node says that it is the producer now."""


@dataclass(slots=True)
class UsedNumbers:
    """What must not be used again in this boot."""

    made: int = 0
    """Times that this node began to take part in a stream."""
    sequence: int = 0
    """The largest number of an item of a stream that this node has produced, and does not produce any more."""


class StreamsOwner(Protocol):
    """What the streams of a node tell the rest of its plugin."""

    def stream_gone(self, node: StreamNode, reason: str) -> None:
        """A stream was given up."""

    def on_room(self) -> None:
        """Publishers that wait may go on."""

    def document_came(self, node: StreamNode, item: StreamItem, attachment: Attachment) -> None:
        """An item has come to which a document is attached."""

    def name_lost(self, record: StreamRecord) -> None:
        """Another producer has the name of a stream of this node's."""

    def returned(self, node: StreamNode) -> None:
        """A stream that standbys may have taken over is produced again, and has to be looked for in the ring first."""


class StreamNodes(Part):
    def __init__(self, host: Host, config: Callable[[], DisseminationConfig], owner: StreamsOwner) -> None:
        self._host, self._config, self._owner = host, config, owner
        self.registry = StreamRegistry(host, config, self)
        self._nodes: dict[NodeId, StreamNode] = {}
        self.ledger = StreamLedger(host)
        self._is_ticking = self._is_flushing = False
        self._told_off = 0
        self.numbers = UsedNumbers()
        self._looked_at: dict[NodeId, float] = {}

    def __iter__(self) -> Iterator[StreamNode]:
        return iter(list(self._nodes.values()))

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, key: NodeId) -> StreamNode | None:
        """A stream that this node takes part in."""
        return self._nodes.get(key)

    def make(self, record: StreamRecord, past: PastItems | None = None, logs: ProducerLogs | None = None) -> StreamNode:
        """Take part in a stream. Raises `StreamRefused`. ``past`` and ``logs`` are for the producer."""
        found = self._nodes.get(record.key)
        if found is not None:
            return found
        if len(self._nodes) >= self._config().streams_max:
            raise StreamRefused("quota", f"this node takes part in {len(self._nodes)} streams, and in no more")
        try:
            kind, factory = load_kind(record.kind), load_policy(record.policy)
            node = StreamNode(
                self._host,
                self._config,
                record,
                kind,
                factory,
                self,
                self._attempts(),
                self._sequence(past, epoch_of(record.term, self._host.boot_epoch)),
                past,
                logs,
            )
        except (ConfigError, ValueError) as error:
            raise StreamRefused("invalid", f"{record.name}: {error}") from error
        self._nodes[record.key] = node
        self.wake()
        return node

    def _sequence(self, past: PastItems | None, epoch: int) -> int:
        """The last number that was used in this boot, perhaps by an instance of the plugin that this one replaces."""
        is_of_boot = past is not None and past.last.epoch == epoch
        return max(self.numbers.sequence, past.last.sequence if past is not None and is_of_boot else 0)

    def _attempts(self) -> int:
        """Where the numbers of attempts begin: above those of earlier boots, and of this stream in this boot."""
        self.numbers.made += 1
        return (self._host.boot_epoch << BOOT_BITS) + (self.numbers.made << ATTEMPT_BITS)

    def give_up(self, node: StreamNode, reason: str) -> None:
        """Take part no more."""
        if self._nodes.get(node.record.key) is not node:
            return
        del self._nodes[node.record.key]
        self.numbers.sequence = max(self.numbers.sequence, node.sequence)
        self._looked_at.pop(node.record.key, None)
        self.ledger.gone(node)
        node.leave(is_over=reason == "ended")
        self._host.emit(StreamOver(stream=node.name, reason=reason))
        self._owner.stream_gone(node, reason)

    def let_go(self, reason: str) -> None:
        """The plugin ends or is replaced: publishers that wait for the disk are told nothing more."""
        for node in self._nodes.values():
            if node.keeping is not None:
                node.keeping.let_go(reason)

    def document_came(self, node: StreamNode, item: StreamItem, attachment: Attachment) -> None:
        """See `StreamOwner.document_came`."""
        self._owner.document_came(node, item, attachment)

    def above(self, stream: NodeId) -> list[PeerRef]:
        """Whom to ask for what belongs to a stream: the parent first, the producer last."""
        node = self._nodes.get(stream)
        return [] if node is None else node.above()

    def on_room(self) -> None:
        """See `StreamOwner.on_room`."""
        self._owner.on_room()

    def name_lost(self, record: StreamRecord) -> None:
        """See `RecordsOwner.name_lost`."""
        self._owner.name_lost(record)

    def has_uplink(self) -> bool:
        """See `StreamOwner.has_uplink`."""
        limit = self._config().uplink
        return not limit or self.ledger.uplink_bytes_per_s < limit

    def used(self) -> UsedNumbers:
        """All that was used so far, for an instance of the plugin that replaces this one."""
        return UsedNumbers(
            self.numbers.made, max([self.numbers.sequence, *(node.sequence for node in self._nodes.values())])
        )

    # Time

    def wake(self) -> None:
        """There is something to do every now and then."""
        if not self._is_ticking:
            self._is_ticking = True
            self._host.set_timer(TICK, TICK_S)

    def tick(self) -> None:
        """Four times a second, from `wake` on; whoever has something to do after that wakes it again."""
        self._is_ticking = False
        self._told_off = 0
        for node in self:
            if node.tick():
                self.look_up(node)
            self._check_producer(node)
            self._check_record(node)
        self.ledger.take(list(self._nodes.values()))

    def _check_record(self, node: StreamNode) -> None:
        """Without a way to the producer, see what the ring says, as often as the producer would renew its record."""
        if not node.is_adrift:
            node.look_at = node.other_since = None
            return
        now, pause_s = self._host.now(), self.registry.lease_s(node.record) / RENEWALS_PER_LEASE
        if node.look_at is None:
            node.look_at = now + pause_s * self._host.rng.random()  # all who are below a lost node know it at once
        elif now >= node.look_at:
            node.look_at = now + pause_s
            self._ask(node, None)

    def _check_producer(self, node: StreamNode) -> None:
        """Where the stream ends with its producer, and it is gone for long: so says its record, or the lack of it.

        And where another node is at the top of the tree than the record says: then the stream was handed over.
        """
        top = node.member.state.ancestors[:1]
        if top and top[0].id != node.record.producer.peer.id and not node.is_producer:
            self._looked_at.setdefault(node.record.key, self._host.now() - LOOKUP_S * self._host.rng.random())
            self.look_up(node)
        if self._is_late(node):
            self.look_up(node)

    def look_up(self, node: StreamNode) -> None:
        """Read the record again, if that was not done lately."""
        if self._host.now() - self._looked_at.get(node.record.key, -LOOKUP_S) >= LOOKUP_S:
            self._ask(node, None)

    def look_up_now(self, node: StreamNode, producer: NodeId | None) -> None:
        """A node says that it is the producer now, or there are items of a later term. Anybody may say so: what the
        ring has counts, and it is not asked each time."""
        if self._host.now() - self._looked_at.get(node.record.key, -TOLD_S) >= TOLD_S:
            self._ask(node, producer)

    def refreshed(self, node: StreamNode, on_record: Callable[[StreamRecord], None]) -> None:
        """The record of a stream, with the standbys of this moment: a member knows those that it has looked at last."""
        if node.is_producer or not node.record.has_standbys:
            on_record(node.record)
            return

        def found(answer: StreamRecord | Exception) -> None:
            self.found(node, answer)
            on_record(node.record)

        self.registry.find(node.name, found)

    def _ask(self, node: StreamNode, producer: NodeId | None) -> None:
        self._looked_at[node.record.key] = self._host.now()
        self.registry.find(node.name, lambda answer: self.found(node, answer), producer)

    def found(self, node: StreamNode, answer: StreamRecord | Exception) -> None:
        """What the ring has as the record of a stream that this node is a member of."""
        if self._nodes.get(node.record.key) is not node or node.is_producer:
            return
        if isinstance(answer, StreamRecord):
            is_rival, is_earlier = answer.creator != node.record.creator, answer.is_earlier_than(node.record)
            if not is_rival and not is_earlier:
                node.other_since = None
            if answer.succeeds(node.record):
                self._follow(node, answer)
            elif is_earlier:
                # The later one is not known in this part of the ring, or it was given back before anything came of it.
                has_nothing = node.member.state.watermark.epoch < epoch_of(node.record.term, 0)
                if has_nothing and self._stays_other(node):
                    self._follow(node, answer)
            elif is_rival:
                if self._stays_other(node):
                    self.give_up(node, "another producer has the name")
            elif answer.producer.id != node.record.producer.id:
                self.give_up(node, "another producer has the name")
            elif answer.kind == node.record.kind and answer.policy == node.record.policy:
                node.record = answer
        elif isinstance(answer, StreamRefused) and answer.kind == "unknown" and self._is_late(node):
            self.give_up(node, "ended")

    @staticmethod
    def _follow(node: StreamNode, record: StreamRecord) -> None:
        node.record, node.other_since = record, None
        node.seeking.seek(record.producer.peer)

    def _stays_other(self, node: StreamNode) -> bool:
        """Whether the ring goes on showing another record than that of this node, which has no way to its producer.

        Of two producers that do not know of each other one ends, and members are told. Only who has no way to its
        producer has to decide that by itself, and not at once: while the ring is divided, or is just one again, it may
        say one thing here and another there. Producers have looked after 0.4 of a lease.
        """
        if not node.is_adrift:
            return False
        now = self._host.now()
        if node.other_since is None:
            node.other_since = now
        return now - node.other_since >= RIVAL_SHARE * self.registry.lease_s(node.record)

    def _is_late(self, node: StreamNode) -> bool:
        since = node.seeking.orphan_since
        is_late = since is not None and self._host.now() - since >= self._config().producer_gone_after
        return is_late and node.record.producer_gone == "end"

    # Messages

    def received(self, message: Message, source: PeerRef) -> None:
        """One of the tree's messages, or of a policy's: all have a ``stream``."""
        node = self._nodes.get(_stream_of(message))
        if node is None:
            self._tell_off(message, source)
        else:
            node.received(source, message)
            if isinstance(message, ItemTaken):
                self.on_room()

    def policy_received(self, message: Message, source: PeerRef) -> None:
        """One of a policy's messages. Where this node is not in the stream, its policy is silent."""
        node = self._nodes.get(_stream_of(message))
        if node is not None:
            node.policy_received(source, message)

    def _tell_off(self, message: Message, source: PeerRef) -> None:
        """This node is not in the stream: say so to whom it matters, not too often."""
        if self._told_off >= TOLD_OFF_MAX:
            return
        answer: Message | None = None
        to = source
        match message:
            case Attach():
                answer = Declined(message.stream, message.attempt, AttachRefusal.NOT_A_MEMBER)
            case Climb():
                answer, to = Climbed(message.stream, message.attempt, is_clear=False, hops=message.hops), message.mover
            case Reserve():
                answer = Reserved(message.stream, message.parent, is_kept=False)
            case ItemBatch() | TreeHeartbeat() | ReplayItems() | Widened() | StreamGap() | ItemPart():
                answer = DetachFromParent(message.stream, message.attempt)
        if answer is not None:
            self._told_off += 1
            self.wake()
            self._host.send(to, answer)

    def gone(self, peer: NodeId) -> None:
        """A node is out of reach, or a part of what it was to get is missing."""
        for node in self:
            node.gone(peer)

    def writable(self) -> None:
        """Some peer has taken what waited for it."""
        for node in self:
            node.flush()

    def send_soon(self, node: StreamNode) -> None:
        """Send what is published now: at once if nothing was sent lately, else in a moment, together with the rest."""
        pause_s = node.pace.pause_s(self._host.now())
        if pause_s <= 0:
            self.flush_soon()
        elif not node.pace.is_paced:
            node.pace.is_paced = True
            self._host.set_timer(_PACED, pause_s, node)

    @on_timer(_PACED)
    def on_paced(self, node: StreamNode) -> None:
        """Send it."""
        node.pace.is_paced = False
        if self._nodes.get(node.record.key) is node:
            node.flush()
            self.on_room()

    def flush_soon(self) -> None:
        """Send what is published now, together with what else is published at this moment."""
        if not self._is_flushing:
            self._is_flushing = True
            self._host.set_timer(_FLUSH, 0.0)

    @on_timer(_FLUSH)
    def flush(self, payload: None) -> None:
        """Send it."""
        self._is_flushing = False
        for node in self:
            node.go_on()
            node.flush()
        self.on_room()

    # Seeds

    def with_seeds(self, record: StreamRecord) -> StreamRecord:
        """The record of one of this node's streams, with some of its children for newcomers to begin at.

        The producer comes first: it is in the tree for certain.
        """
        node = self._nodes.get(record.key)
        if node is None:
            return record
        children = [child.peer for child in node.children()][: SEEDS_MAX - 1]
        updated = record.model_copy(
            update={
                "producer": SeedRef.of(self._host.peer),
                "seeds": tuple(SeedRef.of(peer) for peer in (self._host.peer, *children)),
            }
        )
        node.record = updated
        return updated

    def is_own(self, record: StreamRecord) -> bool:
        """Whether this node is the producer."""
        return record.producer.id == format_id(self._host.id)

    def validate(self) -> None:
        """Assert the invariants."""
        for node in self._nodes.values():
            node.validate()


def _stream_of(message: Any) -> NodeId:
    """All messages of the tree and of policies have it."""
    stream: NodeId = message.stream
    return stream
