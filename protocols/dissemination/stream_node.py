"""One stream on one node: its member of the tree, its policy, and what happens when it has no parent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from peerd.api import Host
from peerd.errors import ProtocolError
from peerd.ids import NodeId, format_id, parse_id
from peerd.messages import Message, PeerRef
from protocols.dissemination.access import NodeTree
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.documents.manifest import Attachment
from protocols.dissemination.events import INTEREST_SHOWN_MAX, StreamInterestFailed, StreamLoss, StreamUnkept
from protocols.dissemination.freshness import Freshness
from protocols.dissemination.messages import (
    ITEMS_MAX,
    AttachRefusal,
    Declined,
    ItemBatch,
    ItemPart,
    ReplayItems,
    StreamItem,
)
from protocols.dissemination.meter import StreamMeter
from protocols.dissemination.names import StreamPosition, epoch_of, position_text
from protocols.dissemination.ports import Interest, InterestKind, ParsedItem, PolicyFactory, RememberingKind
from protocols.dissemination.producer.keeping import Keeping, PastItems
from protocols.dissemination.producer.log import ProducerLog, ProducerLogs
from protocols.dissemination.producer.release_queue import ReleaseQueue, SendPace
from protocols.dissemination.proving import Proofs
from protocols.dissemination.registry import StreamRegistry
from protocols.dissemination.seeking import Seeking
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.tree.member import StreamMember
from protocols.dissemination.tree.owner import MemberOwner
from protocols.dissemination.tree.replay import BufferLimits
from protocols.dissemination.tree.search import MoveEnd
from protocols.dissemination.tree.subscription import Delivered

LINGER_S: Final = 5.0
"""A member that neither has subscriptions nor children leaves the tree after this."""
DRAIN_S: Final = 5.0
"""A node that leaves waits for so long until its children have gone elsewhere."""
Deliver = Callable[[Delivered], None]
LARGE_ITEM_S: Final = 0.05
"""What a large item takes to be read and matched in the simulator: a guess at what one of 500 KB takes a daemon."""


class StreamOwner(Protocol):
    """What a stream asks the rest of its node, and tells it."""

    registry: StreamRegistry

    def has_uplink(self) -> bool:
        """Whether this node can send to more children than it has, in all its streams."""

    def look_up_now(self, node: StreamNode, producer: NodeId | None) -> None:
        """The record may have changed."""

    def flush_soon(self) -> None:
        """There is more to be done, by `StreamNode.go_on`."""

    def give_up(self, node: StreamNode, reason: str) -> None:
        """The stream ends for this node."""

    def on_room(self) -> None:
        """The disk has taken what waited for it."""

    def document_came(self, node: StreamNode, item: StreamItem, attachment: Attachment) -> None:
        """An item has come to which a document is attached."""


class StreamNode(NodeTree, MemberOwner):
    """``position_text`` in events and answers is "EPOCH-NUMBER"."""

    why_paused = ""
    """Why nothing is published for the moment, as in "the stream NAME is being ended"."""
    predecessor: PeerRef | None = None
    """Who has handed the stream over to this node, and goes on below it."""
    look_at: float | None = None
    """When this node, without a way to the producer, looks at the record again."""
    other_since: float | None = None
    """This node has no way to the producer, and the ring has shown it another stream of the name ever since, or this
    one in an earlier term."""
    had_from: NodeId | None = None
    """The same, also after this node has handed the stream on."""
    tells_kept = True
    """Whether it is told what the disk does: not while it is open whether this next producer stays it."""

    def __init__(
        self,
        host: Host,
        config: Callable[[], DisseminationConfig],
        record: StreamRecord,
        kind: InterestKind,
        factory: PolicyFactory,
        owner: StreamOwner,
        attempts_from: int,
        sequence: int,
        past: PastItems | None = None,
        logs: ProducerLogs | None = None,
    ) -> None:
        super().__init__(host, config, record, kind)
        self._owner = owner
        now = host.now()
        settings = config()
        limits = BufferLimits(settings.replay_items, settings.replay_bytes, settings.replay_for)
        self.meter = StreamMeter(now)
        self._freshness = Freshness(self._wall_ms())
        self.member = StreamMember(
            host.peer,
            record.key,
            kind,
            limits,
            self,
            is_source=record.producer.id == format_id(host.id),
            attempts_from=attempts_from,
            offload=self._offload,
        )
        self.member.state.creator = parse_id(record.creator) if record.creator else None
        self._proofs = self.member.state.proofs = Proofs(lambda: self._record, host.sign, host.verify)
        self.seeking = Seeking(self, now)
        self.epoch = epoch_of(record.term, host.boot_epoch)
        self.sequence = sequence
        """The number of the newest item: in one boot no stream has a number twice, also when it is created again."""
        self._releasing = ReleaseQueue(self.member.state, self._let_out, self._released)
        self.keeping = None if logs is None else self._keep(logs, None if past is None else past.log)
        """Of a durable stream, at its producer."""
        if self.is_producer:
            self._begin_producing(past)
        self._unsent = 0
        self._is_over = False
        self._ended_at: float | None = None
        """When the producer ended the stream."""
        self.pace = SendPace(lambda: not self._record.unsigned)
        self._busy_s = 0.0
        """How long publishing has taken since the last `flush`."""
        self._factory, self._policy_messages = factory, frozenset(factory.messages)
        self.policy = factory.make(self, factory.settings(record.settings))
        self._children: tuple[NodeId, ...] = ()
        self._unused_since: float | None = now
        self.gaps = 0

    def _begin_producing(self, past: PastItems | None) -> None:
        if past is None:
            self.member.begin_at(StreamPosition(self.epoch, self.sequence))
        else:
            items = [(self._proofs.sealed(item), at_s) for item, at_s in past.items]
            self.member.recall(past.floor, items, self.host.now())

    def _keep(self, logs: ProducerLogs, log: ProducerLog | None) -> Keeping | None:
        return Keeping(self.name, logs, log, self._releasing, self.kept_or_not) if self.record.durable else None

    def kept_or_not(self, is_kept: bool, why: str) -> None:
        """Say so, here and in the ring: a log that does not count any more may still be on the disk."""
        if not self.tells_kept:
            return
        if not is_kept:
            self.host.count("peerd_dissemination_unkept_total")
            self.host.emit(StreamUnkept(stream=self.name, reason=why[:200]))
        if self.record.is_unkept == is_kept:
            self.record = self.record.model_copy(update={"is_unkept": not is_kept})
            self._owner.registry.change(self.record)

    # Another producer

    def become_producer(
        self, record: StreamRecord, predecessor: PeerRef, everything: Interest, sequence: int, logs: ProducerLogs
    ) -> None:
        """Go on with the stream in the place of its producer. ``everything`` is what this node has had of it."""
        self.seeking.at_producer()
        self.member.become_producer(everything, self.host.now())
        self.record, self.predecessor = record, predecessor
        self.had_from = predecessor.id
        self.epoch, self.sequence = epoch_of(record.term, self.host.boot_epoch), sequence
        self.keeping, self.tells_kept = self._keep(logs, None), False
        self._begin_anew()

    def begin_term(self, record: StreamRecord) -> None:
        """Go on as the producer, after another one has been it for a while and is gone: what it sent is not here."""
        self.record, self.epoch = record, epoch_of(record.term, self.host.boot_epoch)
        self.member.begin_again_at(StreamPosition(self.epoch, self.sequence), self.host.now())

    def become_member(self, record: StreamRecord) -> None:
        """The producer of this record has the stream now: go on below it."""
        self._releasing.release_all()
        self.flush()
        if self.keeping is not None:
            self.keeping.stop(is_over=False)
        producer = record.producer.peer
        self.member.become_member(producer.id, self.host.now())
        self.why_paused, self.record, self.keeping = "", record, None
        self.predecessor = None
        self._begin_anew()
        self.seeking.at_member(producer)

    def _begin_anew(self) -> None:
        """The policy of a producer does other things than that of a member."""
        self.policy = self._factory.make(self, self._factory.settings(self.record.settings))
        self._children = ()
        self._note_children()

    # What it is

    @property
    def is_paused(self) -> bool:
        """Whether nothing is published for the moment: the stream is being handed over or ended, or was taken over."""
        return bool(self.why_paused)

    @property
    def depth(self) -> int | None:
        """Edges between the producer and this node; ``None``: not in the tree."""
        if self.is_producer:
            return 0
        return None if self.member.up.is_orphan else len(self.member.state.path)

    @property
    def is_adrift(self) -> bool:
        """Whether this node has no way to the producer: it, or a node above it, has no parent."""
        return not self.is_producer and self.member.up.is_stale

    def above(self) -> list[PeerRef]:
        """The nodes above this one: the parent first, and the producer last. At that: who was it before.

        They have what belongs to the stream.
        """
        if self.is_producer and self.predecessor is not None:
            return [self.predecessor]
        up = [] if self.parent is None else [self.parent]
        up += [*self.member.state.ancestors[-2::-1], self.record.producer.peer]
        return list(dict.fromkeys(up))

    def queued_bytes(self) -> int:
        """What waits to be sent to the children."""
        return sum(self.queued_for(child) for child in self.member.down.children)

    def move_to(self, peer: PeerRef) -> bool:
        """The policy's wish: see `protocols.dissemination.ports.TreeAccess.move_to`."""
        return self.seeking.move_to(peer)

    # Of the member

    def draw(self) -> float:
        """See `MemberOwner.draw`."""
        return self.random()

    def call_again(self) -> None:
        """See `MemberOwner.call_again`."""
        self._owner.flush_soon()

    def look_up(self) -> None:
        """See `MemberOwner.look_up`."""
        self._owner.look_up_now(self, None)

    def orphaned(self) -> None:
        """See `MemberOwner.orphaned`."""
        self.seeking.orphaned()

    def ended(self, peer: PeerRef, end: MoveEnd, why: AttachRefusal | None, others: Sequence[PeerRef]) -> None:
        """See `MemberOwner.ended`."""
        self.seeking.ended(peer, end, why, others)

    def asked_to_move(self, parents: Sequence[PeerRef], is_successor: bool) -> None:
        """See `MemberOwner.asked_to_move`."""
        self.seeking.asked_to_move(parents, is_successor)

    def send(self, peer: PeerRef, message: Message) -> None:
        """See `MemberOwner.send`, and `protocols.dissemination.ports.TreeAccess.send`."""
        counts = self.meter.counts
        if isinstance(message, ItemBatch | ReplayItems):
            counts.items_out += len(message.items)
            counts.bytes_out += sum(map(len, message.items))
        elif isinstance(message, ItemPart):
            counts.bytes_out += len(message.data)
        elif isinstance(message, Declined):
            counts.refused += 1
        self.host.send(peer, message)

    def is_slow(self, peer: PeerRef) -> bool:
        """See `MemberOwner.is_slow`."""
        return self.host.queued_bytes(peer) > self.config.slow_bytes

    def admit(self, peer: PeerRef, wants: Sequence[Interest], instead_of: NodeId | None) -> bool:
        """See `MemberOwner.admit`."""
        is_predecessor = self.predecessor is not None and peer.id == self.predecessor.id
        if is_predecessor and len(self.member.down.children) <= self.config.fan_out:
            return True  # one above the limit, however often producers change (swarm, seeds 16 and 660)
        return self.room_after(instead_of) > 0

    def room_after(self, gone: NodeId | None) -> int:
        """See `MemberOwner.room_after`."""
        if self.leaving_since is not None or not self._owner.has_uplink():
            return 0
        children = self.member.down.children
        return self.config.fan_out + (gone in children) - len(children)

    def room(self) -> int:
        """How many children more would be taken."""
        return max(0, self.room_after(None))

    def passed(self, parsed: ParsedItem, is_own: bool, children: Sequence[NodeId]) -> None:
        """See `MemberOwner.passed`."""
        if not self.is_producer:
            counts = self.meter.counts
            counts.items_in += 1
            counts.bytes_in += parsed.item.size
            counts.spurious += not is_own
            if is_own:
                counts.late_ms += self._wall_ms() - parsed.item.published_ms
        self.policy.passed(parsed, is_own, children)
        self._note_document(parsed)

    def _note_document(self, parsed: ParsedItem) -> None:
        if parsed.item.attachment is not None and not self.is_producer:
            self._owner.document_came(self, parsed.item, parsed.item.attachment)

    def with_documents(self, deliver: Deliver) -> Deliver:
        """Have the documents fetched that belong to what a subscription gets, be it of the past."""

        def delivered(what: Delivered) -> None:
            if isinstance(what, ParsedItem):
                self._note_document(what)
            deliver(what)

        return delivered

    def lost(self, since: StreamPosition, until: StreamPosition) -> None:
        """See `MemberOwner.lost`."""
        self.gaps += 1
        self.host.emit(StreamLoss(stream=self.name, since=position_text(since), until=position_text(until)))

    def failed(self, interest: Interest | None, why: str) -> None:
        """See `MemberOwner.failed`."""
        self.host.count("peerd_dissemination_failed_interests_total")
        text = "all" if interest is None else interest.text[:INTEREST_SHOWN_MAX]
        self.host.emit(StreamInterestFailed(stream=self.name, interest=text, reason=why))

    # Subscriptions of this node

    def subscribe(
        self,
        number: int,
        interest: Interest,
        after: StreamPosition | None,
        deliver: Callable[[Delivered], None],
        on_live: Callable[[], None],
    ) -> None:
        """See `StreamMember.subscribe`; of values it is noted for how long they are good."""
        kind = self.kind
        if isinstance(kind, RememberingKind):
            deliver = self._freshness.noting(kind, number, deliver, self._wall_ms)
        self.member.subscribe(number, interest, after, deliver, self.host.now(), on_live)

    def unsubscribe(self, number: int) -> None:
        """Want it no more."""
        self.member.unsubscribe(number, self.host.now())
        self._freshness.ended(number, self._wall_ms())

    def _wall_ms(self) -> int:
        return round(self.host.wall_time() * 1000)

    def stream_over(self) -> None:
        """The producer has ended the stream; the children still get what was sent before."""
        if self._ended_at is None:
            self._ended_at = self.host.now()
        if self.has_sent_all() or self.host.now() - self._ended_at >= DRAIN_S:
            self._owner.give_up(self, "ended")

    # Events

    def received(self, peer: PeerRef, message: Message) -> None:
        """One of the tree's messages."""
        now, counts = self.host.now(), self.meter.counts
        had, sent = counts.items_in, counts.items_out
        try:
            self.member.received(peer, message, now)
        except ProtocolError as error:
            self.seeking.blamed(peer, error)
            raise
        self._worked(self.host.now() - now, counts.items_in - had, counts.items_out - sent)
        self._note_children()

    def _worked(self, busy_s: float, items: int, sent: int) -> None:
        """So many items kept this node busy for so long."""
        if items:
            self._work.add(busy_s / items, len(self.member.down.children), round(sent / items))

    def blame(self, peer: PeerRef, error: ProtocolError) -> None:
        """See `MemberOwner.blame`."""
        self.seeking.blamed(peer, error)
        self.host.misbehaved(peer, error)

    def policy_received(self, peer: PeerRef, message: Message) -> None:
        """One of the policy's messages. Another policy's is a fault of its sender."""
        if type(message) not in self._policy_messages:
            raise ProtocolError("other_policy", f"{peer} sends a {type(message).__name__} for a stream without it")
        self.policy.received(peer, message)

    def publish(
        self, payload: bytes, content_type: str, published_ms: int, attachment: Attachment | None = None
    ) -> StreamItem:
        """The producer's next item."""
        item = StreamItem.of(self.epoch, self.sequence + 1, published_ms, payload, content_type, attachment)
        self._releasing.check_room()
        now = self.host.now()
        content = self.kind.content(item)
        parsed = ParsedItem(self._proofs.sealed(item), content)
        self._busy_s += self.host.now() - now
        try:
            if self.keeping is None:
                self._releasing.release(parsed)
            else:
                self.keeping.publish(parsed)
        except BaseException:  # whatever was raised on the way: if the item has gone, the next one has another number
            if self._releasing.watermark < item.position:
                self._proofs.take_back(item)
            else:
                self.sequence = item.position.sequence
            raise
        self.sequence = item.position.sequence
        self.pace.published(now)
        return item

    def _let_out(self, parsed: ParsedItem) -> None:
        now = self.host.now()
        self.member.release_item(parsed, now)
        self._busy_s += self.host.now() - now
        self._unsent += 1
        if self._unsent >= ITEMS_MAX:
            self.flush()

    def _released(self) -> None:
        self.flush()
        self._owner.on_room()

    def is_held(self) -> bool:
        """Whether the producer's record is safe from its standbys."""
        return self._owner.registry.is_held(self.record)

    @property
    def is_sending(self) -> bool:
        """Whether something that was published has not gone out: it is being matched, or on its way to the disk."""
        return bool(self._releasing) or (self.keeping is not None and self.keeping.is_waiting)

    def has_sent_all(self) -> bool:
        """Whether all that was published is on its way to the children, as far as these take anything."""
        down = self.member.down
        return not self.is_sending and not any(child.outbox for child in down.children.values())

    def _offload(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Give work on one item away; see `protocols.dissemination.tree.matching`."""

        def ended(callback: Callable[[Any], None], outcome: Any) -> None:
            if not self._is_over:
                self.member.now = self.host.now()
                callback(outcome)
                self._note_children()

        self.host.offload(
            function, *arguments, done=partial(ended, done), failed=partial(ended, failed), cost_s=LARGE_ITEM_S
        )

    def go_on(self) -> None:
        """Some more of what is done in turns."""
        self.member.go_on(self.host.now())

    @property
    def is_publishable(self) -> bool:
        """Whether some child takes more, and the disk: a child that is slow alone does not hold up the others."""
        if (
            self.is_paused
            or not self.is_held()
            or self._releasing
            or (self.keeping is not None and self.keeping.is_busy)
        ):
            return False
        children = self.member.down.children
        return not children or any(child.slow_since is None and not child.outbox for child in children.values())

    def gone(self, peer: NodeId) -> None:
        """A node is out of reach, or something that was sent to it was lost."""
        self.member.gone(peer, self.host.now())
        self._note_children()

    def flush(self) -> None:
        """Send on what waits: a peer has taken what came before, or items were published."""
        now, sent = self.host.now(), self.meter.counts.items_out
        self.member.flush(now)
        items, self._unsent = self._unsent, 0
        if items:
            self.pace.sent(now)
        busy_s, self._busy_s = self._busy_s + self.host.now() - now, 0.0
        self._worked(busy_s, items, self.meter.counts.items_out - sent)

    def tick(self) -> bool:
        """Four times a second. Returns whether the record may have changed: the producer is not reached."""
        now = self.host.now()
        self.member.tick(now)
        self.member.end_failed(now)
        self._note_children()
        self.policy.tick()
        is_lost = self.seeking.try_again(now)
        self.meter.counts.held_ms, self.meter.counts.outdated_ms = self._freshness.until(self._wall_ms())
        self.meter.tick(now)
        if self.keeping is not None:
            self.keeping.tick(now, self._releasing.watermark, self.member.state.buffer.floor)
        if self._ended_at is not None:
            self.stream_over()
        elif not self.is_unused:
            self._unused_since = None
        elif self._unused_since is None:
            self._unused_since = now
        elif now - self._unused_since >= LINGER_S:
            self._owner.give_up(self, "unused")
        return is_lost

    def _note_children(self) -> None:
        """Tell the policy who has come and gone."""
        children = tuple(self.member.down.live)
        if children == self._children:
            return
        before, self._children = self._children, children
        for child in before:
            if child not in children:
                self.policy.child_went(child)
        for child in children:
            if child not in before:
                self.policy.child_came(child)

    # Leaving

    def begin_leaving(self) -> None:
        """Ask the children to go elsewhere; no new ones are taken."""
        if self.leaving_since is None:
            self.leaving_since = self.host.now()
            self.seeking.search.stop()
            successor = None if self.is_producer else self.policy.successor()
            self.member.move_away(successor)

    def has_left(self) -> bool:
        """Whether the children are gone, or have had their time."""
        since = self.leaving_since
        if since is None:
            return False
        return not self.member.down.children or self.host.now() - since >= DRAIN_S

    def leave(self, *, is_over: bool = False) -> None:
        """Leave the tree now. ``is_over``: the stream has ended, for those below, too."""
        self.seeking.search.stop()
        self.leaving_since = self.host.now()
        if is_over:
            self._releasing.release_all()
        if self.keeping is not None:
            self.keeping.stop(is_over=is_over)
        if is_over:
            self.member.finish(self.host.now())
        self.member.leave(self.host.now())
        self._is_over = True

    def figures(self) -> dict[str, float]:
        """Numbers for ``peerd stream tree`` and metrics."""
        state = self.member.state
        own = {
            **self.meter.figures(),
            "queued_bytes": float(self.queued_bytes()),
            "remembered_bytes": float(state.buffer.bytes),
            "wants": float(len(state.wants)),
        }
        return {**own, **{name: float(value) for name, value in self.policy.figures().items()}}

    def validate(self) -> None:
        """Assert the invariants."""
        self.member.validate()
        assert len(self.member.down.children) <= self.config.fan_out + 1
