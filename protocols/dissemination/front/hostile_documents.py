"""How a hostile node of the simulator misbehaves with documents that are attached to items.

What others get is verified against the manifest, so a liar costs them time and transfers, and never a byte.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from peerd.api import SizedBlob, SwapCallbacks
from peerd.messages import Message, PeerRef
from peerd.sim.hostile.member import Decoded, Frame
from protocols.dissemination.documents.exchange import CHUNK_S_MAX
from protocols.dissemination.documents.manifest import CHUNK_BYTES_MAX, CHUNKS_MAX, DIGEST_BYTES, Attachment, bitmap
from protocols.dissemination.documents.messages import (
    DocumentAsk,
    DocumentHave,
    DocumentMeet,
    DocumentMet,
    DocumentNot,
)
from protocols.dissemination.documents.store import KeptDocument
from protocols.dissemination.front.hostile_base import StreamBehaviour, altered, plugin_at
from protocols.dissemination.messages import ItemBatch, ReplayItems
from protocols.dissemination.plugin import Dissemination

FLOOD: Final = 16
"""Messages at once of one kind."""
STRANGERS: Final = 3
"""Nodes that are named and do not exist: to dial one takes the simulator long."""
NOT_ASKED: Final = SwapCallbacks(done=lambda value: None, failed=lambda reason: None)


class DocumentBehaviour(StreamBehaviour):
    """Base: says that it has all of every document, and answers those who ask for it."""

    def twists(self, peer: PeerRef, message: Message) -> Message | None:
        if isinstance(message, DocumentMeet | DocumentMet) and (kept := self._known(message.document)) is not None:
            return replace(message, have=bitmap((1 << kept.attachment.count) - 1, kept.attachment.count))
        return message

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        message = None if decoded is None else decoded[0]
        kept = self._known(message.document) if isinstance(message, DocumentAsk) else None
        if not isinstance(message, DocumentAsk) or kept is None or message.chunk >= kept.attachment.count:
            return True
        self.said += 1
        self.asked(peer, kept, message.chunk)
        return False

    def asked(self, peer: PeerRef, kept: KeptDocument, chunk: int) -> None:
        """Somebody wants a chunk. By default nothing comes."""

    @property
    def plugin(self) -> Dissemination:
        """Its own."""
        plugin = plugin_at(self.node)
        assert plugin is not None
        return plugin

    def _known(self, document: bytes) -> KeptDocument | None:
        return self.plugin.exchange.store.get(document)


class WrongChunks(DocumentBehaviour):
    """Sends other bytes than those that it was asked for, and sometimes more of them."""

    name = "sends wrong chunks"

    def asked(self, peer: PeerRef, kept: KeptDocument, chunk: int) -> None:
        text, size = b"false", kept.attachment.size_of(chunk) + (self.rng.random() < 0.2)
        tag = kept.id + chunk.to_bytes(4, "big")
        self.node.hosts[Dissemination.name].swap(peer, tag, SizedBlob(text, size - len(text)), NOT_ASKED, CHUNK_S_MAX)


class RefusesChunks(DocumentBehaviour):
    """Refuses each chunk that it has promised, and promises it anew."""

    name = "refuses chunks"

    def asked(self, peer: PeerRef, kept: KeptDocument, chunk: int) -> None:
        self.node.say(peer, DocumentNot(kept.id, chunk))
        self.node.say(peer, DocumentHave(kept.id, chunk))


class KeepsChunks(DocumentBehaviour):
    """Promises chunks, never sends them, and says all the time that it gets them: so nobody takes it for dead."""

    name = "keeps chunks back"

    def strike(self) -> int:
        said = 0
        for kept in list(self.plugin.exchange.store):
            active = self.plugin.exchange.active(kept.id)
            for neighbour in () if active is None else active.download.neighbours.values():
                for chunk in range(min(kept.attachment.count, FLOOD)):
                    self.node.say(neighbour.peer, DocumentHave(kept.id, chunk, is_here=bool(chunk % 2)))
                    said += 1
        return said


class DocumentFlood(StreamBehaviour):
    """Asks everybody for every chunk again and again, and names neighbours that do not exist."""

    name = "floods with documents"

    def strike(self) -> int:
        said = 0
        for victim in self.victims():
            plugin = next((each for each in self._plugins() if each.host.id == victim.host.id), None)
            for kept in [] if plugin is None else list(plugin.exchange.store)[-1:]:
                count = kept.attachment.count
                strangers = tuple(self.node.stranger(victim.host.id, 64) for _ in range(STRANGERS))
                said += self.say(victim, DocumentMeet(kept.id, bitmap(0, count)))
                said += self.say(victim, *(DocumentAsk(kept.id, number % count) for number in range(FLOOD)))
                said += self.say(victim, DocumentMet(kept.id, bitmap(0, count), strangers))
        return said

    def _plugins(self) -> list[Dissemination]:
        found = (plugin_at(place.node) for place in self.node.party.simulation.live_nodes())
        return [each for each in found if each is not None]


class AbsurdManifests(StreamBehaviour):
    """Attaches documents to the items that its children get: some that cannot be, and some that nobody has."""

    name = "attaches absurd documents"

    def twists(self, peer: PeerRef, message: Message) -> Message | None:
        if not isinstance(message, ItemBatch | ReplayItems) or not message.items:
            return message
        first, *others = message.items
        return replace(message, items=(self._with_document(first), *others))

    def _with_document(self, item: bytes) -> bytes:
        count = self.rng.choice((1, 1, CHUNKS_MAX))
        size = count * CHUNK_BYTES_MAX - (0 if self.rng.random() < 0.7 else CHUNK_BYTES_MAX)
        manifest = Attachment("absurd", size, CHUNK_BYTES_MAX, self.rng.randbytes(DIGEST_BYTES) * count)
        return altered(item, attachment=manifest)


EXCHANGING: Final[tuple[type[StreamBehaviour], ...]] = (WrongChunks, RefusesChunks, KeepsChunks, DocumentFlood)
"""What a member can do to those with whom it exchanges a document."""
