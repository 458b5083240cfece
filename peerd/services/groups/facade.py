"""Groups as one plugin sees them: `peerd.api.Groups` bound to its name and its messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from peerd.api import GroupOutcome, Plugin
from peerd.messages import Message, PeerRef
from peerd.services.groups.members import GroupMembership, OnAnycast, OnMessage

if TYPE_CHECKING:
    from peerd.services.groups.service import GroupService


class BoundGroups:
    """Looks the service up at each call, so that a plugin may keep this object when the service is restarted."""

    def __init__(self, service: Callable[[], GroupService], plugin: Plugin) -> None:
        self._service = service
        self._plugin = plugin

    def create(self, group: str) -> None:
        """See `peerd.api.Groups.create`."""
        self._service().create(self._plugin, group)

    def join(self, group: str, on_message: OnMessage, on_anycast: OnAnycast | None = None) -> None:
        """See `peerd.api.Groups.join`."""
        membership = GroupMembership(self._plugin.name, self._plugin.messages, on_message, on_anycast)
        self._service().join(group, membership)

    def leave(self, group: str) -> None:
        """See `peerd.api.Groups.leave`."""
        self._service().leave(self._plugin.name, group)

    def multicast(self, group: str, message: Message, on_outcome: Callable[[GroupOutcome], None] | None = None) -> None:
        """See `peerd.api.Groups.multicast`."""

        def told(outcome: GroupOutcome, peer: PeerRef | None) -> None:
            if on_outcome is not None:
                on_outcome(outcome)

        self._service().multicast(self._plugin, group, message, told)

    def anycast(self, group: str, message: Message, on_outcome: Callable[[GroupOutcome, PeerRef | None], None]) -> None:
        """See `peerd.api.Groups.anycast`."""
        self._service().anycast(self._plugin, group, message, on_outcome)
