"""One node in the tree of one stream: its parent, its children, its own subscriptions, and the stream through it. Pure.

What the edges promise, and why nothing is lost while they change, is on docs/protocols/dissemination-tree.md. In short:
an edge carries, in order, everything after a mark that the child wants. So a child needs to know one mark only, how far
it has come; it changes parents by naming that mark to the new one, and drops what comes twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from peerd.errors import Bug, ProtocolError
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.dissemination import messages
from protocols.dissemination.interests.errors import ItemError
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import START, StreamPosition
from protocols.dissemination.ports import Holder, Interest, InterestKind, ParsedItem
from protocols.dissemination.tree import effects as do
from protocols.dissemination.tree.downstream import Downstream
from protocols.dissemination.tree.latest import LatestItems
from protocols.dissemination.tree.links import EdgeMessage, Intake, Uplink
from protocols.dissemination.tree.matching import Matching, Offload, at_once
from protocols.dissemination.tree.owner import MemberOwner
from protocols.dissemination.tree.past import SLICE_BYTES
from protocols.dissemination.tree.replay import BufferLimits
from protocols.dissemination.tree.second import Places, SecondParent
from protocols.dissemination.tree.state import MemberState, bad_item
from protocols.dissemination.tree.subscription import Delivered, OwnSubscription
from protocols.dissemination.tree.upstream import Upstream


class StreamMember:
    """One node's part in one stream. ``owner``: the node, which looks for parents.

    ``attempts_from``: larger than the number of any attempt of this node in this stream so far, before a restart, too.
    """

    def __init__(
        self,
        me: PeerRef,
        stream: NodeId,
        kind: InterestKind,
        limits: BufferLimits,
        owner: MemberOwner,
        *,
        is_source: bool,
        attempts_from: int = 0,
        offload: Offload = at_once,
    ) -> None:
        self.owner = owner
        self.now = 0.0
        """Set at each call from outside."""
        matching = Matching(kind, offload, self._failed)
        self.state = MemberState(me, stream, kind, limits, owner, matching, is_source=is_source)
        self.up = Upstream(self.state, attempts_from)
        self.down = Downstream(self.state, self.up)
        self.subscriptions: dict[int, OwnSubscription] = {}
        self.latest = LatestItems(self.state, self.down, self.subscriptions)
        self.second = SecondParent(self.state)
        self.places = Places(self.state, self.down.children, self.up)
        self._why_failed = ""
        """Why an interest could not be matched: a defect, which the simulator ends at and a daemon counts."""
        self._waiting: list[do.Need] = []

    # The producer

    def begin_at(self, mark: StreamPosition) -> None:
        """The producer has started (anew), and remembers nothing of what it may have sent before this mark."""
        self.state.watermark = mark
        self.state.buffer.forget(mark)

    def recall(self, floor: StreamPosition, items: Sequence[tuple[StreamItem, float]], now: float) -> None:
        """The producer has started anew, with its past from disk: all after ``floor``, and when each item was kept."""
        self.begin_at(floor)
        state = self.state
        for item, at_s in items:
            state.watermark = item.position
            state.buffer.add(item, at_s)
            if state.last_sent is not None:
                with suppress(ItemError):  # it was refused in the end, when it was published, too
                    self.latest.have(ParsedItem(item, state.kind.content(item)))
        state.buffer.trim(now)

    def publish(self, item: StreamItem, now: float) -> None:
        """The producer's next item; `flush` sends it. Raises `ItemError` for what the kind of interests cannot read."""
        self.release_item(ParsedItem(item, self.state.kind.content(item)), now)

    def release_item(self, parsed: ParsedItem, now: float) -> None:
        """The same for an item that is parsed already."""
        self.now = now
        if parsed.position <= self.state.watermark:
            raise Bug(f"the stream is at {self.state.watermark} already, not before {parsed.position}")
        ids = self.state.matching.match(parsed)  # before anything has changed
        self.latest.have(parsed)
        self.state.watermark = parsed.position
        self._flow(ParsedItem(parsed.item, parsed.content, ids))

    def flush(self, now: float) -> None:
        """Send on what waits, as far as children take it."""
        self.now = now
        self._do(self.down.flush(self.now))

    # Another producer

    def record_changed(self, now: float) -> None:
        """What is of a later term may be checked by now."""
        self.now = now
        for link in (self.up.parent, self.up.next):
            if link is not None and link.intake is Intake.EARLY:
                self._went_on(link, [do.GoOn(link)])

    def has_all(self, interest: Interest, watermark: StreamPosition) -> bool:
        """Whether this node has had all of the stream up to a mark. ``interest``: in everything, which it holds.

        A parent that begins anew has yet to send what it has of each object: it has, once it has come to the mark.
        """
        parent, is_whole = self.up.parent, self.state.wants.is_answered([interest.id])
        return is_whole and parent is not None and min(parent.watermark, self.state.watermark) >= watermark

    def has_whole(self, interest: Interest) -> bool:
        """Whether this node has had all of the stream since some mark, up to where it is."""
        return self.state.wants.since(interest.id) is not None

    def become_producer(self, everything: Interest, now: float) -> None:
        """Go on as the producer, with what this node remembers since it has had everything."""
        state = self.state
        self.now = now
        since = state.wants.since(everything.id)
        if since is None:
            raise Bug("a node that has not had all of the stream cannot go on with it")
        state.buffer.forget(since)
        self._do(self.second.leave())
        state.change_role(is_source=True)
        self._do(self.up.at_producer(now))
        state.wants.at_producer(state.buffer.floor)
        self._do(self.latest.freshened(now, is_stale=False))
        self._answered()
        self._do(self.down.flush(self.now))

    def begin_again_at(self, mark: StreamPosition, now: float) -> None:
        """This producer goes on behind a mark. What came before that from another one it does not know."""
        state = self.state
        self.now = now
        since, state.watermark = state.watermark, mark
        state.wants.lost(mark)
        self._lost(since, mark)
        self._do(self.down.flush(self.now))

    def become_member(self, successor: NodeId, now: float) -> None:
        """The stream is another's now: go on below it. This node needs a parent."""
        self.now = now
        self.state.change_role(is_source=False)
        self.state.wants.at_member()
        self._do(self.down.remove(successor))
        self._do(self.up.at_member())

    # Subscriptions of this node

    def subscribe(
        self,
        number: int,
        interest: Interest,
        after: StreamPosition | None,
        deliver: Callable[[Delivered], None],
        now: float,
        on_live: Callable[[], None] = lambda: None,
    ) -> None:
        """Want something, from a mark on (``None``: from now on). ``on_live`` is called when it is had."""
        self.now = now
        found = self.subscriptions[number] = OwnSubscription(number, interest, deliver, after, on_live)
        self._need(do.Need(("own", number), found, [interest], after))
        self._do(self.down.flush(self.now))

    def _go_live(self, found: OwnSubscription) -> None:
        if self.subscriptions.get(found.number) is not found:
            return
        state = self.state
        since = state.since([found.interest], found.after)
        # Who begins at the start asks for what is remembered, and has not lost the rest.
        found.watermark = begun = since if found.after is None or found.after == START else found.after
        found.on_live()
        if state.last_sent is not None:
            self.latest.begin(found)
            return
        found.lose(begun, since)
        found.begin_with(state.past(since, [found.interest]), state.buffer.limits.bytes)
        self._look_on(found, SLICE_BYTES)

    def _look_on(self, found: OwnSubscription, bytes_max: int) -> None:
        found.look_on(bytes_max)
        if found.may_look_on:
            self.owner.call_again()

    def go_on(self, now: float) -> None:
        """Look through some more of the past for those who wait for it; soon after `MemberOwner.call_again`."""
        self.now = now
        self._do(self.down.go_on())
        waiting = [each for each in self.subscriptions.values() if each.may_look_on]
        for each in waiting:
            self._look_on(each, SLICE_BYTES // len(waiting))

    def unsubscribe(self, number: int, now: float) -> None:
        """Want it no more."""
        self.now = now
        found = self.subscriptions.pop(number, None)
        if found is not None:
            self._release(("own", number), [found.interest.id])

    def _failed(self, interest: Interest | None, why: str) -> None:
        """An interest cannot be matched. Its subscriptions here end; to a child it counts as met: its node says why."""
        self._why_failed = why
        self.owner.failed(interest, why)
        for each in self.subscriptions.values():
            if interest is not None and each.interest.id == interest.id:
                each.fail(why)

    def end_failed(self, now: float) -> None:
        """Want no more what the subscriptions did that have failed."""
        for each in [each for each in self.subscriptions.values() if each.has_failed]:
            self.unsubscribe(each.number, now)

    # Needs

    def _need(self, need: do.Need) -> None:
        state = self.state
        after = None if state.last_sent is not None else need.after
        for interest in need.interests:
            state.matching.add(interest)
        if state.is_source:
            state.wants.hold(need.holder, need.interests, state.buffer.floor)
        elif asks := state.wants.need(need.holder, need.interests, after, state.buffer.floor):
            self._do(self.up.ask(asks, self.now))
        if state.wants.is_answered(need.ids):
            self._met(need)
        else:
            self._waiting.append(need)

    def _met(self, need: do.Need) -> None:
        if isinstance(need.who, OwnSubscription):
            self._go_live(need.who)
        else:
            self._do(self.down.has(need.who, need, self.now))

    def _release(self, holder: Holder, ids: Sequence[bytes] | None = None, *, is_final: bool = False) -> None:
        """They (or all) are wanted no more. ``is_final``: the holder has said so, and will not come back for them.

        Where only the newest item of an object counts, everything is kept for a while: giving something up changes
        what a node can promise those below it.
        """
        is_final = is_final and self.state.last_sent is None
        if ids is None:
            self._forget(holder)
        if self.state.wants.release(holder, ids, is_final=is_final):
            self.up.released(self.now, is_final=is_final)
        self._waiting = [each for each in self._waiting if each.holder != holder or self._still_wanted(each)]

    def _forget(self, holder: Holder) -> None:
        self._waiting = [each for each in self._waiting if each.holder != holder]

    def _waits_for(self, holder: Holder) -> int:
        return sum(each.holder == holder for each in self._waiting)

    def _still_wanted(self, need: do.Need) -> list[bytes]:
        return [id for id in need.ids if self.state.wants.is_held(id, need.holder)]

    # What is to be done

    def _do(self, effects: Iterable[do.EdgeEffect | do.EdgeAct]) -> None:
        state = self.state
        for effect in effects:
            match effect:
                case do.Send(peer, message):
                    self.owner.send(peer, message)
                case do.TakeItems():
                    self._take(effect)
                case do.GoOn(link):
                    self._do(self.up.go_on(link, self.now))
                case do.EdgeAct.ANSWERED:
                    self._answered()
                case do.EdgeAct.FRESHENED:
                    self._do(self.latest.freshened(self.now, is_stale=self.up.is_stale))
                case do.NewPath(ancestors):
                    state.set_path(ancestors)
                case do.Ended(peer, end, why, others):
                    self.owner.ended(peer, end, why, others)
                case do.EdgeAct.ORPHANED:
                    if self.up.parent is None and self.up.next is None:
                        self.owner.orphaned()
                case do.EdgeAct.UNSETTLED:
                    self.latest.unsettled()
                case do.TakeOver(link, sent):
                    self._take_over(link, sent)
                case do.Blame(link):
                    if link.fault is not None:
                        self._do(self.up.blamed(link, self.now))
                        self.owner.blame(link.peer, link.fault)
                case do.Refuse(error):
                    raise error
                case do.ItemsLost(since, until):
                    self._lost(since, until)
                case do.FellBack(watermark):
                    self._fell_back(watermark)
                case do.ReadAside():
                    self._read_aside(effect)
                case do.EdgeAct.OFFER_ALL:
                    self.latest.offer_all(self.now)
                case do.Need(holder, is_more=is_more):
                    if not is_more:
                        self._forget(holder)
                    self._need(effect)
                case do.Release(holder, ids, is_final):
                    self._release(holder, ids, is_final=is_final)
                case do.HearOut(child):
                    self._do(self.down.hear_out(child, self._waits_for(child.peer.id), self.now))
                case do.Flush(child, past_bytes):
                    self._do(self.down.flush_child(child, self.now, past_bytes=past_bytes))
                case do.EdgeAct.CALL_AGAIN:
                    self.owner.call_again()
                case do.EdgeAct.LOOK_UP:
                    self.owner.look_up()
                case do.EdgeAct.OVER:
                    self.owner.stream_over()

    def _take(self, take: do.TakeItems) -> None:
        state, error, is_next = self.state, take.error, isinstance(take.message, messages.ItemBatch)
        try:
            for item in take.items:
                if take.link.last_sent is not None:  # what a node sends that is to be the parent waits until it is
                    take.link.keep(state.parsed(item))
                elif is_next and item.position > state.watermark:
                    state.watermark = state.proven = item.position
                    self._flow(take.parsed or state.parsed(item))
                else:  # it came from the parent before; or nobody here wanted it until now
                    self._remember(item, take.parsed)
        except ProtocolError as found:
            error = found
        self._do(self.up.taken(take, error, self.now))

    def _flow(self, parsed: ParsedItem) -> None:
        state = self.state
        self.latest.have(parsed)
        state.buffer.add(parsed.item, self.now)
        ids = state.matching.match(parsed)
        children = self.down.flow(parsed, ids)
        own = [each for each in self.subscriptions.values() if each.interest.id in ids]
        own = [each for each in own if state.is_for(each.last_sent, parsed)]
        for subscription in own:
            subscription.give(parsed)
        self.owner.passed(parsed, bool(own), children)

    def _remember(self, item: StreamItem, parsed: ParsedItem | None) -> None:
        if parsed is None and (self.state.last_sent is not None or item.batch is None):
            parsed = self.state.parsed(item)  # what is signed was parsed by its producer
        self.state.buffer.add(item, self.now)
        if self.state.last_sent is not None and parsed is not None:
            self.latest.arrived(parsed, self.now)

    def _take_over(self, link: Uplink, sent: Sequence[ParsedItem]) -> None:
        self.latest.unsettled()
        try:
            for parsed in sent:
                self.latest.arrived(parsed, self.now)
        except ProtocolError as error:
            link.fault = error

    def _read_aside(self, aside: do.ReadAside) -> None:
        state, link = self.state, aside.link

        def done(parsed: ParsedItem) -> None:
            self._went_on(link, self.up.read(aside, parsed, self.now))

        def failed(error: BaseException) -> None:
            if not isinstance(error, ItemError):
                raise error
            link.fault = bad_item(error)
            self._do([do.Blame(link)])

        is_next = isinstance(aside.message, messages.ItemBatch) and aside.item.position > state.watermark
        (state.matching.prepare if is_next else state.matching.read)(aside.item, done, failed)

    def _went_on(self, link: Uplink, effects: do.Effects) -> None:
        """Something was taken in that had held up what a node has sent since."""
        try:
            self._do(effects)
        except ProtocolError as error:  # what is handled now is not its message
            self.owner.blame(link.peer, error)
        self._do(self.down.flush(self.now))
        self._do(self.up.over())

    def _answered(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            ids = self._still_wanted(each)
            if ids and self.state.wants.is_answered(ids):
                self._met(each)
            elif ids:
                self._waiting.append(each)

    def _lost(self, since: StreamPosition, until: StreamPosition) -> None:
        self.state.buffer.forget(until)
        self.owner.lost(since, until)
        self._do(self.down.gap(since, until, self.now))
        for subscription in self.subscriptions.values():
            subscription.lose(since, until)

    def _fell_back(self, watermark: StreamPosition) -> None:
        self._do(self.down.dismiss_all())  # they were told the same, and see it as this node did
        for subscription in self.subscriptions.values():
            subscription.fall_back(watermark)

    # From outside

    def received(self, peer: PeerRef, message: Message, now: float) -> None:
        """A message of this stream. Raises `ProtocolError` for what no correct node sends."""
        self.now = now
        match message:
            case _ if isinstance(message, EdgeMessage):
                self._do(self.up.received(peer, message, now))
            case messages.Ready():
                self._do(self.up.ready(peer, message, now))
            case messages.Declined():
                self._do(self.up.declined(peer, message, now))
            case messages.Climbed():
                self._do(self.up.climbed(message, now))
            case messages.Attach():
                self._do(self.down.attach(peer, message, now))
            case messages.Begin():
                self._do(self.down.begin(peer, message, now))
            case messages.Widen() | messages.Narrow():
                self._do(self.down.asked(peer, message, now))
            case messages.ItemTaken():
                self.down.taken(peer, message)
            case messages.DetachFromParent():
                self._do(self.down.detach(peer, message.attempt))
            case messages.Dismiss():
                self._do(self.up.dismissed(peer, message.attempt, now))
            case messages.MoveAway() if self.up.is_parent(peer, message.attempt):
                self.owner.asked_to_move(message.parents, message.is_successor)
            case messages.StreamEnds():
                self._do(self.up.stream_ends(peer, message.attempt))
            case messages.MoveAway():
                pass  # it has not heard yet that it is not the parent any more
            case messages.Reserve():
                self._do(self.places.asked(peer, message))
            case messages.Reserved():
                self._do(self.second.answered(peer, message, now))
            case messages.Unreserve():
                self.places.released(peer.id)
            case messages.Climb():
                self._do(self.up.climb(message, now))
            case _:
                raise Bug(f"{type(message).__name__} is no message of the tree")
        self._do(self.down.flush(self.now))

    def move_to(self, peer: PeerRef, now: float, instead_of: NodeId | None = None) -> bool:
        """Get another parent, or a first one; whether that has begun. ``instead_of``: a child there that will leave."""
        self.now = now
        effects = self.up.move_to(peer, now, instead_of)
        self._do(effects or [])
        return effects is not None

    def gone(self, peer: NodeId, now: float) -> None:
        """A node is out of reach."""
        self.now = now
        self._do(self.down.remove(peer))
        self._do(self.second.gone(peer, now))
        self.places.released(peer)
        self._do(self.up.gone(peer, now))
        self._do(self.down.flush(self.now))

    def move_away(self, successor: NodeId | None) -> None:
        """Ask the children to go: see `Downstream.move_away`."""
        self._do(self.down.move_away(successor))

    def leave(self, now: float) -> None:
        """Leave the tree. Promoting a child is the policy's part, before this."""
        self.now = now
        self._do(self.second.leave())
        self._do(self.places.leave())
        self._do(self.up.leave())
        self._do(self.down.dismiss_all())

    def finish(self, now: float) -> None:
        """The stream is over: give all what is still there for them."""
        self.now = now
        for subscription in self.subscriptions.values():
            subscription.finish(self.state.watermark)
        self._do(self.down.end_all())

    def tick(self, now: float) -> None:
        """Time has passed: call it a few times a second."""
        self.now = now
        self.state.buffer.trim(now)
        self._do(self.up.tick(now))
        self.go_on(now)
        self._do(self.second.tick(self.up.parent_peer, now, is_moving=self.up.next is not None))
        self._do(self.down.tick(now))
        self._do(self.places.check())
        self._do(self.down.flush(self.now))

    def validate(self) -> None:
        """Assert the invariants."""
        assert not self._why_failed, f"an interest could not be matched: {self._why_failed}"
        self.state.buffer.validate()
        if not self.state.is_source:
            self.state.wants.validate()
        self.up.validate()
        self.down.validate()
        self.places.validate()
