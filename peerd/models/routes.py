"""Routes of the HTTP API, each said once: a daemon serves it (`peerd.daemon.http.routes.serve`), a client calls it.

    STREAM: Final = HttpRoute("GET", "/streams/{stream}", StreamView)

    @serve(router, STREAM)                            # in the daemon
    view = await client.call(STREAM, "news")          # in the client

Below are the daemon's own; a protocol has a table of its own in its front.
"""

from __future__ import annotations

import re
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from pydantic import TypeAdapter

from peerd.models import admin as models

Answer = TypeVar("Answer")

_NAME: Final = re.compile(r"\{[^}]*\}")


class HttpRoute(NamedTuple, Generic[Answer]):
    """A method and a path of the HTTP API, and what comes back. A tuple: a command starts with making this class."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    """Below ``/v1``, with names in braces, as FastAPI has it."""
    answer: type[Answer] | TypeAdapter[Answer]
    """The model of the answer, of each line of it, or of each item of a feed."""
    status: int = 200
    """Of an answer that is no refusal."""
    scope: Literal["read", "write"] | None = None
    """What a data client needs (`peerd.front.scope_of`), where the method does not say it."""

    def at(self, /, *names: str, **query: object) -> str:
        """The path with these names, and a query of those values that are not ``None``. Raises ``ValueError`` for too
        many names or too few."""
        parts = (*(quote(name, safe="") for name in names), "")
        path = "".join(text + part for text, part in zip(_NAME.split(self.path), parts, strict=True))
        given = {key: value for key, value in query.items() if value is not None}
        return f"{models.API_PREFIX}{path}{'?' if given else ''}{urlencode(given)}"

    def read(self, content: bytes) -> Answer:
        """An answer or a line of JSON. Raises ``ValidationError``."""
        kind: Any = self.answer
        read: Answer = (kind.validate_json if isinstance(kind, TypeAdapter) else kind.model_validate_json)(content)
        return read


# State

STATUS: Final = HttpRoute("GET", "/status", models.Status)
PEERS: Final = HttpRoute("GET", "/peers", models.Peers)
HISTORY: Final = HttpRoute("GET", "/peers/{node}/history", models.HistoryView)
RING: Final = HttpRoute("GET", "/ring", models.Ring)
ROOT_OF: Final = HttpRoute("GET", "/route/{key:path}", models.RouteView)
CONFIG: Final = HttpRoute("GET", "/config", models.EffectiveSettings)
RELOAD: Final = HttpRoute("POST", "/config/reload", models.ReloadAnswer)
EVENTS: Final = HttpRoute("GET", "/events", dict[str, object])

# Identity

CERTIFICATE: Final = HttpRoute("GET", "/certificate", models.Certificate)
RENEW: Final = HttpRoute("POST", "/certificate/renewal", models.Certificate)
INSTALL: Final = HttpRoute("POST", "/certificate", models.Certificate)
ROTATE: Final = HttpRoute("POST", "/ca/rotation", models.Certificate)
PUBLISH_NOTICE: Final = HttpRoute("POST", "/notices", models.NoticeAnswer)
TOKENS: Final = HttpRoute("GET", "/tokens", models.Tokens, scope="write")
CREATE_TOKEN: Final = HttpRoute("POST", "/tokens", models.NewToken, status=201)
REVOKE_TOKEN: Final = HttpRoute("DELETE", "/tokens/{identifier}", models.Token)
DENIALS: Final = HttpRoute("GET", "/denials", models.Denials)
DENY: Final = HttpRoute("POST", "/denials", models.NewDenial)

# Access of data clients

ACCESS: Final = HttpRoute("GET", "/access", models.AccessEntries, scope="write")
CREATE_ACCESS: Final = HttpRoute("POST", "/access", models.NewAccess, status=201)
REVOKE_ACCESS: Final = HttpRoute("DELETE", "/access/{name}", models.AccessEntry)

# The whole ring

RTT: Final = HttpRoute("GET", "/rtt", models.Rtt)
RTT_KNOWN: Final = HttpRoute("GET", "/rtt/known", models.Rtts)
CHECK_RING: Final = HttpRoute("POST", "/ring/check", models.RING_LINE, scope="read")
REACH: Final = HttpRoute("POST", "/reach", models.REACH_LINE, scope="read")
DRAIN: Final = HttpRoute("POST", "/drain", models.DRAIN_LINE)
CUT_LINKS: Final = HttpRoute("PUT", "/links/cut", models.LinkCuts)
FORGET: Final = HttpRoute("POST", "/members/forgotten", models.Forgotten)
