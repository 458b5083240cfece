"""Routes of streams; docs/streams.md has examples of each."""

from __future__ import annotations

from typing import Final

from peerd.models.routes import HttpRoute
from protocols.dissemination import models

STREAMS: Final = HttpRoute("GET", "/streams", models.StreamViews)
CREATE: Final = HttpRoute("POST", "/streams", models.StreamView, status=201)
FIND: Final = HttpRoute("GET", "/streams/{stream}", models.StreamView)
REMOVE: Final = HttpRoute("DELETE", "/streams/{stream}", models.StreamView)
HAND_OVER: Final = HttpRoute("POST", "/streams/{stream}/hand-over", models.StreamView)

PUBLISH: Final = HttpRoute("POST", "/streams/{stream}/items", models.ItemPublished)
SUBSCRIBED: Final = HttpRoute("GET", "/streams/{stream}/items", models.ReceivedItem)

ATTACH: Final = HttpRoute("PUT", "/streams/{stream}/documents/{name}", models.ItemPublished, status=201)
DOCUMENTS: Final = HttpRoute("GET", "/streams/{stream}/documents", models.DocumentViews)
DOCUMENT_STATE: Final = HttpRoute("GET", "/streams/{stream}/documents/{id}/state", models.DocumentView)
DOCUMENT: Final = HttpRoute("GET", "/streams/{stream}/documents/{id}", bytes)

SUBSCRIPTIONS: Final = HttpRoute("GET", "/streams/{stream}/subscriptions", models.StreamSubscriptionViews)
SUBSCRIBE: Final = HttpRoute(
    "POST", "/streams/{stream}/subscriptions", models.StreamSubscriptionView, status=201, scope="read"
)
UNSUBSCRIBE: Final = HttpRoute(
    "DELETE", "/streams/{stream}/subscriptions/{id}", models.StreamSubscriptionView, scope="read"
)
HELD: Final = HttpRoute("GET", "/streams/{stream}/subscriptions/{id}/items", models.ReceivedItem)

TREE: Final = HttpRoute("GET", "/streams/{stream}/tree", models.StreamTreeView)
PLAN: Final = HttpRoute("GET", "/streams/{stream}/plan", models.StreamPlanView)
HISTORY: Final = HttpRoute("GET", "/streams/{stream}/history", models.StreamHistoryView)
