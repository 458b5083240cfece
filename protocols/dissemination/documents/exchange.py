"""Documents on their way: whom to meet, what to ask for and to send, what becomes of what arrives.

The nodes that want a document and know of each other exchange it chunk by chunk: parents, children, and those that they
name to each other. A node begins with its parent in the stream's tree. docs/protocols/dissemination-documents.md has
the rules, and what they cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from peerd.api import AcceptSwap, Host, Part, RefuseSwap, SwapCallbacks, SwapRequest, Value, handles
from peerd.errors import PeerMisbehaved, ProtocolError, Unavailable
from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.documents.active import MEET_S, Active
from protocols.dissemination.documents.download import Download
from protocols.dissemination.documents.events import (
    ChunkRefused,
    DocumentBegun,
    DocumentEvicted,
    DocumentFinished,
    DocumentStopped,
)
from protocols.dissemination.documents.manifest import (
    DOCUMENT_ID_BYTES,
    Attachment,
    bitmap,
    chunks_of,
    digest,
    read_bitmap,
)
from protocols.dissemination.documents.messages import (
    OTHERS_MAX,
    DocumentAsk,
    DocumentHave,
    DocumentMeet,
    DocumentMet,
    DocumentNot,
)
from protocols.dissemination.documents.store import DocumentStore, KeptDocument
from protocols.dissemination.documents.uploads import Upload, UploadQueue

ACTIVE_MAX: Final = 128
"""Documents that this node exchanges at once: those that it fetches, and those that others have asked for lately."""
FETCHING_MAX: Final = 4
"""Of those that it fetches, so many are asked for at once: in the order in which they came; last what does not come."""
WANTED_NEIGHBOURS: Final = 12
"""A node that has fewer meets those that its neighbours name, and asks one of them for more names now and then."""
NAMES_S: Final = 0.5
"""How often."""
IDLE_S: Final = 120.0
"""A complete document that nobody has asked for in this time is kept on disk only."""
MEET_S_MAX: Final = 30.0
"""To this double the pauses of a node that finds nobody with what it lacks, from `MEET_S` on."""
STUCK_S: Final = 10.0
"""A node that gets no chunk for so long meets those above it, too, whatever its neighbours promise: they may lie, and
keep each other's company."""
DISK_PAUSE_S: Final = 30.0
"""After the disk has refused a chunk, nothing is asked for this long."""
CHUNK_S_MAX: Final = 600.0
"""Longest transfer of one chunk."""
WAITING_READERS_MAX: Final = 256
LEFT_OUT_MAX: Final = 256
"""Documents of which it is remembered that they were left out, and why, so that it is told once."""
_DIGEST_BYTES_PER_S: Final = 1e9
"""In the simulator, how fast chunks are verified."""
_CHUNK_NUMBER_BYTES: Final = 4


