"""Durable subscriptions on disk: what they are, and which log each one's events are in."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from peerd.api import Host, Log
from peerd.lib.saved import LoggedRow, LoggedRows
from peerd.quantities import format_size
from protocols.pubsub.models import GroupName, PolicyWord
from protocols.pubsub.ports import PiecePoint
from protocols.pubsub.service import NotDone

DURABLE_MAX: Final = 240
"""Durable subscriptions of one node; each has a log, of which a plugin may have `peerd.limits.LOGS_PER_PLUGIN_MAX`."""


class SavedSubscription(LoggedRow):
    """A durable subscription. Record ``base + n`` of the log ``slot`` is its event n."""

    number: Annotated[int, Field(ge=0, lt=1 << 63)]
    name: str
    schema_name: str
    document: Any
    group: GroupName
    policy: PolicyWord
    bytes_max: int
    keep_s: int
    schema_text: str = ""
    """The schema, so that events are understood from the first moment after a restart on."""
    sid: Annotated[int, Field(ge=0, lt=1 << 64)] | None = None
    """The number under which leaves know its filter."""
    points: tuple[PiecePoint, ...] = ()
    """Where its pieces are: after a restart they take the places of the old ones, which would else stay beside them."""
    cutoff: float = 0.0
    """The setting that the points were chosen with."""
    owner: str = ""
    read: Annotated[int, Field(ge=0)] = 0
    """How far readers had come, as an older version has written it; now `peerd.lib.saved.ReadPlaces` says that."""


class SavedSubscriptions(LoggedRows[SavedSubscription]):
    """The durable subscriptions of this node, by name, as they are on disk."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.store, "subscription.", SavedSubscription, "events-{:02}", DURABLE_MAX)

    def begun(self, name: str) -> str | None:
        """What tells this one from an earlier one of its name; ``None``: there is none."""
        return format(self[name].number, "x") if name in self else None

    def bytes_of(self, owner: str) -> int:
        """How many bytes are set aside for one owner's subscriptions."""
        return sum(saved.bytes_max for saved in self.values() if saved.owner == owner)

    def free_for(self, bytes_max: int, bytes_together: int) -> tuple[int, Log]:
        """Return a log that nobody uses, emptied, for so many bytes. Raises `NotDone` if there is none.

        What a subscription may keep is set aside when it begins, so that none loses events because there are others.
        """
        aside = sum(saved.bytes_max for saved in self.values())
        if aside + bytes_max > bytes_together:
            raise NotDone(
                "quota",
                f"{len(self)} durable subscriptions have {format_size(aside)} of the "
                f"{format_size(bytes_together)} that this node has for them (durable_total): end some, or ask for "
                f"less than {format_size(bytes_max)} (keep_bytes)",
            )
        if (free := self.free()) is None:
            raise NotDone("quota", f"there are {DURABLE_MAX} durable subscriptions on this node, which is the limit")
        return free
