"""The subscriptions of this node's clients: made, changed, read, ended, and brought back after a restart."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from peerd.api import Host, Metric, Part, on_timer
from peerd.errors import Unavailable
from peerd.ids import NodeId
from peerd.lib.admission import NOBODY, Admission
from peerd.lib.feed import Feed, Policy
from peerd.lib.filter import FilterError, Node, write
from peerd.lib.saved import ReadPlaces
from peerd.lib.subscriptions import ClientSubscriptions
from peerd.quantities import format_size
from protocols.pubsub import refusals
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.events import SubscriptionEnded
from protocols.pubsub.matching.filter_work import WORK_BURST_S, WORK_PER_S, price_of
from protocols.pubsub.messages import FILTER_BYTES_MAX, SINCE_RETAINED
from protocols.pubsub.models import ReceivedEvent, SubscriptionRequest, SubscriptionView
from protocols.pubsub.names import EventId
from protocols.pubsub.ports import Schemas, SchemaView
from protocols.pubsub.refusals import QUOTA, WORK, Refusals
from protocols.pubsub.service import NotDone
from protocols.pubsub.subscribing.covering import Covering, Points
from protocols.pubsub.subscribing.inlets import DurableInlet, MemoryInlet
from protocols.pubsub.subscribing.installation import Installation
from protocols.pubsub.subscribing.installer import Installer
from protocols.pubsub.subscribing.local import LocalSubscriptions
from protocols.pubsub.subscribing.saved import SavedSubscription, SavedSubscriptions
from protocols.pubsub.subscribing.subscription import Form, InstallProgress, Subscription, Told

ENDED: Final = "ended"
UNREAD: Final = "nobody reads it"
"""Why subscriptions end that were not refused, as their readers are told."""
CHECK_S: Final = 5.0
"""Between two looks for subscriptions that nobody reads, and for events that are too old."""
AGAIN_MIN_S: Final = 1.0
AGAIN_S: Final = 30.0
"""A subscription that clients use and that was refused, or whose schema was not found, is tried again after the first
of these times; it doubles up to the second."""
DOUBLINGS_MAX: Final = 16
NUMBER_BITS: Final = 63

METRICS: Final = (
    *refusals.METRICS,
    Metric("peerd_pubsub_local_subscriptions", "gauge", "Subscriptions of this node's clients."),
    Metric("peerd_pubsub_subscriptions_damaged_total", "counter", "Durable subscriptions whose file made no sense."),
    Metric("peerd_pubsub_install_probes_total", "counter", "Probes sent to find the leaf of a subscription's piece."),
    Metric("peerd_pubsub_install_seconds", "histogram", "From a subscription to its acknowledgement by all leaves."),
    Metric("peerd_pubsub_replicate_seconds", "histogram", "From a subscription to its replication by all leaves."),
    Metric("peerd_pubsub_gap_seconds", "histogram", "For how long at most a piece was lost before it was renewed."),
    Metric("peerd_pubsub_received_total", "counter", "Events delivered to this node, by subscription.", ("outcome",)),
    Metric("peerd_pubsub_failed_filters_total", "counter", "Filters that could not be tried, and whose owners ended."),
)


class Subscriptions(Part):
    """What clients do about subscriptions. Call `start` once. Methods may raise `NotDone` and `Unavailable` at once."""

    def __init__(
        self,
        host: Host,
        config: PubSubConfig,
        schemas: Schemas,
        installer: Installer,
        local: LocalSubscriptions,
        points: Points,
    ) -> None:
        self._host, self._config, self._schemas = host, config, schemas
        self._installer, self.local = installer, local
        self._covering = Covering(
            host,
            installer,
            local,
            points,
            on_progress=self._progressed,
            on_refused=self._refused,
            on_placed=self._placed,
        )
        self._saved, self._refusals = SavedSubscriptions(host), Refusals(host)
        self._read = ReadPlaces(host.store, self._saved.begun)
        """Up to which number of its feed each durable one has been read."""
        self._placed_before: dict[int, SavedSubscription] = {}
        """Durable subscriptions, by number, that leaves knew before this node was restarted."""
        self._work: Admission[str] = Admission(WORK_PER_S, WORK_BURST_S)
        self._all: ClientSubscriptions[Subscription] = ClientSubscriptions(self._refusal)

    def start(self) -> None:
        """Bring back the durable subscriptions. One that cannot be read is left where it is, and counted."""
        if damaged := self._saved.load(keeps_damaged=True):
            self._host.count("peerd_pubsub_subscriptions_damaged_total", damaged)
        if self._saved:  # else nobody has read anything, and a log is made by being opened
            self._read.load()
        # Those with a place of their own come first: others may be covered by them, as they were.
        for saved in sorted(self._saved.values(), key=lambda saved: not saved.points):
            policy = Policy(saved.policy)
            what = saved.number, saved.schema_name, saved.document
            subscription = Subscription(self, *what, name=saved.name, group=saved.group, policy=policy, since_ms=0)
            subscription.owner = saved.owner
            subscription.was_received = True
            subscription.keep_s, subscription.keep_bytes = saved.keep_s, saved.bytes_max
            try:
                self._open(subscription, saved)
            except Unavailable:  # it is not touched, and may be read after the next start
                self._host.count("peerd_pubsub_subscriptions_damaged_total")
                continue
            if saved.schema_text:
                self._schemas.remember(saved.schema_text)
            if saved.sid is not None and saved.cutoff == self._config.cutoff:
                self._placed_before[subscription.number] = saved
            self.local.expect(subscription, subscription.schema)
            self._begin(subscription)
        self._host.when_over(self._all.let_go)
        self._host.set_timer("subscriptions_check", CHECK_S)

    # What clients ask

    def charge(self, owner: str, filter: object) -> None:
        """Charge a client for a filter that it is going to ask for, by its length, before anybody reads it.

        Twice, as this node indexes it for its clients and perhaps as a leaf.
        """
        if not self._work.take(owner, self._host.now(), 2 * price_of(filter)):
            self._refusals.count(self._host.id, WORK, is_proved=True)
            whose = owner or "clients without a token"
            raise NotDone(
                "quota", f"{whose} had too many new filters read: wait some seconds, and ask for fewer at once"
            )

    def subscribe(
        self,
        request: SubscriptionRequest,
        on_done: Callable[[Told], None],
        owner: str = "",
        *,
        is_bounded: bool = False,
    ) -> SubscriptionView:
        """Subscribe. Events may come from now on; ``on_done`` is called when they surely do (``received``). A
        durable one that exists already, with the same wishes, is that one.

        ``is_bounded``: the owner may have ``owner_share`` of what there is room for, and no more.
        """
        if (known := self._all.known(request.name, owner)) is not None:
            self._check_same(known, request)
            if known.was_received and known.current is not None:
                on_done(self.view(known))
            else:
                known.waiting.append(self._checked(known, request, on_done))
            return self.view(known)
        self._all.check_room(self._config.subscriptions_local)
        if is_bounded:
            self._check_share(request, owner)
        since_ms = max(1, round((self._host.wall_time() - request.since_s) * 1000)) if request.since_s else 0
        if request.retained:
            since_ms = SINCE_RETAINED
        subscription = Subscription(
            self,
            self._host.rng.getrandbits(NUMBER_BITS),
            request.schema_name,
            request.filter,
            name=request.name,
            group=request.group,
            policy=Policy(request.policy),
            since_ms=since_ms,
            owner=owner,
        )
        subscription.waiting.append(on_done)
        if request.name:
            saved = self._saved_new(subscription, request)
            subscription.keep_s, subscription.keep_bytes = saved.keep_s, saved.bytes_max
            try:
                self._open(subscription, saved)
            except Unavailable:
                self._saved.remove(subscription.name)
                raise
        else:
            items, size = request.items_max or self._config.feed_items, request.bytes_max or self._config.feed_bytes
            bounds = min(items, self._config.feed_items), min(size, self._config.feed_bytes)
            subscription.inlet = MemoryInlet(self._host.new_epoch(), *bounds)
        self._enter(subscription)
        self._begin(subscription)
        return self.view(subscription)

    def change(self, id: str, filter: object, on_done: Callable[[Told], None]) -> None:
        """Give a subscription another filter, which takes the place of the old one when all leaves have it."""
        subscription = self.get(id)
        old = subscription.current
        if old is None or subscription.coming is not None:
            raise Unavailable("the subscription is being installed or changed; try again when that is done")
        try:
            form = self._form(subscription, self._schemas.get(subscription.schema) or old.schema, filter)
        except NotDone as error:
            self._change_again(id, filter, on_done, error)
            return
        subscription.coming, subscription.waiting_change = form, on_done
        self._covering.place(form)

    def _change_again(self, id: str, filter: object, on_done: Callable[[Told], None], error: NotDone) -> None:
        """The filter does not fit the schema that is known; a later version may have what it names."""

        def looked(is_later: bool) -> None:
            if not is_later:
                on_done(error)
                return
            try:
                self.change(id, filter, on_done)
            except (NotDone, Unavailable) as why:
                on_done(why)

        self._schemas.look_again(self.get(id).schema, looked)

    def end(self, id: str) -> SubscriptionView:
        """End a subscription; nothing comes to its readers from now on."""
        subscription = self.get(id)
        self._saved.remove(subscription.name)
        self._end(subscription, ENDED)
        return self.view(subscription)

    def end_failed(self, subscription: Subscription, why: str) -> None:
        """Its filter cannot be tried on an event: it ends, and its readers are told why."""
        if not subscription.is_ending:
            reason = f"its filter could not be tried on an event, which is a defect of peerd: {why}"
            self._end(subscription, reason)

    def reading(self, id: str) -> tuple[SubscriptionView, Feed[ReceivedEvent]]:
        """A subscription and its feed."""
        subscription = self.get(id)
        return self.view(subscription), subscription.feed

    def continued(self, request: SubscriptionRequest, epoch: str) -> str | None:
        """The id of the subscription without a name whose stream has this epoch, if it is what is asked for now."""
        found = self._all.of_feed(epoch)
        if found is None or found.name or found.current is None:
            return None
        if (found.schema, found.group, found.policy.value) != (request.schema_name, request.group, request.policy):
            return None
        text = self._parsed(found.current.schema, request.filter)[1]
        return found.id if text == found.current.text else None

    def views(self) -> list[SubscriptionView]:
        """The subscriptions of this node's clients, oldest first."""
        return [self.view(subscription) for subscription in self._all]

    def get(self, id: str) -> Subscription:
        """Return a subscription by its id, or by its name if it is durable. Raises `NotDone`."""
        return self._all.get(id)

    def view_of(self, id: str) -> SubscriptionView:
        """One of them, by its id, or by its name if it is durable."""
        return self.view(self.get(id))

    def view(self, subscription: Subscription) -> SubscriptionView:
        """What clients see of it."""
        form = subscription.current
        placement = None if form is None else form.placement
        return subscription.view(0 if placement is None else len(placement.numbers))

    def all(self) -> list[Subscription]:
        """All of them, in the order in which they were made."""
        return list(self._all)

    def of_schema(self, schema: str) -> list[Subscription]:
        """The subscriptions to events of one schema."""
        return [subscription for subscription in self._all if subscription.schema == schema]

    def pieces(self, subscription: Subscription) -> list[Installation]:
        """The pieces of a subscription that are, or will be, in leaves."""
        placement = None if subscription.current is None else subscription.current.placement
        return [] if placement is None else self._installer.pieces(placement)

    # Time

    @on_timer("subscriptions_check")
    def on_subscriptions_check(self, payload: None) -> None:
        """End what nobody reads; let go of what is too old; write how far readers of durable ones have come."""
        now_ms = self._now_ms()
        for subscription in self._all:
            if subscription.name:
                with suppress(Unavailable):  # the disk may answer the next time
                    subscription.inlet.expire(max(0, now_ms - subscription.keep_s * 1000))
        self._read.note({each.name: str(each.feed.taken) for each in self._all if each.name})
        for subscription in self._all.unread(self._host.now(), self._config.unread_for):
            self._end(subscription, UNREAD)
        self._host.set_timer("subscriptions_check", CHECK_S)

    @on_timer("subscription_again")
    def on_subscription_again(self, id: str) -> None:
        """Try again what was refused, or could not begin."""
        subscription = self._all.by_id.get(id)
        if subscription is None:
            return
        if subscription.current is None:
            self._begin(subscription)
        else:
            self._covering.place(subscription.current)

    # Beginning

    def _now_ms(self) -> int:
        return round(self._host.wall_time() * 1000)

    def _enter(self, subscription: Subscription) -> None:
        self._all.add(subscription)
        self._host.gauge("peerd_pubsub_local_subscriptions", len(self._all))

    def is_leaf(self, subscription: Subscription, node: NodeId) -> bool:
        """Whether a node has a piece of it, or of what covers it, as far as is known here."""
        form = subscription.current
        if form is not None and form.cover is not None:
            form = form.cover
        placement = None if form is None else form.placement
        pieces = [] if placement is None else self._installer.pieces(placement)
        return node == self._host.id or any(
            piece.place is not None and piece.place.owner.id == node for piece in pieces
        )

    def _check_same(self, known: Subscription, request: SubscriptionRequest) -> None:
        """Raise `NotDone` if somebody wants something else under a name that is taken."""
        is_same = (known.schema, known.group) == (request.schema_name, request.group)
        is_same &= request.keep_s in (None, known.keep_s) and request.keep_bytes in (None, known.keep_bytes)
        if is_same and known.current is not None:  # before that its filter cannot be compared
            is_same = self._parsed(known.current.schema, request.filter)[1] == known.current.text
        if not is_same:
            raise NotDone("conflict", f"there is another subscription named {known.name}; change or end that one")

    def _checked(
        self, known: Subscription, request: SubscriptionRequest, on_done: Callable[[Told], None]
    ) -> Callable[[Told], None]:
        """Return a callback that first looks whether the subscription is the one that was meant."""

        def done(told: Told) -> None:
            try:
                self._check_same(known, request)
            except NotDone as error:
                told = error
            on_done(told)

        return done

    def _parsed(self, schema: SchemaView, document: object) -> tuple[Node, str]:
        """Read a filter, and write it in the one form that equal ones have. Raises `NotDone`."""
        try:
            node = schema.parse_filter(document)
        except FilterError as error:
            self._refusals.count(self._host.id, error, is_proved=True)
            raise NotDone("invalid", str(error)) from error
        text = write(node)
        if len(text.encode()) > FILTER_BYTES_MAX:
            raise NotDone("invalid", f"the filter has {len(text.encode())} bytes, limit {FILTER_BYTES_MAX}")
        return node, text

    def _check_share(self, request: SubscriptionRequest, owner: str) -> None:
        """Raise `NotDone` if an owner would have more than its share, so that nobody uses up what is for all."""
        config = self._config
        self._all.check_share(owner, config.subscriptions_local, config.owner_share, " (owner_share)")
        aside, room = self._saved.bytes_of(owner), int(config.owner_share * config.durable_total)
        if request.name and aside + self._bytes_max(request) > room:
            raise self._refusal(
                "quota",
                f"durable subscriptions of {owner or NOBODY} have {format_size(aside)} of the {format_size(room)} "
                "that are for one (owner_share): end some, or ask for less than "
                f"{format_size(self._bytes_max(request))} (keep_bytes)",
            )

    def _refusal(self, kind: str, why: str) -> NotDone:
        """What is raised where clients ask for more than they may have, or for what is not theirs."""
        if kind == "quota":
            self._refusals.count(self._host.id, QUOTA, is_proved=True)
        return NotDone(kind, why)

    def _bytes_max(self, request: SubscriptionRequest) -> int:
        return request.keep_bytes or request.bytes_max or self._config.durable_bytes

    def _saved_new(self, subscription: Subscription, request: SubscriptionRequest) -> SavedSubscription:
        bytes_max = self._bytes_max(request)
        slot, log = self._saved.free_for(bytes_max, self._config.durable_total)
        saved = SavedSubscription(
            number=subscription.number,
            name=subscription.name,
            schema_name=subscription.schema,
            document=subscription.document,
            group=subscription.group,
            policy=request.policy,
            bytes_max=bytes_max,
            keep_s=request.keep_s or round(self._config.durable_age),
            slot=slot,
            base=log.next - 1,
            owner=subscription.owner,
        )
        self._saved.save(saved.name, saved)
        return saved

    def _open(self, subscription: Subscription, saved: SavedSubscription) -> None:
        """Open the log of a durable subscription, and remember what is in it, so that nothing is taken twice."""
        number, window = subscription.number, self.local.window

        def failed(event: EventId) -> None:
            window.forget(event, number)
            subscription.delivered -= 1  # it comes again

        log, base = self._saved.log_of(saved)
        read = int(self._read.get(saved.name, saved.read))
        inlet = DurableInlet(log, base, number, saved.bytes_max, failed, self._now_ms, read)
        for loss in inlet.losses:
            subscription.count_lost(loss)
        for event in inlet.take_known():
            window.note(event, (*(window.given(event) or ()), number))
        subscription.inlet = inlet
        self._enter(subscription)

    def _begin(self, subscription: Subscription) -> None:
        """Look up its schema, and install it."""

        def fetched(schema: SchemaView | None, why_not: str) -> None:
            if subscription.is_ending or subscription.current is not None:
                return
            if schema is None:
                self._cannot_begin(subscription, NotDone("unknown", why_not))
                return
            try:
                form = self._form(subscription, schema, subscription.document)
            except NotDone as error:
                self._begin_again(subscription, error)
                return
            subscription.current, subscription.document, subscription.detail = form, form.text, ""
            self.local.expect_no_more(subscription)
            form.entry = self.local.add(subscription, schema, form.sid, form.text, is_current=True)
            self._covering.place(form)

        self._schemas.fetch(subscription.schema, fetched)

    def _begin_again(self, subscription: Subscription, error: NotDone) -> None:
        """The filter does not fit the schema that is known; a later version may have what it names."""

        def looked(is_later: bool) -> None:
            if is_later and not subscription.is_ending:
                self._begin(subscription)
            elif not subscription.is_ending:
                self._cannot_begin(subscription, error)

        self._schemas.look_again(subscription.schema, looked)

    def _form(self, subscription: Subscription, schema: SchemaView, document: object) -> Form:
        """A filter with an entry of its own, if it is not the first. Raises `NotDone`."""
        node, text = self._parsed(schema, document)
        before = self._placed_before.pop(subscription.number, None)
        if before is not None and before.sid is not None:
            form = Form(subscription, schema, node, text, before.sid, before.points)
        else:
            form = Form(subscription, schema, node, text, self._host.rng.getrandbits(NUMBER_BITS))
        if subscription.current is not None:
            form.entry = self.local.add(subscription, schema, form.sid, text, is_current=False)
        return form

    def _cannot_begin(self, subscription: Subscription, error: NotDone) -> None:
        """A new subscription fails. One that clients rely on is tried again: the ring may just be out of reach."""
        subscription.detail = str(error)
        if subscription.was_received:
            self._try_again(subscription)
        else:
            self._fail(subscription, error)

    def _try_again(self, subscription: Subscription) -> None:
        pause_s = min(AGAIN_S, AGAIN_MIN_S * 2**subscription.failures)
        subscription.failures = min(subscription.failures + 1, DOUBLINGS_MAX)
        self._host.cancel_timer("subscription_again", subscription.id)
        self._host.set_timer("subscription_again", pause_s, subscription.id)

    # What comes of it

    def _progressed(self, form: Form) -> None:
        """A filter has come further. Its client is told when it can outlive the roots of its leaves, not before."""
        if form.progress is not InstallProgress.REPLICATED:
            return
        subscription = form.subscription
        if form is subscription.coming:
            self._switch(subscription, form)
        elif form is subscription.current:
            subscription.was_received, subscription.detail, subscription.failures = True, "", 0
            waiting, subscription.waiting = subscription.waiting, []
            for on_done in waiting:
                on_done(self.view(subscription))

    def _placed(self, form: Form) -> None:
        """Its pieces set out: after a restart they are to be found under the same numbers, in the same places."""
        subscription = form.subscription
        if subscription.name and form is subscription.current:
            with suppress(Unavailable):  # then they lapse, and new ones take their place
                self._saved.change(subscription.name, **self._places(form))

    def _places(self, form: Form) -> dict[str, Any]:
        """What is on disk of a filter besides its text."""
        schema_text = self._schemas.written(form.schema.name)
        is_placed = form.placement is not None
        sid, points = (form.sid, tuple(form.points)) if is_placed else (None, ())
        return {"schema_text": schema_text, "sid": sid, "points": points, "cutoff": self._config.cutoff}

    def _switch(self, subscription: Subscription, form: Form) -> None:
        """The new filter is installed everywhere: from this moment on it decides, and the old one leaves the ring."""
        old = subscription.current
        assert old is not None
        if subscription.name:
            try:
                self._saved.change(subscription.name, document=form.text, **self._places(form))
            except Unavailable as error:
                self._drop_change(subscription, error)
                return
        subscription.current, subscription.coming, subscription.document = form, None, form.text
        for each, is_current in ((form, True), (old, False)):
            if each.entry is not None:
                each.entry.is_current = is_current
        self._covering.leave(old)
        on_done, subscription.waiting_change = subscription.waiting_change, None
        if on_done is not None:
            on_done(self.view(subscription))

    def _drop_change(self, subscription: Subscription, error: Exception) -> None:
        """The new filter will not be: the old one stays."""
        form, subscription.coming = subscription.coming, None
        on_done, subscription.waiting_change = subscription.waiting_change, None
        if form is not None:
            self._covering.leave(form)
        if on_done is not None:
            on_done(error)

    def _refused(self, form: Form, why: str) -> None:
        subscription = form.subscription
        if form is subscription.coming:
            self._drop_change(subscription, NotDone("quota", why))
        elif form is subscription.current and subscription.was_received:
            subscription.detail = why
            self._try_again(subscription)
        elif form is subscription.current:
            self._fail(subscription, NotDone("quota", why))

    def _fail(self, subscription: Subscription, error: NotDone) -> None:
        waiting, subscription.waiting = subscription.waiting, []
        self._end(subscription, str(error))
        for on_done in waiting:
            on_done(error)

    # Its end

    def _end(self, subscription: Subscription, reason: str) -> None:
        if subscription.name:
            with suppress(Unavailable):  # then it comes back after the next start, and is ended again
                self._saved.remove(subscription.name)
            self._read.pop(subscription.name, None)
        self._all.remove(subscription)
        self._host.gauge("peerd_pubsub_local_subscriptions", len(self._all))
        self._host.cancel_timer("subscription_again", subscription.id)
        subscription.is_ending = True
        self.local.expect_no_more(subscription)
        subscription.feed.end(reason, is_final=True)
        subscription.inlet.close()
        self._drop_change(subscription, NotDone("unknown", reason))
        if (form := subscription.current) is not None:
            self._covering.end(form)
        outcome = {ENDED: "ended", UNREAD: "expired"}.get(reason, "refused")
        self._host.emit(SubscriptionEnded(subscription=subscription.id, outcome=outcome))
        waiting, subscription.waiting = subscription.waiting, []
        for on_done in waiting:
            on_done(NotDone("unknown", reason))