class DocumentExchange(Part):
    """``sources``: whom to ask for a document of a stream, first the parent, last the producer."""

    def __init__(
        self,
        host: Host,
        config: Callable[[], DisseminationConfig],
        sources: Callable[[NodeId], Sequence[PeerRef]],
        wake: Callable[[], None],
    ) -> None:
        self._host, self._config, self._sources, self._wake = host, config, sources, wake
        self.store = DocumentStore(host, lambda: config().documents_max_bytes)
        self.uploads = UploadQueue()
        self._active: dict[bytes, Active] = {}
        self._left_out: dict[bytes, str] = {}

    # Documents

    def begin(self, stream: NodeId, name: str, item: str, attachment: Attachment) -> None:
        """An item with this document has come, for one or more subscriptions: fetch it, unless it is here."""
        id = attachment.id
        active, kept = self._active.get(id), self.store.get(id)
        if active is not None:
            active.streams[stream] = None
        if active is not None or (kept is not None and kept.is_complete):
            return
        why = self._why_not(attachment, kept)
        if why is not None:
            self._leave_out(name, id, why)
            return
        self._left_out.pop(id, None)
        is_new = kept is None
        found = self.store.add(attachment, name, item) if kept is None else kept
        active = self._make(found, 0)
        active.streams[stream] = None
        if is_new:
            self._fetch(active)
        else:
            active.is_checking = True
            self._check(active, 0)

    def _leave_out(self, name: str, id: bytes, why: str) -> None:
        if self._left_out.get(id) == why:
            return
        self._left_out[id] = why
        if len(self._left_out) > LEFT_OUT_MAX:
            del self._left_out[next(iter(self._left_out))]
        self._host.emit(DocumentStopped(stream=name, document=id.hex(), reason=why))

    def _why_not(self, attachment: Attachment, kept: KeptDocument | None) -> str | None:
        if attachment.size > self._config().document_max_bytes:
            return "too_large"
        if not self._has_room_for_active():
            return "busy"
        return None if kept is not None or self.make_room(attachment.size) else "no_room"

    def _has_room_for_active(self) -> bool:
        """Whether one more may be exchanged; if need be the one that was idle for longest is only kept on disk."""
        if len(self._active) >= ACTIVE_MAX:
            idle = [each for each in self._active.values() if each.download.is_complete]
            if not idle:
                return False
            del self._active[min(idle, key=lambda each: each.used_at).kept.id]
        return True

    def _make(self, kept: KeptDocument, have: int) -> Active:
        now = self._host.now()
        download = Download(kept.attachment.count, have, self._host.rng.random)
        active = self._active[kept.id] = Active(kept, download, begun_at=now, came_at=now, used_at=now)
        self._wake()
        return active

    def _open(self, id: bytes) -> Active | None:
        """A document that somebody asks about."""
        active = self._active.get(id)
        if active is None:
            kept = self.store.get(id)
            if kept is not None and kept.is_complete and self._has_room_for_active():
                active = self._make(kept, (1 << kept.attachment.count) - 1)
        if active is not None:
            active.used_at = self._host.now()
        return active

    def _is_on(self, active: Active) -> bool:
        return self._active.get(active.kept.id) is active

    def _check(self, active: Active, chunk: int) -> None:
        """Read what an earlier try has left, chunk by chunk: what is not as it should be is asked for again."""
        if not self._is_on(active):
            return
        if chunk == active.attachment.count:
            active.is_checking = False
            self._fetch(active)
            return

        def next(_: object = None) -> None:
            self._check(active, chunk + 1)

        def verified(found: bytes) -> None:
            if found == active.attachment.digest_of(chunk):
                active.download.kept(chunk)
            next()

        def read(piece: Value) -> None:
            self._digest(active, chunk, piece, verified, next)

        self._read(active.kept, chunk, read, next)

    def _fetch(self, active: Active) -> None:
        kept = sum(active.attachment.size_of(chunk) for chunk in chunks_of(active.download.have))
        self._host.emit(
            DocumentBegun(
                stream=active.kept.stream,
                item=active.kept.item,
                document=active.kept.id.hex(),
                bytes=active.attachment.size,
                kept=kept,
            )
        )
        if active.download.is_complete:
            self._completed(active)
        else:
            self._meet_source(active)

    def _completed(self, active: Active) -> None:
        self.store.completed(active.kept)
        self._host.count("peerd_dissemination_documents_total", outcome="finished")
        self._host.emit(
            DocumentFinished(
                stream=active.kept.stream,
                document=active.kept.id.hex(),
                bytes=active.attachment.size,
                senders=len(active.senders),
                again=active.again,
                duration_s=self._host.now() - active.begun_at,
            )
        )
        for other in self._fetching():
            self._ask(other)  # its turn may have come

    def _stop(self, active: Active, reason: str) -> None:
        """Do not go on. What is here stays on disk as long as there is room."""
        del self._active[active.kept.id]
        self._host.count("peerd_dissemination_documents_total", outcome=reason)
        self._host.emit(DocumentStopped(stream=active.kept.stream, document=active.kept.id.hex(), reason=reason))
        for waiting in active.waiting.values():
            for on_done in waiting:
                on_done(Unavailable(f"the document is not fetched any more: {reason}"))

    def stream_gone(self, stream: NodeId) -> None:
        """This node takes part in a stream no more: nobody here or below wants its documents."""
        for active in list(self._active.values()):
            was_wanted = stream in active.streams
            active.streams.pop(stream, None)
            if was_wanted and not active.streams and not active.download.is_complete:
                self._stop(active, "not_wanted")

    def _is_used(self, id: bytes) -> bool:
        active = self._active.get(id)
        return (active is not None and not active.download.is_complete) or self.uploads.uses(id)

    def make_room(self, size: int) -> bool:
        """Let go of old documents until there is room for a new one. ``False``: there is none."""
        for kept in self.store.evict(size, self._is_used, self._active):
            self._active.pop(kept.id, None)
            self._host.count("peerd_dissemination_documents_total", outcome="evicted")
            self._host.emit(DocumentEvicted(stream=kept.stream, document=kept.id.hex(), bytes=kept.attachment.size))
        return self.store.has_room(size)

    def active(self, id: bytes) -> Active | None:
        """A document that is exchanged now."""
        return self._active.get(id)

    # Meeting others

    def _meet_source(self, active: Active) -> None:
        """Ask the next one up the tree; after the producer, begin at the parent again, and wait longer each time."""
        sources = [peer for stream in active.streams for peer in self._sources(stream)]
        sources = [peer for peer in sources if peer.id != self._host.id and peer.id not in active.banned]
        active.meet_at = self._host.now() + active.meet_pause_s * self._host.rng.uniform(0.8, 1.2)
        if sources:
            self._meet(active, sources[active.sources_tried % len(sources)])
            active.sources_tried += 1
        if active.sources_tried >= len(sources):
            active.sources_tried = 0
            active.meet_pause_s = min(MEET_S_MAX, 2 * active.meet_pause_s)

    def _meet(self, active: Active, peer: PeerRef) -> None:
        have = bitmap(active.download.have, active.attachment.count)
        self._host.send(peer, DocumentMeet(active.kept.id, have))

    def _ask_for_names(self, active: Active, now: float) -> None:
        """Few neighbours are few uplinks: look for more of them among the neighbours of one."""
        known = list(active.download.neighbours.values())
        if known and len(known) < WANTED_NEIGHBOURS and now >= active.names_at:
            active.names_at = now + NAMES_S
            self._meet(active, self._host.rng.choice(known).peer)

    @handles(DocumentMeet)
    def on_meet(self, message: DocumentMeet, source: PeerRef) -> None:
        """Somebody takes part, too."""
        active = self._open(message.document)
        if active is None:
            self._host.send(source, DocumentNot(message.document, is_all=True))
            return
        have = read_bitmap(message.have, active.attachment.count)
        hidden = {source.id, *(peer.id for stream in active.streams for peer in self._sources(stream))}
        others = [each.peer for each in active.download.neighbours.values() if each.peer.id not in hidden]
        if len(others) > OTHERS_MAX:
            others = self._host.rng.sample(others, OTHERS_MAX)
        is_met = source.id not in active.banned and active.download.met(source, have, self._host.now())
        own = bitmap(active.download.have, active.attachment.count)
        self._host.send(source, DocumentMet(message.document, own, tuple(others), is_full=not is_met))
        self._ask(active)

    @handles(DocumentMet)
    def on_met(self, message: DocumentMet, source: PeerRef) -> None:
        """What somebody has, and who else takes part."""
        active = self._active.get(message.document)
        if active is None:
            return
        have = read_bitmap(message.have, active.attachment.count)
        is_whole = have == (1 << active.attachment.count) - 1  # one that has everything has no news to tell
        download = active.download
        if source.id not in active.banned and (is_whole or not message.is_full):
            download.met(source, have, self._host.now())
        room = WANTED_NEIGHBOURS - len(download.neighbours)
        if not download.is_complete:
            known = {self._host.id, *download.neighbours, *active.banned}
            for peer in [each for each in message.others if each.id not in known][: max(0, room)]:
                self._meet(active, peer)
        self._ask(active)

    @handles(DocumentHave)
    def on_have(self, message: DocumentHave, source: PeerRef) -> None:
        """A neighbour has got a chunk."""
        active = self._active.get(message.document)
        if active is not None:
            self._check_chunk(active, message.chunk)
            active.download.has(source.id, message.chunk, self._host.now(), is_here=message.is_here)
            self._ask(active)

    @handles(DocumentNot)
    def on_not(self, message: DocumentNot, source: PeerRef) -> None:
        """A neighbour does not send what it was asked for."""
        active = self._active.get(message.document)
        if active is None:
            return
        if message.is_all:
            active.download.gone(source.id)
            if active.download.is_starved() and not active.download.neighbours:
                active.meet_at = min(active.meet_at, self._host.now())  # the next tick asks further up
        else:
            self._check_chunk(active, message.chunk)
            active.download.refused(source.id, message.chunk, self._host.now())
        self._ask(active)

    @staticmethod
    def _check_chunk(active: Active, chunk: int) -> None:
        if chunk >= active.attachment.count:
            raise ProtocolError("document", f"chunk {chunk} of {active.attachment.count}")

    def gone(self, id: NodeId) -> None:
        """A node is out of reach."""
        self.uploads.gone(id)
        for active in self._active.values():
            if id in active.download.neighbours:
                active.download.gone(id)
                self._ask(active)

    # Asking, and what comes

    def _fetching(self) -> list[Active]:
        """The documents whose turn it is, the oldest first; last those that do not come, so that no other one waits."""
        lacking = [each for each in self._active.values() if not each.download.is_complete]
        if len(lacking) > FETCHING_MAX:
            lacking.sort(key=self._is_stuck)
        return lacking[:FETCHING_MAX]

    def _is_stuck(self, active: Active) -> bool:
        """Whether nothing of it comes from the neighbours that there are."""
        return active.download.is_starved() or self._host.now() - active.came_at >= STUCK_S

    def _ask(self, active: Active) -> None:
        now = self._host.now()
        if active.is_checking or now < active.paused_until or active.download.is_complete:
            return
        if active not in self._fetching():
            return
        for peer, chunk in active.download.next_asks(now):
            self._host.send(peer, DocumentAsk(active.kept.id, chunk))
            self._tell(active, chunk, is_here=False)

    def _tell(self, active: Active, chunk: int, *, is_here: bool) -> None:
        """Tell those to whom it matters that a chunk is here, or on its way."""
        news = DocumentHave(active.kept.id, chunk, is_here)
        for each in active.download.neighbours.values():
            if not each.have >> chunk & 1:
                self._host.send(each.peer, news)

    def swap_requested(self, request: SwapRequest) -> AcceptSwap | RefuseSwap:
        """A neighbour sends a chunk: take it if it was asked for."""
        id, chunk = request.tag[:DOCUMENT_ID_BYTES], int.from_bytes(request.tag[DOCUMENT_ID_BYTES:], "big")
        active = self._active.get(id)
        if active is None or request.is_fetch or not active.download.expects(request.peer.id, chunk):
            return RefuseSwap("not_asked")
        if request.size_bytes != active.attachment.size_of(chunk):
            raise PeerMisbehaved(f"a chunk of {request.size_bytes} bytes")
        return AcceptSwap(
            b"",
            SwapCallbacks(
                done=partial(self._arrived, active, request.peer, chunk),
                failed=partial(self._broke_off, active, request.peer, chunk),
            ),
            CHUNK_S_MAX,
        )

    def _broke_off(self, active: Active, peer: PeerRef, chunk: int, reason: str) -> None:
        active.again += 1
        active.download.broke_off(peer.id, chunk)
        if self._is_on(active):
            self._ask(active)

    def _arrived(self, active: Active, peer: PeerRef, chunk: int, piece: Value) -> None:
        is_needed = active.download.arrived(peer.id, chunk, self._host.now())
        if not self._is_on(active):
            return
        self._host.count("peerd_dissemination_document_bytes_total", active.attachment.size_of(chunk), direction="in")
        self._ask(active)
        if not is_needed:
            active.again += 1
            return

        def verified(found: bytes) -> None:
            if not self._is_on(active):
                return
            if found == active.attachment.digest_of(chunk):
                self._keep(active, peer, chunk, piece)
            else:
                self._bad(active, peer, chunk)

        self._digest(active, chunk, piece, verified, lambda why: active.download.not_kept(chunk))

    def _digest(
        self,
        active: Active,
        chunk: int,
        piece: Value,
        done: Callable[[bytes], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        cost_s = active.attachment.size_of(chunk) / _DIGEST_BYTES_PER_S
        self._host.offload(digest, piece, done=done, failed=failed, cost_s=cost_s)

    def _keep(self, active: Active, peer: PeerRef, chunk: int, piece: Value) -> None:
        active.senders[peer.id] = None
        offset = chunk * active.attachment.chunk_bytes
        self.store.files.write(
            active.kept.file,
            offset,
            piece,
            lambda: self._kept(active, chunk),
            lambda why: self._disk_refused(active, chunk),
        )

    def _kept(self, active: Active, chunk: int) -> None:
        if not self._is_on(active):
            return
        download = active.download
        download.kept(chunk)
        active.came_at, active.meet_pause_s = self._host.now(), MEET_S
        self._tell(active, chunk, is_here=True)
        for on_done in active.waiting.pop(chunk, ()):
            self._read(active.kept, chunk, on_done, on_done)
        if download.is_complete:
            self._completed(active)
        else:
            self._ask(active)

    def _bad(self, active: Active, peer: PeerRef, chunk: int) -> None:
        active.again += 1
        active.download.not_kept(chunk)
        active.banned[peer.id] = None
        active.download.gone(peer.id)
        self._host.count("peerd_dissemination_chunks_refused_total")
        self._host.emit(ChunkRefused(document=active.kept.id.hex(), chunk=chunk, sender=format_id(peer.id)))
        self._ask(active)

    def _disk_refused(self, active: Active, chunk: int) -> None:
        if not self._is_on(active):
            return
        active.download.not_kept(chunk)
        now = self._host.now()
        if now >= active.paused_until:
            reason = DocumentStopped(stream=active.kept.stream, document=active.kept.id.hex(), reason="disk")
            self._host.emit(reason)
            active.paused_until = now + DISK_PAUSE_S

    # Sending

    @handles(DocumentAsk)
    def on_ask(self, message: DocumentAsk, source: PeerRef) -> None:
        """Somebody wants a chunk."""
        active = self._open(message.document)
        if active is None:
            self._host.send(source, DocumentNot(message.document, message.chunk, is_all=True))
            return
        self._check_chunk(active, message.chunk)
        upload = Upload(source, message.document, message.chunk, active.attachment.size_of(message.chunk))
        if not active.download.have >> message.chunk & 1 or not self.uploads.add(upload):
            self._host.send(source, DocumentNot(message.document, message.chunk))
            return
        self._send_next()

    def _send_next(self) -> None:
        while (upload := self.uploads.next()) is not None:
            kept = self.store.get(upload.document)
            if kept is None:
                self._not_sent(upload, True)
            else:
                self._read(kept, upload.chunk, partial(self._send, upload), partial(self._unreadable, upload, kept))

    def _send(self, upload: Upload, piece: Value) -> None:
        tag = upload.document + upload.chunk.to_bytes(_CHUNK_NUMBER_BYTES, "big")
        callbacks = SwapCallbacks(
            done=partial(self._sent, upload),
            failed=lambda reason: self._not_sent(upload, False),
        )
        self._host.swap(upload.peer, tag, piece, callbacks, CHUNK_S_MAX)

    def _sent(self, upload: Upload, nothing: Value) -> None:
        self._host.count("peerd_dissemination_document_bytes_total", upload.size, direction="out")
        self.uploads.ended(upload)
        self._send_next()

    def _unreadable(self, upload: Upload, kept: KeptDocument, why: Unavailable) -> None:
        """The file is not what it was: do not offer it any more, and fetch it again if it is wanted again."""
        if self.store.get(kept.id) is kept and kept.is_complete:
            self.store.incomplete(kept)
            self._active.pop(kept.id, None)
        self._not_sent(upload, True)

    def _not_sent(self, upload: Upload, is_all: bool) -> None:
        self.uploads.ended(upload)
        self._host.send(upload.peer, DocumentNot(upload.document, upload.chunk, is_all))
        self._send_next()

    def _read(
        self, kept: KeptDocument, chunk: int, done: Callable[[Value], None], failed: Callable[[Unavailable], None]
    ) -> None:
        offset = chunk * kept.attachment.chunk_bytes
        self.store.files.read(kept.file, offset, kept.attachment.size_of(chunk), done, failed)

    # Clients that read

    def read(self, kept: KeptDocument, chunk: int, on_done: Callable[[Value | Exception], None]) -> None:
        """A chunk, at once or when it has come. Raises `Unavailable`: it is not on its way, or too many wait."""
        active = self._active.get(kept.id)
        if kept.is_complete or (active is not None and active.download.have >> chunk & 1):
            self._read(kept, chunk, on_done, on_done)
        elif active is None:
            raise Unavailable("the document is here in part only, and nothing more comes: subscribe to its stream")
        elif sum(map(len, active.waiting.values())) >= WAITING_READERS_MAX:
            raise Unavailable(f"{WAITING_READERS_MAX} readers wait for the document already")
        else:
            active.waiting.setdefault(chunk, []).append(on_done)

    # Time

    def has_work(self) -> bool:
        """Whether time matters at the moment."""
        return bool(self._active)

    def tick(self) -> None:
        """Four times a second, while anything is under way."""
        now = self._host.now()
        for active in list(self._active.values()):
            if active.download.is_complete:
                if now - active.used_at >= IDLE_S and not self.uploads.uses(active.kept.id):
                    del self._active[active.kept.id]
                continue
            for silent in active.download.late(now):
                active.download.gone(silent.peer.id)
            if now >= active.meet_at and not active.is_checking and self._is_stuck(active):
                self._meet_source(active)
            self._ask_for_names(active, now)
            for peer, chunk in active.download.asks_again(now):
                self._host.send(peer, DocumentAsk(active.kept.id, chunk))
            self._ask(active)
        self._host.gauge("peerd_dissemination_documents_bytes", self.store.bytes)

    def validate(self) -> None:
        """Assert the invariants."""
        for active in self._active.values():
            active.download.validate()
            assert active.kept.is_complete == active.download.is_complete or not active.download.is_complete
        assert len(self._active) <= ACTIVE_MAX
        assert len(self._left_out) <= LEFT_OUT_MAX
