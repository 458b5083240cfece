"""What the gateway knows of a client: its subscriptions, and the messages that are not acknowledged. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from peerd.errors import ConfigError
from protocols.pubsub.front.mqtt.mapping import SubscriptionOptions, key_of
from protocols.pubsub.front.mqtt.packets import FOR_EVER_S, IN_FLIGHT_DEFAULT, ApplicationMessage, Wanted
from protocols.pubsub.front.mqtt.topics import TOPIC_BYTES_MAX
from protocols.pubsub.front.mqtt.users import NOBODY, OVER_TCP, User

IN_FLIGHT_MAX: Final = 32
"""Messages on their way to a client without its PUBACK; then nothing is sent to it until one is acknowledged."""
RECEIVED_MAX: Final = 256
"""Messages with quality of service 2 of which a client has not sent PUBREL."""
SUBSCRIPTIONS_MAX: Final = 32
"""Topic filters of one client."""
SESSIONS_MAX: Final = 256
"""Clients whose sessions are kept while they are away."""
SESSIONS_PER_USER_MAX: Final = 64
"""So many of them may be of one user."""
EXPIRES_S: Final = 7 * 86_400
"""No session is kept for longer than this after its connection, unless the gateway is told another time."""
CLIENT_ID_MAX: Final = 256
RETAINED_NEVER: Final = 2
"""As retain handling: no retained messages (section 3.8.3.1)."""
SessionKey: TypeAlias = tuple[str, str]
"""Owner and client identifier."""
_NUMBERS: Final = 65_535
_NAME_PREFIX: Final = "mqtt-"


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What the operator has chosen."""

    clients_max: int = 200
    expires_max_s: int = EXPIRES_S
    """No session is kept for longer after its connection."""
    wants_tokens: bool = False
    """Over TCP: a client's password is an access token of the daemon."""
    closes_on_refusal: bool = True
    """What becomes of a client of MQTT 3.1.1 whose message is refused: its connection is ended; or else the message is
    acknowledged, and counted."""


@dataclass(slots=True, eq=False)
class HeldSubscription:
    """One subscription of a client. ``name``: of the durable subscription at the daemon; empty if it is not durable."""

    topic_filter: str
    qos: int
    name: str = ""
    id: str = ""
    """The daemon's id of it, while the client is connected."""
    position: str | None = None
    """Everything up to this id of the stream has been acknowledged."""
    under_way: dict[str, bool] = field(default_factory=dict)
    """Ids of the stream after that, in order: whether each is acknowledged."""
    again: frozenset[str] = frozenset()
    """Ids that were sent over an earlier connection, and not acknowledged there."""
    no_local: bool = False
    as_published: bool = False
    subscription_id: int = 0
    wants_retained: bool = True
    """Whether the retained messages come, when the subscription is opened at the daemon."""

    def choose(self, wanted: Wanted, subscription_id: int) -> None:
        """Take the options of SUBSCRIBE."""
        self.no_local, self.as_published = wanted.no_local, wanted.as_published
        self.subscription_id = subscription_id
        self.wants_retained = wanted.retain_handling < RETAINED_NEVER

    def sent(self, id: str) -> None:
        """The client has been sent what has this id in the stream."""
        self.under_way[id] = False

    def done(self, id: str) -> None:
        """The client has it, or is not to have it."""
        self.under_way[id] = True
        while self.under_way and self.under_way[first := next(iter(self.under_way))]:
            self.position = first
            del self.under_way[first]

    def restart(self) -> None:
        """The stream is read from the last position again."""
        self.again = frozenset(id for id, is_done in self.under_way.items() if not is_done)
        self.under_way.clear()
        self.id = ""
        self.wants_retained = False  # they come with SUBSCRIBE only


