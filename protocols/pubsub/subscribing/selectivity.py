"""Which attribute's tree a subscription is kept in, by what events there are: it moves where another is far better.

For each schema that clients of this node subscribe to, the root of the tree `EVERY` is asked now and then where the
newest events lay (`samples`). What is installed from then on goes to the attribute of whose events the
fewest come by. What is installed already is given another place if `MOVE_FACTOR` times as many events come by as there:
by the same steps as a change of its filter, so that no event is lost or comes twice.

Members of a group have to agree on the leaf. They do not see the same sample, so groups stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from peerd.api import Host, LookupResult, Metric, Part, handles, on_timer
from peerd.errors import ProtocolError, Unavailable
from peerd.lib.filter import Node
from peerd.messages import Message, PeerRef
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering.history import EventHistory
from protocols.pubsub.names import EVERY, Tree, key_of
from protocols.pubsub.ports import Here, PiecePoint, Schemas, SchemaView
from protocols.pubsub.schema.event_schema import EventSchema
from protocols.pubsub.subscribing.installer import Installer
from protocols.pubsub.subscribing.pieces import Span, joined, pieces_of
from protocols.pubsub.subscribing.samples import SAMPLE_MIN, EventSample, EventShares, SampleQuestion, sample_of
from protocols.pubsub.subscribing.subscription import Form, InstallProgress, Subscription
from protocols.pubsub.subscribing.subscriptions import Subscriptions
from protocols.pubsub.tree.cells import SIDE, WHOLE, cell_at
from protocols.pubsub.tree.rendezvous import Rendezvous

MOVE_FACTOR: Final = 4.0
"""A subscription moves when so many times as many events come by as would in the best place."""
ASK_MIN_S: Final = 15.0
ASK_MAX_S: Final = 600.0
"""Between two questions about one schema: it doubles while nothing has to move."""
ASK_FEW_S: Final = 60.0
"""But it is no longer than this until there have been enough events: subscriptions are often made long before them."""
ASK_TIMEOUT_S: Final = 5.0
MOVES_AT_ONCE: Final = 16
"""So many subscriptions of a schema begin to move after one look; the next is after `ASK_MIN_S`."""
SCHEMAS_MAX: Final = 64
"""Schemas whose samples are remembered; of more, those that were learnt first are forgotten."""
ANSWER_AGE_S: Final = 5.0
"""This node looks at its own history again after so long: until then whoever asks gets the same answer."""
DEPTH_MAX: Final = 8
"""Where the whole square of the tree `EVERY` is no leaf, leaves are looked for down to this level."""

METRICS: Final = (
    Metric("peerd_pubsub_moved_total", "counter", "Subscriptions that moved to another attribute's tree."),
)


@dataclass(slots=True)
class _Known:
    """What is known about the events of one schema."""

    pause_s: float = ASK_MIN_S
    due_s: float = 0.0
    depth: int = 0
    """The level at which a leaf of the tree `EVERY` is looked for."""
    shares: EventShares | None = None


class Selectivity(Part):
    """Asks for samples, answers such questions, and has subscriptions moved. ``subscriptions`` is set later."""

    subscriptions: Subscriptions

    def __init__(
        self,
        host: Host,
        config: PubSubConfig,
        schemas: Schemas,
        rendezvous: Rendezvous,
        installer: Installer,
        history: EventHistory,
    ) -> None:
        self._host, self._config, self._installer = host, config, installer
        self._schemas, self._rendezvous, self._history = schemas, rendezvous, history
        self._known: dict[str, _Known] = {}
        self._answers: dict[str, tuple[float, EventSample]] = {}
        self._is_armed = False

    def points(self, schema: SchemaView, node: Node, group: str) -> Sequence[PiecePoint]:
        """Where a filter is kept if it is placed now; ``group`` may be empty."""
        assert isinstance(schema, EventSchema)
        shares = None if group else self._shares(schema.name)
        share = None if shares is None else shares.of
        return pieces_of(schema, node, self._config, self._host.rng.randrange, group, share)

    def _shares(self, schema: str) -> EventShares | None:
        """What is known about a schema's events; whoever asks has a subscription, so that more will be found out."""
        if self._config.base_attribute != "selective":
            return None
        if schema not in self._known:
            while len(self._known) >= SCHEMAS_MAX:
                del self._known[next(iter(self._known))]
            self._known[schema] = _Known(due_s=self._host.now() + ASK_MIN_S)
            self._arm()
        return self._known[schema].shares

    def _arm(self) -> None:
        if not self._is_armed and self._known:
            self._is_armed = True
            self._host.set_timer("selectivity_look", ASK_MIN_S * (0.5 + self._host.rng.random()))

    @on_timer("selectivity_look")
    def on_look(self, payload: None) -> None:
        """Ask about the schemas that are due, as long as there are subscriptions that may move."""
        self._is_armed = False
        now = self._host.now()
        for schema, known in list(self._known.items()):
            if not self._movable(schema):
                del self._known[schema]
            elif known.due_s <= now:
                known.due_s = now + known.pause_s
                self._ask(schema, known)
        self._arm()

    def _movable(self, schema: str) -> list[Subscription]:
        """The subscriptions that have a place of their own which is theirs to choose."""
        return [each for each in self.subscriptions.of_schema(schema) if each.current is not None and not each.group]

    # Asking

    def _ask(self, schema: str, known: _Known) -> None:
        cell = WHOLE if not known.depth else cell_at(self._host.rng.randrange(SIDE // 2), SIDE - 1, known.depth)

        def found(result: LookupResult) -> None:
            if result.root is None:
                return
            if result.root.id == self._host.id:
                self._told(schema, self._answer(schema))
            else:
                self._host.request(result.root, SampleQuestion(schema), ASK_TIMEOUT_S, replied, lambda: None)

        def replied(reply: Message, source: PeerRef) -> None:
            if not isinstance(reply, EventSample):
                raise ProtocolError("wrong_answer", f"{type(reply).__name__} does not answer SampleQuestion")
            self._told(schema, reply)

        try:
            self._host.lookup(key_of(Tree(schema, EVERY), cell), found, ASK_TIMEOUT_S)
        except Unavailable:
            return  # too many are under way; it is asked again later

    @handles(SampleQuestion)
    def on_question(self, message: SampleQuestion, source: PeerRef) -> EventSample:
        """Say what this node has seen."""
        return self._answer(message.schema)

    def _answer(self, schema: str) -> EventSample:
        now = self._host.now()
        made_at, answer = self._answers.get(schema, (now - ANSWER_AGE_S, None))
        if answer is not None and now - made_at < ANSWER_AGE_S:
            return answer
        tree = Tree(schema, EVERY)  # the whole square is a leaf also where nothing is kept in it
        sees_all = self._rendezvous.entries(tree) or self._rendezvous.decide(tree, WHOLE, None, vouched=False) == Here()
        view = self._schemas.get(schema) if sees_all else None
        if view is None:
            return EventSample(schema, 0)
        found = sample_of(view, self._history)
        self._answers.pop(schema, None)
        self._answers[schema] = now, found
        while len(self._answers) > SCHEMAS_MAX:
            del self._answers[next(iter(self._answers))]
        return found

    # Moving

    def _told(self, schema: str, sample: EventSample) -> None:
        known = self._known.get(schema)
        if known is None:
            return
        if not sample.attributes:
            known.depth = (known.depth + 1) % (DEPTH_MAX + 1)
        moved, longest_s = 0, ASK_FEW_S
        if sample.events >= SAMPLE_MIN:
            longest_s = ASK_MAX_S
            known.shares = EventShares(sample)
            for subscription in self._movable(schema):
                if moved < MOVES_AT_ONCE and self._is_misplaced(subscription.current, known.shares):
                    moved += self._move(subscription)
        known.pause_s = ASK_MIN_S if moved else min(2 * known.pause_s, longest_s)
        known.due_s = self._host.now() + known.pause_s

    def _is_misplaced(self, form: Form | None, shares: EventShares) -> bool:
        if form is None or form.placement is None or form.progress is not InstallProgress.REPLICATED:
            return False
        subs = [piece.sub for piece in self._installer.pieces(form.placement)]
        now = shares.cost(_ranges((sub.attribute, sub.low, sub.high) for sub in subs))
        points = self.points(form.schema, form.node, "")
        best = shares.cost(_ranges((point.attribute, point.low, point.high) for point in points))
        return bool(subs) and bool(points) and now >= MOVE_FACTOR * best

    def _move(self, subscription: Subscription) -> bool:
        form = subscription.current
        assert form is not None
        try:
            self.subscriptions.change(subscription.id, form.text, lambda told: None)
        except Unavailable:  # its client is changing it
            return False
        self._host.count("peerd_pubsub_moved_total")
        return True


def _ranges(points: Iterable[tuple[int, int, int]]) -> dict[int, list[Span]]:
    """The ranges of each attribute, joined."""
    found: dict[int, list[Span]] = {}
    for attribute, low, high in points:
        found.setdefault(attribute, []).append((low, high))
    return {attribute: joined(spans) for attribute, spans in found.items()}
