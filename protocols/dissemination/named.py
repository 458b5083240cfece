"""Subscriptions with a name, on disk: they go on after their daemon was restarted, behind what a reader has taken.

Under the key ``named.NAME`` stands what a subscription wants; how far it has been read goes to a log, at most once a
second.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator

from peerd.api import Host
from peerd.errors import Unavailable
from peerd.lib.saved import ReadPlaces, Rows, SavedRow
from protocols.dissemination.models import InterestTextField, StreamName
from protocols.dissemination.names import position_of
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.subscriptions import StreamSubscription

NAMED_MAX: Final = 1000
"""Named subscriptions that are kept on disk."""
SAVE_S: Final = 1.0
"""How far readers have come is written at most so often."""
FORGOTTEN_S: Final = 86_400.0
"""A stream that is not there for so long after a restart is not waited for any more."""


def _place(text: str) -> str:
    position_of(text)
    return text


class SavedNamed(SavedRow):
    """A named subscription. ``after``: where it began. ``begun`` tells it from an earlier one of its name, whose places
    the log may still have. ``creator``: who has created the stream; empty: an older version has not said."""

    stream: StreamName
    interest: InterestTextField
    after: Annotated[str, AfterValidator(_place)]
    begun: str = ""
    creator: str = ""
    owner: str = ""


class NamedSubscriptions:
    """Those of this node, by name."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._saved = Rows(host.store, "named.", SavedNamed)
        self._places = ReadPlaces(host.store, lambda name: self._saved[name].begun if name in self._saved else None)
        self._save_at = 0.0
        self._loaded_at = host.now()

    def load(self) -> dict[str, SavedNamed]:
        """What the disk has, with ``after`` as far as it was read. What cannot be read is removed."""
        self._saved.load()
        if self._saved:
            self._places.load()
        return {name: self._resumed(name) for name in self._saved}

    def _resumed(self, name: str) -> SavedNamed:
        saved = self._saved[name]
        return saved.model_copy(update={"after": self._places.get(name, saved.after)})

    def saved(self, name: str) -> SavedNamed | None:
        """One of them, with ``after`` as far as it was read."""
        return self._resumed(name) if name in self._saved else None

    def after(self, name: str, stream: str, interest: str) -> str | None:
        """Up to where a subscription was read before a restart; ``None``: it is none of these."""
        saved = self._saved.get(name)
        is_it = saved is not None and (saved.stream, saved.interest) == (stream, interest)
        return self._resumed(name).after if is_it else None

    def is_of_other(self, name: str, record: StreamRecord) -> bool:
        """Whether this node had a subscription to an earlier stream of the name, which another node had created.

        Where that one was read to says nothing in this stream, whose ids may be lower.
        """
        saved = self._saved.get(name)
        if saved is None or saved.stream != record.name or not (saved.creator and record.creator):
            return False
        return saved.creator != record.creator

    def is_hopeless(self, why: StreamRefused) -> bool:
        """Whether a subscription that could not be made again never can be. A producer may be away for long."""
        return why.kind in ("invalid", "conflict") or self._host.now() - self._loaded_at >= FORGOTTEN_S

    def keep(self, subscription: StreamSubscription, after: str) -> None:
        """Keep one that has begun. Raises `Unavailable`."""
        name = subscription.name
        saved = SavedNamed(
            stream=subscription.stream,
            interest=subscription.interest.text,
            after=after,
            begun=self._host.new_epoch(),
            creator=subscription.creator,
            owner=subscription.owner,
        )
        if name not in self._saved and len(self._saved) >= NAMED_MAX:
            raise Unavailable(f"{NAMED_MAX} named subscriptions are kept already")
        self._saved.save(name, saved)
        self._places.pop(name, None)

    def forget(self, name: str) -> None:
        """It is over."""
        self._saved.drop(name)
        self._places.pop(name, None)

    def save(self, subscriptions: list[StreamSubscription], now: float, *, is_last: bool = False) -> None:
        """Write how far readers have come, if that is due."""
        if now < self._save_at and not is_last:
            return
        self._save_at = now + SAVE_S
        going_on = (each for each in subscriptions if each.name in self._saved and each.is_live and not each.is_ended)
        self._places.note({each.name: at for each in going_on if (at := each.taken()) is not None})
