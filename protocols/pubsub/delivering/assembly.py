"""Makes the parts of this package for a plugin, and tells each about the others."""

from __future__ import annotations

from collections.abc import Callable

from peerd.api import Host, Part
from peerd.messages import PeerRef
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering.deliverer import Deliverer
from protocols.pubsub.delivering.history import EventHistory
from protocols.pubsub.delivering.ledger import LedgerBook
from protocols.pubsub.delivering.multicast import Multicast, Received
from protocols.pubsub.delivering.replay import Replays
from protocols.pubsub.matching.leaf_events import LeafBroker
from protocols.pubsub.messages import EventAck
from protocols.pubsub.ports import Schemas
from protocols.pubsub.subscribing.local import LocalSubscriptions
from protocols.pubsub.tree.rendezvous import Rendezvous


class Delivering:
    """All that happens at leaves of one node. ``broker`` is the `protocols.pubsub.ports.LeafEvents` of the others.

    ``received`` takes what has come by multicast for this node, ``answer`` tells a publisher about its events.
    """

    def __init__(
        self,
        host: Host,
        config: PubSubConfig,
        schemas: Schemas,
        leaves: Rendezvous,
        subscribers: LocalSubscriptions,
        received: Received,
        answer: Callable[[PeerRef, EventAck], None],
    ) -> None:
        self.ledger = LedgerBook(host, config, leaves)
        self.history = EventHistory(config.history_bytes, config.history_age)
        self.multicast = Multicast(host, received)
        self.deliverer = Deliverer(host, config, schemas, leaves, subscribers, self.ledger, self.multicast)
        self.keeping = self.deliverer.keeping
        self.replays = Replays(host, schemas, leaves, self.deliverer, self.history, subscribers)
        past = self.history, self.replays
        self.broker = LeafBroker(host, config, schemas, leaves, self.deliverer, *past, answer)
        self.holding = self.broker.holding

    @property
    def parts(self) -> tuple[Part, ...]:
        """For `peerd.api.Plugin.add_parts`. Call `start` after that."""
        reading = self.broker.copies, self.holding, self.keeping, self.replays
        return self.ledger, self.multicast, self.deliverer, *reading

    def start(self) -> None:
        """The node is up: report, look at what is on disk, and go on with the past."""
        self.ledger.start()
        self.keeping.start()
        self.replays.start()

    def reconfigured(self, config: PubSubConfig) -> None:
        """Take the settings that may change while the node runs."""
        self.deliverer.config = self.keeping.config = config

    def validate(self) -> None:
        """Assert that matched = delivered + dropped + pending, and that nothing is counted that is not there."""
        assert self.ledger.pending_count == self.deliverer.pending()
        assert self.deliverer.bytes == self.deliverer.pending_bytes()
        self.holding.validate()
        self.keeping.validate()
