"""Durable subscriptions on disk: what they are, and which log each one's events are in."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from peerd.api import Host, Log
from peerd.quantities import format_size
from protocols.pubsub.models import GroupName, PolicyWord
from protocols.pubsub.ports import PiecePoint
from protocols.pubsub.service import NotDone

DURABLE_MAX: Final = 240
"""Durable subscriptions of one node; each has a log, of which a plugin may have `peerd.limits.LOGS_PER_PLUGIN_MAX`."""
_PREFIX: Final = "subscription."


class SavedSubscription(BaseModel):
    """A durable subscription. Record ``base + n`` of the log ``slot`` is its event n."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    number: Annotated[int, Field(ge=0, lt=1 << 63)]
    name: str
    schema_name: str
    document: Any
    group: GroupName
    policy: PolicyWord
    bytes_max: int
    keep_s: int
    slot: Annotated[int, Field(ge=0, lt=DURABLE_MAX)]
    base: Annotated[int, Field(ge=0)]
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
    """How far readers had come, some seconds ago: what is let go behind it was not read."""


class SavedSubscriptions:
    """The durable subscriptions of this node, by name, as they are on disk. Methods raise `Unavailable` as the disk."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._saved: dict[str, SavedSubscription] = {}

    def load(self) -> list[SavedSubscription]:
        """Read them all. One that cannot be read is left where it is, and counted."""
        store = self._host.store
        keys = [key for key in store.keys() if key.startswith(_PREFIX)]  # noqa: SIM118  a store is no mapping
        for key in keys:
            try:
                saved = SavedSubscription.model_validate_json(store.get(key) or b"")
            except ValidationError:
                self._host.count("peerd_pubsub_subscriptions_damaged_total")
                continue
            self._saved[saved.name] = saved
        # Those with a place of their own come first: others may be covered by them, as they were.
        return sorted(self._saved.values(), key=lambda saved: not saved.points)

    def bytes_of(self, owner: str) -> int:
        """How many bytes are set aside for one owner's subscriptions."""
        return sum(saved.bytes_max for saved in self._saved.values() if saved.owner == owner)

    def free_slot(self, bytes_max: int, bytes_together: int) -> tuple[int, Log]:
        """Return a log that nobody uses, emptied, for so many bytes. Raises `NotDone` if there is none.

        What a subscription may keep is set aside when it begins, so that none loses events because there are others.
        """
        aside = sum(saved.bytes_max for saved in self._saved.values())
        if aside + bytes_max > bytes_together:
            raise NotDone(
                "quota",
                f"{len(self._saved)} durable subscriptions have {format_size(aside)} of the "
                f"{format_size(bytes_together)} that this node has for them (durable_total): end some, or ask for "
                f"less than {format_size(bytes_max)} (keep_bytes)",
            )
        used = {saved.slot for saved in self._saved.values()}
        slot = next((slot for slot in range(DURABLE_MAX) if slot not in used), None)
        if slot is None:
            raise NotDone("quota", f"there are {DURABLE_MAX} durable subscriptions on this node, which is the limit")
        log = self.log(slot)
        log.truncate(log.next - 1)
        return slot, log

    def log(self, slot: int) -> Log:
        """Return the log of a slot."""
        return self._host.store.log(f"events-{slot:02}")

    def save(self, saved: SavedSubscription) -> None:
        """Write one."""
        self._host.store.put(_PREFIX + saved.name, saved.model_dump_json().encode())
        self._saved[saved.name] = saved

    def change(self, name: str, **fields: Any) -> None:
        """Give one another filter, or other places in the ring. What is as it was is not written."""
        saved = self._saved[name]
        changed = saved.model_copy(update=fields)
        if changed != saved:
            self.save(changed)

    def remove(self, name: str) -> None:
        """Forget one, if it is there; its log is emptied by who uses it."""
        if name in self._saved:
            self._host.store.delete(_PREFIX + name)
            del self._saved[name]
