"""Keeps the ledger of signed notices on disk, applies it to the links, and exchanges it with neighbours.

Notices travel on links and not over the ring: they arrive before a node has joined, while the ring is in parts, and in
spite of members that forward nothing. Both sides compare digests when a link comes up and once in a while; whoever
learns something tells all its other links. A notice crosses each link at most twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from peerd.api import Priority
from peerd.daemon.identity.telemetry import IdentityTelemetry
from peerd.daemon.links.link import TcpLink
from peerd.daemon.links.links import Links
from peerd.daemon.storage.state_table import StateRows
from peerd.errors import Unavailable
from peerd.identity.ledger import TrustLedger, batches, kept_notice
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.wire.codec import encode
from peerd.wire.trust import SignedNotice, TrustNotices, TrustSummary

SAVE_RETRY_S: Final = 10.0
"""The pause between two attempts to write what the disk refused: each of them costs a sync."""

_log = structlog.get_logger("peerd.daemon")


class TrustExchange:
    """Owns the ledger of one node. ``on_news`` is called after the deny list was obeyed, before others are told.

    ``is_saved``: the disk has all that the ledger holds. Where it refused, `save_again` tries until it does.
    """

    def __init__(
        self,
        ledger: TrustLedger,
        own_id: NodeId,
        table: StateRows,
        links: Links,
        telemetry: IdentityTelemetry,
        on_news: Callable[[], None],
    ) -> None:
        self.ledger = ledger
        self._own_id = own_id
        self._table = table
        self._links = links
        self._telemetry = telemetry
        self._on_news = on_news
        self._wall_time = links.context.wall_time
        self._steady_s = links.context.now
        self.is_saved = True
        self._refused_at = 0.0
        self.on_denied: Callable[[frozenset[NodeId]], None] = lambda denied: None
        self._restore()
        self._obey()

    def compare(self, link: TcpLink) -> None:
        """Ask the peer for what this node does not hold."""
        self._links.send(link.peer, encode(TrustSummary(self.ledger.digest())), Priority.URGENT)

    def summary_received(self, link: TcpLink, summary: TrustSummary) -> None:
        """If the peer's digest differs, send it every notice; it ignores those that it has."""
        if summary.digest != self.ledger.digest():
            self._send(link.peer, self.ledger.signed())

    def notices_received(self, link: TcpLink, notices: Sequence[SignedNotice]) -> None:
        """Take over what is news. Raises `PeerMisbehaved`."""
        self.learned(self.ledger.merge(notices, self._wall_time()), link)

    def learned(self, news: Sequence[SignedNotice], source: TcpLink | None = None) -> None:
        """Save new notices, act on them, and pass them on."""
        if not news:
            return
        self.save()
        for signed in news:
            self._telemetry.learned(signed, None if source is None else source.peer)
        denied = self.ledger.denied_ids()
        self._tell(news, source, lambda peer: peer.id in denied)  # a denied node's link ends soon: it learns why
        self._obey()
        self._on_news()
        self._tell(news, source, lambda peer: peer.id not in denied)

    def save(self) -> None:
        """Write the ledger. If the disk refuses, new notices are in force all the same, and are written later."""
        try:
            self._table.replace(self.ledger.rows())
        except Unavailable as error:
            if self.is_saved:
                _log.error("identity.notices_not_saved", error=str(error), next="it is tried until the disk takes it")
            self.is_saved = False
            self._refused_at = self._steady_s()
            return
        if not self.is_saved:
            _log.info("identity.notices_saved", detail="the disk has taken what it refused before")
        self.is_saved = True

    def save_again(self) -> None:
        """Write what the disk refused, once in a while."""
        if not self.is_saved and self._steady_s() - self._refused_at >= SAVE_RETRY_S:
            self.save()

    def _restore(self) -> None:
        try:
            self.ledger.restore(self._table.load(kept_notice), self._wall_time())
        except ValueError as error:  # the others are in force, and the neighbours have those that are missing
            _log.warning("identity.notices_not_restored", error=str(error))

    def _tell(self, news: Sequence[SignedNotice], source: TcpLink | None, is_meant: Callable[[PeerRef], bool]) -> None:
        for link in self._links.links():
            if is_meant(link.peer) and (source is None or link.peer.id != source.peer.id):
                self._send(link.peer, news)

    def _send(self, peer: PeerRef, notices: Sequence[SignedNotice]) -> None:
        for batch in batches(notices):
            self._links.send(peer, encode(TrustNotices(batch)), Priority.URGENT)

    def _obey(self) -> None:
        denied = self.ledger.denied_ids()
        if self._own_id in denied:
            _log.error("identity.denied", detail="this node is on the deny list of its cluster: nobody will talk to it")
        self.on_denied(denied)  # before links end: a denied node is not one that was lost
        self._links.deny(denied - {self._own_id}, self.ledger.denied_serials())
