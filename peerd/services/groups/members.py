"""What the plugins of this node have asked for: their memberships, and operations without an outcome yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from peerd.api import GroupOutcome, Plugin
from peerd.errors import Bug, ProtocolError, Unavailable
from peerd.frozen import Frozen
from peerd.ids import NodeId, key_of
from peerd.messages import Message, PeerRef, decode_body, encode_body, message_type
from peerd.services.groups.config import GroupsConfig
from peerd.services.groups.messages import Publication
from peerd.services.groups.ports import ServiceHost
from peerd.services.groups.stream import Seen, identity

LEFT_MAX: Final = 64
"""For how many groups that all plugins here have left it is remembered what the last member heard."""

OnMessage = Callable[[Message, PeerRef], None]
OnAnycast = Callable[[Message, PeerRef], bool]
OnOutcome = Callable[[GroupOutcome, PeerRef | None], None]


def group_key(plugin: str, group: str) -> NodeId:
    """Return the key of a plugin's group; the same name in another plugin gives another key."""
    return key_of(f"group\n{plugin}\n{group}")


class GroupMembership(Frozen):
    """One plugin in one group. Without ``on_message`` it has only created the group."""

    plugin: str
    messages: tuple[type[Message], ...]
    on_message: OnMessage | None
    on_anycast: OnAnycast | None


@dataclass(slots=True)
class Entrusted:
    """The service's state that belongs to the plugins. It survives a failure of the service."""

    memberships: dict[NodeId, GroupMembership] = field(default_factory=dict)
    waiting: dict[int, tuple[str, OnOutcome]] = field(default_factory=dict)
    """Plugin and callback of each multicast or anycast without an outcome, by its number."""
    numbers: int = 0
    """The last number that was given in this boot."""
    heard: dict[NodeId, Seen] = field(default_factory=dict)
    """For each group, what the members here have heard: a member that leaves and joins again must not hear it twice."""

    def next_number(self) -> int:
        """Return a number that no other message of this node has in this boot."""
        self.numbers += 1
        return self.numbers

    def end(self, group_id: NodeId) -> bool:
        """End a membership; returns whether there was one. What it heard is kept until `LEFT_MAX` others end."""
        if self.memberships.pop(group_id, None) is None:
            return False
        if group_id in self.heard:
            self.heard[group_id] = self.heard.pop(group_id)  # moved to the end: the group left first is forgotten first
            left = [key for key in self.heard if key not in self.memberships]
            if len(left) > LEFT_MAX:
                del self.heard[left[0]]
        return True

    def of_plugin(self, plugin: str) -> Iterator[NodeId]:
        """The groups that a plugin has joined or created."""
        return iter([key for key, membership in self.memberships.items() if membership.plugin == plugin])


def encoded(plugin: Plugin, message: Message, bytes_max: int) -> bytes:
    """Encode a plugin's own message. Raises `Bug` for another plugin's, or one above ``bytes_max``."""
    if type(message) not in plugin.messages:
        raise Bug(f"{plugin.name} sends {type(message).__name__} to a group, which is not among its messages")
    body = encode_body(message)
    if len(body) > bytes_max:
        raise Bug(f"{type(message).__name__} of {len(body)} bytes to a group is over the cap of {bytes_max}")
    return body


class Members:
    """Delivers messages to the members on this node."""

    def __init__(self, host: ServiceHost, config: GroupsConfig, entrusted: Entrusted) -> None:
        self._host = host
        self._config = config
        self.entrusted = entrusted

    def _decode(self, membership: GroupMembership, type_id: int, body: bytes) -> Message | None:
        kind = message_type(type_id)
        if kind is None or kind not in membership.messages:
            self._host.count("peerd_groups_dropped_total", reason="unknown_type")
            return None
        try:
            return decode_body(kind, body)
        except ProtocolError:  # any hop may have damaged it, or made up its origin: nobody's link is cut
            self._host.count("peerd_groups_dropped_total", reason="malformed")
            return None

    def deliver(self, group_id: NodeId, publication: Publication) -> None:
        """Give a multicast to the member on this node, once."""
        membership = self.entrusted.memberships.get(group_id)
        if membership is None or membership.on_message is None:
            return
        message = self._decode(membership, publication.type_id, publication.body)
        if message is None:
            return

        def tell(message: Message, origin: PeerRef) -> None:
            current = self.entrusted.memberships.get(group_id)
            if current is None or current.on_message is None:  # the member may have left meanwhile
                return
            heard = self.entrusted.heard.setdefault(group_id, Seen(self._config.dedupe_window))
            if heard.is_new(identity(publication)):
                self._host.count("peerd_groups_delivered_total")
                current.on_message(message, origin)

        self._host.call_plugin(membership.plugin, tell, message, publication.origin)

    def ask(
        self, group_id: NodeId, type_id: int, body: bytes, origin: PeerRef, answered: Callable[[bool], None]
    ) -> bool:
        """Whether the member here accepts an anycast. Returns false, and asks nobody, when there is none to ask."""
        membership = self.entrusted.memberships.get(group_id)
        if membership is None or membership.on_anycast is None:
            return False
        message = self._decode(membership, type_id, body)
        if message is None:
            return False

        def ask(message: Message, origin: PeerRef) -> bool:
            current = self.entrusted.memberships.get(group_id)
            return current is not None and current.on_anycast is not None and current.on_anycast(message, origin)

        self._host.call_plugin(membership.plugin, ask, message, origin, then=lambda answer: answered(answer is True))
        return True

    # Outcomes

    def await_outcome(self, plugin: str, on_outcome: OnOutcome) -> int:
        """Number a message and remember whom to tell. Raises `Unavailable` above the limit."""
        if len(self.entrusted.waiting) >= self._config.outstanding_max:
            raise Unavailable(f"{self._config.outstanding_max} multicasts and anycasts have no outcome yet")
        number = self.entrusted.next_number()
        self.entrusted.waiting[number] = (plugin, on_outcome)
        return number

    def settle(self, number: int, outcome: GroupOutcome, peer: PeerRef | None = None) -> bool:
        """Tell the outcome, once. Returns whether it was awaited."""
        waiting = self.entrusted.waiting.pop(number, None)
        if waiting is None:
            return False
        self._host.count("peerd_groups_outcomes_total", outcome=outcome.value)
        plugin, on_outcome = waiting
        self._host.call_plugin(plugin, on_outcome, outcome, peer)
        return True
