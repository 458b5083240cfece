"""What MQTT clients and the gateway say to each other, without how it is written: `version4` and `version5` do that.

Section numbers are those of the MQTT 5 standard. What only MQTT 5 has keeps its default in 3.1.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ohmqtt import MQTTReasonCode

from peerd.errors import PeerdError
from peerd.limits import KIB

Reason: TypeAlias = MQTTReasonCode
"""Reason codes of MQTT 5 (section 2.4). In 3.1.1 there are few of them; `version4` knows which."""
PACKET_BYTES_MAX: Final = 40 * KIB
"""The largest packet that a client may send: the largest payload of an event, its topic, and some room."""
RECEIVE_MAX: Final = 64
"""Messages of quality of service 1 and 2 that a client of MQTT 5 may have under way to the gateway (section 3.3.4)."""
ALIASES_MAX: Final = 64
"""Topics to which a client of MQTT 5 may give a number on its connection (section 3.3.2.3.4)."""
FOR_EVER_S: Final = 0xFFFF_FFFF
"""As the expiry of a session: it never ends by itself (section 3.1.2.11.2)."""
NO_LIMIT: Final = 0xFFFF_FFFF
IN_FLIGHT_DEFAULT: Final = 65_535
REASON_TEXT_MAX: Final = 200
"""Characters of a reason string."""


class PacketError(PeerdError, ValueError):
    """A client sent what the standard forbids: its connection is closed. ``reason``: what MQTT 5 calls it."""

    def __init__(self, message: str, reason: Reason = Reason.MalformedPacket) -> None:
        super().__init__(message)
        self.reason = reason


class UnsupportedVersion(PacketError):
    """CONNECT asks for a version of MQTT that is not here; ``answer`` tells the client so, in its own version."""

    def __init__(self, level: int, answer: bytes) -> None:
        message = f"the client speaks version {level} of the protocol; here are 4, which is MQTT 3.1.1, and 5"
        super().__init__(message, Reason.UnsupportedProtocolVersion)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Properties:
    """What a message of MQTT 5 says besides its payload (section 3.3.2.3), and what travels with it."""

    is_text: bool = False
    """The payload format indicator: the sender says that the payload is UTF-8."""
    expiry_s: int | None = None
    content_type: str = ""
    response_topic: str = ""
    correlation: bytes | None = None
    user: tuple[tuple[str, str], ...] = ()


PLAIN: Final = Properties()


@dataclass(frozen=True, slots=True)
class ApplicationMessage:
    """A message under a topic, as PUBLISH carries it, and the will of a client."""

    topic: str
    payload: bytes
    qos: int = 0
    is_retained: bool = False
    packet_id: int = 0
    is_again: bool = False
    properties: Properties = PLAIN
    alias: int = 0
    """From a client: the number that its topic has, or gets, on this connection. 0: none."""
    subscription_id: int = 0
    """To a client: the number that it gave to the subscription. 0: none."""


@dataclass(frozen=True, slots=True)
class Connect:
    """CONNECT. An empty ``client_id``: the client has none. ``is_clean``: what was kept of its session is forgotten."""

    client_id: str
    is_clean: bool
    keep_alive_s: int
    will: ApplicationMessage | None = None
    expires_s: int = 0
    """How long the session is kept when the connection has ended. In 3.1.1: for ever, unless it is clean."""
    will_delay_s: int = 0
    receive_max: int = IN_FLIGHT_DEFAULT
    """How many messages the client takes that it has not acknowledged."""
    packet_max: int = NO_LIMIT
    """The largest packet that the client takes."""
    wants_reasons: bool = True
    """Whether the client wants texts beside reason codes."""
    authentication: str = ""
    user_name: str = ""
    password: bytes = b""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One topic filter of SUBSCRIBE, with its options (section 3.8.3.1)."""

    topic_filter: str
    qos: int
    no_local: bool = False
    """Messages of this client itself do not come."""
    as_published: bool = False
    """Messages keep the retain flag that they were published with."""
    retain_handling: int = 0
    """Retained messages come: 0, now; 1, if the subscription is new; 2, not."""


@dataclass(frozen=True, slots=True)
class Subscribe:
    """SUBSCRIBE. ``subscription_id`` comes back with each message; 0: none."""

    packet_id: int
    wanted: tuple[Wanted, ...]
    subscription_id: int = 0


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """UNSUBSCRIBE."""

    packet_id: int
    topic_filters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """PUBACK."""

    packet_id: int


@dataclass(frozen=True, slots=True)
class Released:
    """PUBREL: the client will not send this message again."""

    packet_id: int


@dataclass(frozen=True, slots=True)
class PingRequest:
    """PINGREQ."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """DISCONNECT. ``with_will``: the will is published all the same. ``expires_s``: as in `Connect`, if it changes."""

    with_will: bool = False
    expires_s: int | None = None


Packet = Connect | ApplicationMessage | Subscribe | Unsubscribe | Acknowledged | Released | PingRequest | Disconnect


@dataclass(frozen=True, slots=True)
class PacketOutcome:
    """What became of something that a client asked for. ``why``: for people."""

    reason: Reason = Reason.Success
    why: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it was done."""
        return bool(self.reason < Reason.UnspecifiedError)


@dataclass(frozen=True, slots=True)
class Accepted:
    """What CONNACK says to a client that may stay. ``is_known``: the session of an earlier connection goes on."""

    is_known: bool = False
    client_id: str = ""
    """The name that the gateway gave to a client that has none; empty: it has one."""
    expires_s: int | None = None
    """How long the session is kept when the connection has ended, if that is shorter than the client wanted."""


@dataclass(slots=True)
class Aliases:
    """The numbers that a client has given to topics on its connection."""

    _topics: dict[int, str] = field(default_factory=dict)

    def topic_of(self, message: ApplicationMessage) -> str:
        """The topic of a message, which may be only a number; notes a new number. Raises `PacketError`."""
        if not message.alias:
            if not message.topic:
                raise PacketError("a message has neither a topic nor a topic alias", Reason.ProtocolError)
            return message.topic
        if message.alias > ALIASES_MAX:
            raise PacketError(f"a topic alias is at most {ALIASES_MAX}", Reason.TopicAliasInvalid)
        if message.topic:
            self._topics[message.alias] = message.topic
        if message.alias not in self._topics:
            raise PacketError(f"the topic alias {message.alias} was given to no topic", Reason.ProtocolError)
        return self._topics[message.alias]
