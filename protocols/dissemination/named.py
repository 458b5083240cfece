"""Subscriptions with a name, on disk: they go on after their daemon was restarted, behind what a reader has taken.

Under the key ``named.NAME`` stands what a subscription wants. How far it has been read changes all the time, so that
goes to a log, at most once a second, with only what has changed; now and then all of it, and what came before is
removed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final

from pydantic import AfterValidator, TypeAdapter

from peerd.api import Host, Log
from peerd.errors import Unavailable
from peerd.lib.saved import Rows, SavedRow, records
from peerd.limits import KIB
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
LOG_BYTES: Final = 256 * KIB
"""With more in the log, all places are written anew, and what came before is removed."""
_PLACES: Final = TypeAdapter(dict[str, str])


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
    """Those of this node, by name. The log has each place with the ``begun`` of the subscription that it is of."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._saved = Rows(host.store, "named.", SavedNamed)
        self._places: dict[str, str] = {}
        """Up to where each has been read, as the log has it; not those of earlier ones of the same names."""
        self._save_at = 0.0
        self._loaded_at = host.now()

    def load(self) -> dict[str, SavedNamed]:
        """What the disk has, with ``after`` as far as it was read. What cannot be read is removed."""
        self._saved.load()
        if self._saved:
            with suppress(Unavailable):  # then they begin where they began at first
                self._load_places()
        return {name: self._resumed(name) for name in self._saved}

    def _load_places(self) -> None:
        for _, record in records(self._log()):
            with suppress(ValueError):
                for name, place in _PLACES.validate_json(record).items():
                    at, _, begun = place.partition(" ")
                    position_of(at)
                    if name in self._saved and self._saved[name].begun == begun:
                        self._places[name] = at

    def _resumed(self, name: str) -> SavedNamed:
        saved = self._saved[name]
        return saved.model_copy(update={"after": self._places.get(name, saved.after)})

    def _log(self) -> Log:
        return self._host.store.log("places")

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
        changed = {}
        for each in subscriptions:
            if each.name in self._saved and each.is_live and not each.is_ended:
                at = each.taken()
                if at is not None and at != self._places.get(each.name):
                    changed[each.name] = at
        if changed:
            with suppress(Unavailable):  # the disk refuses: then more comes twice after a restart
                self._append(changed)

    def _append(self, changed: dict[str, str]) -> None:
        log = self._log()
        self._places.update(changed)
        if log.bytes_used <= LOG_BYTES:
            log.append(self._record(changed))
        else:
            log.append(self._record(self._places), on_durable=lambda number: log.truncate(number - 1))

    def _record(self, places: dict[str, str]) -> bytes:
        return _PLACES.dump_json({name: f"{at} {self._saved[name].begun}".rstrip() for name, at in places.items()})
