"""What the running plugin offers to its clients: the words between `protocols.dissemination.plugin` and its front."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from peerd.errors import ClientRefusal
from peerd.lib.feed import Feed
from protocols.dissemination.documents.manifest import Attachment
from protocols.dissemination.documents.service import DocumentService
from protocols.dissemination.models import (
    ItemPublished,
    ReceivedItem,
    StreamHistoryView,
    StreamPlanView,
    StreamSpec,
    StreamSubscriptionRequest,
    StreamSubscriptionView,
    StreamTreeView,
    StreamView,
)


class StreamRefused(ClientRefusal):
    """The plugin has not done what a client asked of a stream."""


class StreamService(Protocol):
    """Callbacks are called once, later. Every method may raise `StreamRefused` and `Unavailable` at once.

    ``on_done`` gets the answer, or an exception of these two types.
    """

    def create(self, spec: StreamSpec, on_done: Callable[[StreamView | Exception], None], owner: str = "") -> None:
        """Make this node the producer of a new stream; its record goes to the ring. Fine if it is that already.

        ``owner``: whose it is; what that means, the front says.
        """

    def owner_of(self, name: str) -> str:
        """Who has created a stream at this node; empty: nobody, or at another node."""

    def check_share(self, owner: str) -> None:
        """Raise `StreamRefused` where one owner has as many subscriptions as one may have."""

    def remove(self, name: str, on_done: Callable[[StreamView | Exception], None]) -> None:
        """End a stream that this node produces."""

    def hand_over(self, name: str, to: str, on_done: Callable[[StreamView | Exception], None]) -> None:
        """Make another node of the tree the producer of a stream that this node produces; this one is a member then.

        ``to``: its address, or the beginning of its id.
        """

    def streams(self) -> list[StreamView]:
        """The streams that this node takes part in, by name."""

    def find(self, name: str, on_done: Callable[[StreamView | Exception], None]) -> None:
        """A stream by its name, wherever it is produced."""

    def publish(
        self,
        name: str,
        payload: bytes,
        content_type: str = "",
        published_ms: int | None = None,
        attachment: Attachment | None = None,
    ) -> ItemPublished:
        """The next item of a stream that this node produces. It goes out at once; nobody acknowledges it.

        ``attachment``: a document that is here; `documents` takes it.
        """

    def when_kept(self, name: str, on_done: Callable[[bool | Exception], None]) -> None:
        """Wait until all that was published in a durable stream is on disk; ``False``: it cannot be.

        At once ``False`` for a stream that is not durable.
        """

    def when_publishable(self, name: str, on_done: Callable[[bool | Exception], None]) -> None:
        """Wait until the stream takes another item, by its limits of rate and memory.

        Where it takes one now, ``on_done`` is called at once: items that came together can go out together.
        """

    def subscribe(
        self, request: StreamSubscriptionRequest, on_done: Callable[[StreamSubscriptionView | Exception], None]
    ) -> None:
        """Subscribe; ``on_done`` is called when this node is in the tree, and items come from then on."""

    def subscriptions(self) -> list[StreamSubscriptionView]:
        """The subscriptions of this node's clients, oldest first."""

    def unsubscribe(self, id: str) -> StreamSubscriptionView:
        """End a subscription."""

    def reading(self, id: str) -> tuple[StreamSubscriptionView, Feed[ReceivedItem]]:
        """A subscription and its feed."""

    @property
    def documents(self) -> DocumentService:
        """Large documents, which belong to items."""

    def tree(self, name: str, on_done: Callable[[StreamTreeView | Exception], None]) -> None:
        """The whole tree of a stream, asked of its nodes."""

    def plan(self, name: str, on_done: Callable[[StreamPlanView | Exception], None]) -> None:
        """What the stream's policy would change next."""

    def history(self, name: str, on_done: Callable[[StreamHistoryView | Exception], None]) -> None:
        """What the stream's policy has changed."""
