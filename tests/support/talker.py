"""Plugins that send each other messages and note what their hosts report, for tests against both Hosts."""

from __future__ import annotations

from typing import Any, ClassVar

from peerd.api import Plugin, SendRefusal, handles
from peerd.messages import U32, Message, PeerRef, message


@message(0x7F72)
class Say(Message):
    """One way, with some weight."""

    number: U32
    padding: bytes = b""


@message(0x7F73, bytes_max=64)
class Ask(Message):
    """Answered with a `Say` of the same number."""

    number: U32


class Talker(Plugin):
    """Notes what comes, what was refused, and who is writable."""

    name: ClassVar[str] = "talker"
    version: ClassVar[int] = 3
    version_min: ClassVar[int] = 2
    messages = (Say, Ask)

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.heard: list[int] = []
        self.refused: list[tuple[PeerRef, type[Message], SendRefusal, int]] = []
        self.writables: list[PeerRef] = []
        self.downs: list[PeerRef] = []
        self.replies: list[Message] = []
        self.timeouts: list[float] = []

    @handles(Say)
    def on_say(self, say: Say, source: PeerRef) -> None:
        """Note it."""
        self.heard.append(say.number)

    @handles(Ask)
    def on_ask(self, ask: Ask, source: PeerRef) -> Say:
        """Answer."""
        return Say(ask.number)

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        """Note it."""
        self.downs.append(peer)

    def writable(self, peer: PeerRef) -> None:
        """Note it."""
        self.writables.append(peer)

    def send_refused(self, peer: PeerRef, message_type: type[Message], reason: SendRefusal, count: int) -> None:
        """Note it."""
        self.refused.append((peer, message_type, reason, count))

    def ask(self, peer: PeerRef, timeout_s: float = 600.0) -> None:
        """Ask, and note the reply, or when the request failed."""
        self.host.request(
            peer,
            Ask(1),
            timeout_s,
            lambda reply, source: self.replies.append(reply),
            lambda: self.timeouts.append(self.host.now()),
        )


class OldTalker(Talker):
    """Speaks versions 1 and 2."""

    version: ClassVar[int] = 2
    version_min: ClassVar[int] = 1


class FutureTalker(Talker):
    """Speaks nothing that `Talker` does."""

    version: ClassVar[int] = 9
    version_min: ClassVar[int] = 9