class Session:
    """The session of one client (section 4.1). ``expires_s``: how long it outlives the connection."""

    def __init__(self, client_id: str, expires_s: int = FOR_EVER_S, user: User = NOBODY) -> None:
        self.client_id, self.expires_s, self.user = client_id, expires_s, user
        self.refused = 0
        """Messages of the client that were refused."""
        self.last_refusal = ""
        self.left_at: float | None = None
        """When its last connection ended, in seconds since 1970; ``None`` while there is one."""
        self.held: dict[str, HeldSubscription] = {}
        self._window = IN_FLIGHT_MAX
        self._in_flight: dict[int, tuple[HeldSubscription, str]] = {}
        self._received: dict[int, None] = {}
        self._last = 0

    @property
    def key(self) -> SessionKey:
        """Whose it is, and under which name: a stranger who knows the name finds a session of its own."""
        return self.user.owner, self.client_id

    @property
    def is_clean(self) -> bool:
        """Whether it ends with the connection."""
        return not self.expires_s

    def is_over(self, now: float) -> bool:
        """Whether it was kept as long as its client wanted."""
        if self.left_at is None or self.expires_s == FOR_EVER_S:
            return False
        return now - self.left_at >= self.expires_s

    def restart(self, receive_max: int = IN_FLIGHT_DEFAULT) -> None:
        """A connection begins: what was not acknowledged is sent again, at most ``receive_max`` at a time."""
        self._in_flight.clear()
        self._window = min(IN_FLIGHT_MAX, receive_max)
        self.left_at = None
        for held in self.held.values():
            held.restart()

    def hold(self, topic_filter: str, qos: int) -> HeldSubscription:
        """Return a subscription: the one that there is, or a new one. Only with quality of service 1 is it durable."""
        held = self.held.get(topic_filter)
        if held is None:
            held = self.held[topic_filter] = HeldSubscription(topic_filter, qos, self._name(topic_filter, qos))
        held.qos = qos
        return held

    def _name(self, topic_filter: str, qos: int) -> str:
        if self.is_clean or not qos:
            return ""
        digest = hashlib.sha256(f"{self._full_name}\0{topic_filter}".encode(errors="replace")).hexdigest()
        return _NAME_PREFIX + digest[:32]

    @property
    def _full_name(self) -> str:
        """The client's name, with that of its user if there is one."""
        return f"{self.user.owner}\0{self.client_id}" if self.user.owner else self.client_id

    # To the client

    @property
    def has_room(self) -> bool:
        """Whether another message may be sent that the client has to acknowledge."""
        return len(self._in_flight) < self._window

    @property
    def sender(self) -> str:
        """What stands for the client in its messages: a key, if it has a subscription that must not get them."""
        return self._key if any(held.no_local for held in self.held.values()) else ""

    @property
    def _key(self) -> str:
        return key_of(self._full_name)

    def wish(self, held: HeldSubscription) -> SubscriptionOptions:
        """How a subscription wants its messages."""
        not_from = self._key if held.no_local else ""
        return SubscriptionOptions(held.qos, held.as_published, held.subscription_id, not_from)

    def sending(self, held: HeldSubscription, id: str, message: ApplicationMessage) -> ApplicationMessage:
        """Return a message as it is to be sent; the caller has looked whether there is room."""
        if not message.qos:
            held.done(id)
            return message
        self._last = next(number for number in self._after_last() if number not in self._in_flight)
        self._in_flight[self._last] = held, id
        held.sent(id)
        return replace(message, packet_id=self._last, is_again=id in held.again)

    def _after_last(self) -> Iterator[int]:
        return ((self._last + step) % _NUMBERS + 1 for step in range(IN_FLIGHT_MAX + 1))

    def acknowledged(self, packet_id: int) -> None:
        """The client has a message. What is not under way is passed over."""
        held, id = self._in_flight.pop(packet_id, (None, ""))
        if held is not None:
            held.done(id)

    # From the client

    def is_new(self, packet_id: int) -> bool:
        """Whether a message with quality of service 2 was not published yet."""
        return packet_id not in self._received

    def received(self, packet_id: int) -> bool:
        """Remember that it was published, until PUBREL. False if there are too many of these."""
        self._received[packet_id] = None
        return len(self._received) <= RECEIVED_MAX

    def released(self, packet_id: int) -> bool:
        """The client will not send it again. False if it was not known."""
        return packet_id in self._received and self._received.pop(packet_id) is None


# On disk


class _Saved(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class SavedHeld(_Saved):
    """A subscription of a session, as it is kept."""

    topic_filter: Annotated[str, Field(max_length=8 * TOPIC_BYTES_MAX)]
    qos: Annotated[int, Field(ge=0, le=1)]
    position: str | None = None
    no_local: bool = False
    as_published: bool = False
    subscription_id: Annotated[int, Field(ge=0, lt=1 << 28)] = 0


class SavedSession(_Saved):
    """A session, as it is kept."""

    client_id: Annotated[str, Field(max_length=CLIENT_ID_MAX)]
    pays: str = OVER_TCP
    owner: str = ""
    expires_s: Annotated[int, Field(ge=0, le=FOR_EVER_S)] = FOR_EVER_S
    left_at: float | None = None
    subscriptions: list[SavedHeld]


class SavedSessions(_Saved):
    """The file of ``--state``."""

    sessions: Annotated[list[SavedSession], Field(max_length=SESSIONS_MAX)]


def save(sessions: Mapping[SessionKey, Session]) -> str:
    """Write sessions that are to outlive the gateway. Tokens are not written: their clients show them again."""
    kept = [_saved(session).model_dump() for session in sessions.values()]
    return json.dumps({"sessions": kept}, indent=1) + "\n"


def _saved(session: Session) -> SavedSession:
    subscriptions = [SavedHeld.model_validate(held, from_attributes=True) for held in session.held.values()]
    return SavedSession(
        client_id=session.client_id,
        pays=session.user.pays,
        owner=session.user.owner,
        expires_s=session.expires_s,
        left_at=session.left_at,
        subscriptions=subscriptions,
    )


def load(text: str, file: str, now: float, expires_max_s: int = FOR_EVER_S) -> dict[SessionKey, Session]:
    """Read what `save` wrote; a client that was connected then has left ``now``. Raises `ConfigError`."""
    try:
        saved = SavedSessions.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError("is no file of `peerd mqtt --state`", file=file) from error
    sessions = {}
    for kept in saved.sessions:
        session = Session(kept.client_id, min(kept.expires_s, expires_max_s), User(kept.pays, kept.owner))
        sessions[session.key] = session
        session.left_at = now if kept.left_at is None else kept.left_at
        for each in kept.subscriptions:
            held = session.hold(each.topic_filter, each.qos)
            held.position, held.subscription_id = each.position, each.subscription_id
            held.no_local, held.as_published = each.no_local, each.as_published
    return sessions
