"""Routes of publish/subscribe; docs/protocols/pubsub.md has examples of each."""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter

from peerd.models.admin import LATER
from peerd.models.routes import HttpRoute
from protocols.pubsub import models

_DOCUMENT: Final[TypeAdapter[dict[str, Any]]] = TypeAdapter(dict[str, Any], config=LATER)

SCHEMAS: Final = HttpRoute("GET", "/pubsub/schemas", models.SchemaSummaries)
SCHEMA: Final = HttpRoute("GET", "/pubsub/schemas/{name}", _DOCUMENT)
DECLARE: Final = HttpRoute("PUT", "/pubsub/schemas/{name}", models.Declared)
END_SCHEMA: Final = HttpRoute("DELETE", "/pubsub/schemas/{name}", models.SchemaEnded)

PUBLISH: Final = HttpRoute("POST", "/pubsub/{schema}/events", models.Published)
PUBLISH_BATCH: Final = HttpRoute("POST", PUBLISH.path, models.PublishedBatch)
SUBSCRIBED: Final = HttpRoute("GET", "/pubsub/{schema}/events", models.ReceivedEvent)

SUBSCRIPTIONS: Final = HttpRoute("GET", "/pubsub/subscriptions", models.SubscriptionViews)
SUBSCRIBE: Final = HttpRoute("POST", "/pubsub/subscriptions", models.SubscriptionView, status=201, scope="read")
CHANGE: Final = HttpRoute("PATCH", "/pubsub/subscriptions/{id}", models.SubscriptionView, scope="read")
END: Final = HttpRoute("DELETE", "/pubsub/subscriptions/{id}", models.SubscriptionView, scope="read")
HELD: Final = HttpRoute("GET", "/pubsub/subscriptions/{id}/events", models.ReceivedEvent)

EXPLAIN: Final = HttpRoute("GET", "/pubsub/explain/{event}", _DOCUMENT)
TREE: Final = HttpRoute("GET", "/pubsub/{schema}/tree", models.TreeView)
