"""The application handshake: a link is up only after HELLO and its answer.

A TLS or TCP connect proves nothing (a refused client certificate is invisible to the client until it reads), so both
sides say who they are, which cluster, and which protocol versions they speak; the acceptor picks the highest common
version. A refusal names both ranges and both nodes. The dialler speaks first::

    dialler                          acceptor
      | ---- Hello ------------------> |
      | <--- HelloAck | HelloRefused - |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

from msgspec import Meta

from peerd.errors import HandshakeRefused, ProtocolError
from peerd.frozen import Frozen
from peerd.ids import NodeId, format_id
from peerd.limits import HELLO_PLUGINS_MAX, KIB
from peerd.messages import U8, U16, U64, Message, Name, PeerRef, Struct, Text, message
from peerd.wire.codec import decode, encode
from peerd.wire.frames import Frame

PROTOCOL_MIN: Final = 1
PROTOCOL_MAX: Final = 1


class Purpose(Enum):
    """The purpose of a connection. Control and bulk never share one."""

    CONTROL = 0
    BULK = 1


class PluginVersions(Struct):
    """The versions of one plugin that a node speaks."""

    name: Name
    version_min: U16
    version_max: U16


Plugins = Annotated[tuple[PluginVersions, ...], Meta(max_length=HELLO_PLUGINS_MAX)]
HELLO_BYTES_MAX: Final = 4 * KIB


@message(0x0001, bytes_max=HELLO_BYTES_MAX)
class Hello(Message):
    """The dialler introduces itself. Without ``plugins`` it is taken to speak version 1 of each."""

    protocol_min: U16
    protocol_max: U16
    features: U64
    cluster: Name
    node: PeerRef
    boot_epoch: U64
    purpose: U8 = 0
    plugins: Plugins = ()


@message(0x0002, bytes_max=HELLO_BYTES_MAX)
class HelloAck(Message):
    """The acceptor introduces itself, names the version that both will speak, and its ``plugins`` as `Hello` does."""

    protocol: U16
    features: U64
    cluster: Name
    node: PeerRef
    boot_epoch: U64
    plugins: Plugins = ()


@message(0x0003, bytes_max=2048)
class HelloRefused(Message):
    """No link: a stable reason label and a sentence for people."""

    reason: Name
    detail: Text


@message(0x0004, bytes_max=16)
class LinkHeartbeat(Message):
    """Keeps an idle link provably alive; any other traffic serves as well."""


@message(0x0005, bytes_max=1024)
class Goodbye(Message):
    """This side closes the link on purpose."""

    reason: Name


@dataclass(frozen=True, slots=True)
class LocalNode:
    """What this node says about itself in a handshake."""

    node: PeerRef
    cluster: str
    boot_epoch: int
    features: int = 0
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX
    plugins: tuple[PluginVersions, ...] = ()


class HandshakeResult(Frozen):
    """The outcome of a handshake: the peer, as it introduced itself and as its certificate proves."""

    peer: PeerRef
    boot_epoch: int
    protocol: int
    features: int
    purpose: Purpose
    plugins: tuple[PluginVersions, ...] = ()


class Handshake:
    """One connection's handshake, either side. Feed it frames; it answers with frames to send.

    ``certified_id`` is the node id that the peer's certificate proves (``None`` only with TLS off); ``expected_id`` is
    whom the dialler meant to reach. After `established` is set the link is up; a `HandshakeRefused` ends it, and
    `refusal` is what to send first, if anything.
    """

    def __init__(
        self, local: LocalNode, *, certified_id: NodeId | None, expected_id: NodeId | None = None, purpose: Purpose
    ) -> None:
        self._local = local
        self._certified_id = certified_id
        self._expected_id = expected_id
        self._purpose = purpose
        self.established: HandshakeResult | None = None
        self.refusal: Frame | None = None

    def hello(self) -> Frame:
        """Return the dialler's first frame."""
        local = self._local
        return encode(
            Hello(
                local.protocol_min,
                local.protocol_max,
                local.features,
                local.cluster,
                local.node,
                local.boot_epoch,
                self._purpose.value,
                local.plugins,
            )
        )

    def receive(self, frame: Frame) -> Frame | None:
        """Take the peer's first frame; returns what to answer, if anything.

        Raises `HandshakeRefused` or `ProtocolError`.
        """
        decoded = decode(frame)
        match decoded[0] if decoded is not None else None:
            case Hello() as hello:
                return self._receive_hello(hello)
            case HelloAck() as ack:
                self._receive_ack(ack)
                return None
            case HelloRefused(reason=reason, detail=detail):
                raise HandshakeRefused(reason, f"the peer refused: {detail}")
            case _:
                raise ProtocolError("unexpected_message", f"type {frame[0]:#06x} before the handshake was done")

    def refuse(self, reason: str, detail: str) -> HandshakeRefused:
        """Prepare `refusal` and return the error to raise; drivers use it for reasons of their own."""
        self.refusal = encode(HelloRefused(reason, detail[:500]))
        return HandshakeRefused(reason, detail)

    def _receive_hello(self, hello: Hello) -> Frame:
        self._check_peer(hello.node, hello.cluster)
        protocol = min(hello.protocol_max, self._local.protocol_max)
        if protocol < max(hello.protocol_min, self._local.protocol_min):
            raise self.refuse("version", self._version_detail(hello))
        if hello.purpose not in (0, 1):
            raise self.refuse("purpose", f"purpose {hello.purpose} is unknown here")
        local = self._local
        features = hello.features & local.features
        purpose = Purpose(hello.purpose)
        self.established = HandshakeResult(hello.node, hello.boot_epoch, protocol, features, purpose, hello.plugins)
        return encode(HelloAck(protocol, features, local.cluster, local.node, local.boot_epoch, local.plugins))

    def _receive_ack(self, ack: HelloAck) -> None:
        self._check_peer(ack.node, ack.cluster)
        if not self._local.protocol_min <= ack.protocol <= self._local.protocol_max:
            raise HandshakeRefused("version", f"{ack.node} chose version {ack.protocol}, which we did not offer")
        self.established = HandshakeResult(
            ack.node, ack.boot_epoch, ack.protocol, ack.features, self._purpose, ack.plugins
        )

    def _check_peer(self, peer: PeerRef, cluster: str) -> None:
        if cluster != self._local.cluster:
            raise self.refuse("wrong_cluster", f"{peer} is of cluster {cluster!r}, this is {self._local.cluster!r}")
        if self._certified_id is not None and peer.id != self._certified_id:
            detail = f"it says {format_id(peer.id)}, its certificate proves {format_id(self._certified_id)}"
            raise self.refuse("id_mismatch", detail)
        if peer.id == self._local.node.id:
            raise self.refuse("duplicate_identity", f"{peer} has the identity of {self._local.node}")
        if self._expected_id is not None and peer.id != self._expected_id:
            detail = f"{peer} answered where {format_id(self._expected_id)} was expected"
            raise self.refuse("wrong_callee", detail)

    def _version_detail(self, hello: Hello) -> str:
        local = self._local
        return (
            f"{hello.node} speaks {hello.protocol_min}..{hello.protocol_max}, "
            f"{local.node} speaks {local.protocol_min}..{local.protocol_max}"
        )
