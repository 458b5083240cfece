"""The service of streams without a ring: it notes what it is asked, and the test answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peerd.api import Plugin, Value
from peerd.lib.feed import Feed
from protocols.dissemination.documents.drafts import DocumentDraft
from protocols.dissemination.documents.manifest import Attachment
from protocols.dissemination.front.http import router
from protocols.dissemination.models import (
    DocumentView,
    ItemPublished,
    PastMove,
    PlannedMove,
    ReceivedItem,
    StreamHistoryView,
    StreamPlanView,
    StreamSpec,
    StreamSubscriptionRequest,
    StreamSubscriptionView,
    StreamTreeNode,
    StreamTreeView,
    StreamView,
)
from protocols.dissemination.service import StreamRefused

PRODUCER, INNER, LEAF, OTHER = ("aa" * 16, "bb" * 16, "cc" * 16, "dd" * 16)


def node(id: str, parent: str | None, depth: int, **figures: float) -> StreamTreeNode:
    """A node of the tree; the producer wants nothing for itself."""
    return StreamTreeNode(
        node=id,
        address=f"10.0.0.{depth}:7420",
        parent=parent,
        depth=depth,
        interests=[] if parent is None else ["price > 20", "", f"symbol = '{'X' * 60}'"],
        children=0,
        fan_out=6,
        figures=figures,
    )


TREE = StreamTreeView(
    stream="news",
    policy="overlap",
    nodes=[
        node(PRODUCER, None, 0, items_per_s=12.0, bytes_per_s=2048.0),
        node(INNER, PRODUCER, 1, spurious_share=0.25, moves=3.0),
        node(LEAF, INNER, 2, spurious_share=0.05),
        node(OTHER, PRODUCER, 1),
    ],
    missing=[],
)
PLANNED = PlannedMove(what="move", node=LEAF, from_parent=INNER, to_parent=PRODUCER, gain=0.125, unit="spurious share")
PAST = PastMove(
    at_ms=1_760_000_000_000,
    what="move",
    node=LEAF,
    from_parent=None,
    to_parent=INNER,
    predicted=0.5,
    measured=None,
    unit="spurious share",
)


def item(number: int, payload: str = "", type: Any = "item", **more: Any) -> ReceivedItem:
    """An item as a subscriber gets it."""
    return ReceivedItem(
        type=type,
        stream="news",
        id=f"7-{number}",
        payload=payload or f"item {number}",
        content_type="text/plain",
        **more,
    )


class NoDocuments:
    """As `protocols.dissemination.documents.drafts.Documents`: there are none, and none is taken."""

    def draft(
        self, stream: str, size: int, name: str, content_type: str, payload: bytes | None = None, payload_type: str = ""
    ) -> DocumentDraft:
        """Refuse it."""
        raise StreamRefused("quota", "there is no room")

    def documents(self) -> list[DocumentView]:
        """Return nothing."""
        return []

    def document(self, id: str) -> DocumentView:
        """Refuse it."""
        raise StreamRefused("unknown", f"there is no document {id}")

    def read(self, id: str, chunk: int, on_done: Callable[[Value | Exception], None]) -> None:
        """Refuse it."""
        self.document(id)


class FakeStreams(Plugin):
    """All parts of `Dissemination` that clients use in one. ``refusal`` is raised by whatever is asked."""

    name = "dissemination"
    router = staticmethod(router)

    def __init__(self) -> None:
        super().__init__(self.Config())
        self.calls: list[tuple[str, Any]] = []
        self.owners: dict[str, str] = {}
        self.full: set[str] = set()
        self.changes = self.publishers = self.subscribing = self.questions = self.produced = self.clients = self
        self.documents = NoDocuments()
        self.refusal: Exception | None = None
        self.refused_item: Callable[[bytes], Exception | None] = lambda payload: None
        self.items: list[tuple[bytes, str]] = []
        self.is_kept: bool | Exception = False
        self.feed: Feed[ReceivedItem] = Feed("fake.1")
        self.view = StreamView(
            name="news",
            kind="attributes",
            policy="overlap",
            settings={"fan_out": 6},
            producer=PRODUCER,
            role="producer",
            position="7-3",
            parent=None,
            depth=0,
            children=2,
            subscriptions=1,
        )
        self.held: list[StreamSubscriptionView] = []
        self.note = ""
        self.answered_tree = TREE
        self.moves: tuple[list[PlannedMove], list[PastMove]] = ([PLANNED], [PAST])

    def _note(self, name: str, argument: Any) -> None:
        self.calls.append((name, argument))
        if self.refusal is not None:
            raise self.refusal

    def asked(self, name: str) -> list[Any]:
        """The arguments of all calls of a method."""
        return [argument for called, argument in self.calls if called == name]

    def when_kept(self, name: str, on_done: Callable[[bool | Exception], None]) -> None:
        """As `is_kept` says."""
        self.calls.append(("when_kept", name))
        on_done(self.is_kept)

    def owner_of(self, name: str) -> str:
        """As the test says."""
        return self.owners.get(name, "")

    def create(self, spec: StreamSpec, on_done: Callable[[StreamView | Exception], None], owner: str = "") -> None:
        """Done."""
        self._note("create", spec)
        self.owners.setdefault(spec.name, owner)
        on_done(self.view.model_copy(update=spec.model_dump(include={"name", "kind", "policy", "settings"})))

    def remove(self, name: str, on_done: Callable[[StreamView | Exception], None]) -> None:
        """Done."""
        self._note("remove", name)
        on_done(self._known(name))

    def hand_over(self, name: str, to: str, on_done: Callable[[StreamView | Exception], None]) -> None:
        """Done."""
        self._note("hand_over", (name, to))
        known = self._known(name)
        on_done(known.model_copy(update={"producer": to}) if isinstance(known, StreamView) else known)

    def streams(self) -> list[StreamView]:
        """One."""
        return [self.view]

    def find(self, name: str, on_done: Callable[[StreamView | Exception], None]) -> None:
        """Only news."""
        self._note("find", name)
        on_done(self._known(name))

    def _known(self, name: str) -> StreamView | Exception:
        return self.view if name == "news" else StreamRefused("unknown", f"there is no stream {name}")

    def publish(
        self,
        name: str,
        payload: bytes,
        content_type: str = "",
        published_ms: int | None = None,
        attachment: Attachment | None = None,
    ) -> ItemPublished:
        """Taken, unless the test refuses it."""
        if (refused := self.refused_item(payload)) is not None:
            raise refused
        self.items.append((payload, content_type))
        return ItemPublished(stream=name, id=f"7-{len(self.items)}", bytes=len(payload))

    def is_publishable(self, name: str) -> bool:
        """Have it asked with `when_publishable`."""
        return False

    def when_publishable(self, name: str, on_done: Callable[[bool | Exception], None]) -> None:
        """At once, for a stream that there is."""
        known = self._known(name)
        on_done(known if isinstance(known, Exception) else self.refusal or True)

    def subscribe(
        self,
        request: StreamSubscriptionRequest,
        on_done: Callable[[StreamSubscriptionView | Exception], None],
        *,
        is_bounded: bool = False,
    ) -> None:
        """Another subscription of the one feed; a name that is known gives the same one."""
        self._note("subscribe", request)
        for each in self.held:
            if request.name and each.name == request.name:
                on_done(each)
                return
        if is_bounded and request.owner in self.full:
            raise StreamRefused("quota", f"{request.owner} has 1 subscriptions here, the limit for one")
        view = StreamSubscriptionView(
            id=f"s{len(self.held) + 1}",
            stream=request.stream,
            kind=self.view.kind,
            interest=request.interest,
            name=request.name,
            epoch=self.feed.epoch,
            state="live",
            received=self.feed.last,
            missed_gaps=0,
            note=self.note,
        )
        self.held.append(view)
        on_done(view)

    def subscriptions(self) -> list[StreamSubscriptionView]:
        """Those that were made."""
        return list(self.held)

    def unsubscribe(self, id: str) -> StreamSubscriptionView:
        """Done."""
        self._note("unsubscribe", id)
        [ended] = [each for each in self.held if each.id == id]
        self.held.remove(ended)
        return ended.model_copy(update={"state": "ended"})

    def reading(self, id: str) -> tuple[StreamSubscriptionView, Feed[ReceivedItem]]:
        """The one feed."""
        self._note("reading", id)
        found = next((each for each in self.held if id in (each.id, each.name)), None)
        if found is None:
            raise StreamRefused("unknown", f"there is no subscription {id!r} on this node")
        return found, self.feed

    def tree(self, name: str, on_done: Callable[[StreamTreeView | Exception], None]) -> None:
        """A tree of four nodes."""
        self._note("tree", name)
        on_done(self.answered_tree)

    def plan(self, name: str, on_done: Callable[[StreamPlanView | Exception], None]) -> None:
        """One move."""
        self._note("plan", name)
        on_done(StreamPlanView(stream=name, policy="overlap", moves=self.moves[0]))

    def history(self, name: str, on_done: Callable[[StreamHistoryView | Exception], None]) -> None:
        """One move."""
        self._note("history", name)
        on_done(StreamHistoryView(stream=name, policy="overlap", moves=self.moves[1]))
