"""What one node's interests are matched with: small items at once, large ones aside, while the loop goes on. Pure.

To read 1 MiB of XML and match it with 200 queries takes 80 to 150 ms. So that is given away (`Offload`): to a worker
thread in a daemon; in the simulator it is done at once, and costs a stated time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from peerd.errors import Unavailable
from peerd.frozen import Frozen
from peerd.limits import KIB
from protocols.dissemination.interests.guarded import GuardedSet
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.ports import Interest, InterestKind, ParsedItem

ASIDE_BYTES: Final = 64 * KIB
"""Items above this are read and matched aside."""

CHANGES_MAX: Final = 4096
"""Interests that came and went since the last large item, above which the set for large items is forgotten."""

Offload: TypeAlias = Callable[
    [Callable[..., Any], tuple[Any, ...], Callable[[Any], None], Callable[[BaseException], None]], None
]
"""Runs a function with arguments elsewhere, and calls one of the last two: with what it returned, or what it raised."""
Done: TypeAlias = Callable[[ParsedItem], None]
Failed: TypeAlias = Callable[[BaseException], None]


def at_once(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    done: Callable[[Any], None],
    failed: Callable[[BaseException], None],
) -> None:
    """The `Offload` of those who have no other."""
    try:
        outcome = function(*arguments)
    except Exception as error:  # any exception is the job's outcome, and goes to its owner
        failed(error)
    else:
        done(outcome)


def look_aside(
    offload: Offload, function: Callable[..., Any], arguments: tuple[Any, ...], done: Any, failed: Failed
) -> None:
    """Run it elsewhere; where too much waits there already, here."""

    def refused(error: BaseException) -> None:
        if isinstance(error, Unavailable):
            at_once(function, arguments, done, failed)
        else:
            failed(error)

    offload(function, arguments, done, refused)


def read_item(kind: InterestKind, item: StreamItem) -> ParsedItem:
    """Parse an item. Raises `ItemError`."""
    return ParsedItem(item, kind.content(item))


def _changed_and_matched(
    kind: InterestKind, interests: GuardedSet, changes: Mapping[bytes, Interest | None], parsed: StreamItem | ParsedItem
) -> ParsedItem:
    for id, interest in changes.items():
        if interest is None:
            interests.remove(id)
        else:
            interests.add(interest)
    found = parsed if isinstance(parsed, ParsedItem) else read_item(kind, parsed)
    return replace(found, met=interests.match(found.content))


class _Job(Frozen):
    item: StreamItem | ParsedItem
    done: Done
    failed: Failed


class Matching:
    """The interests of one node in one stream.

    A set of interests learns while it matches, so no two may use it at a time: there is one for the loop and, once a
    large item has come, one for what is done aside, which is told of changes when its next item is its turn.

    ``on_failed``: an interest cannot be matched, and why not; ``None``: all of them, together.
    """

    def __init__(self, kind: InterestKind, offload: Offload, on_failed: Callable[[Interest | None, str], None]) -> None:
        self._kind, self.offload, self._on_failed = kind, offload, on_failed
        self._interests: dict[bytes, Interest] = {}
        self._set = GuardedSet(kind)
        self._told: set[bytes] = set()
        """Interests that have failed, of which it was told."""
        self._aside: GuardedSet | None = None
        self._changes: dict[bytes, Interest | None] = {}
        """What the other set has not been told: interests that came, and (``None``) went."""
        self._jobs: deque[_Job] = deque()
        self._is_running = False

    def __len__(self) -> int:
        return len(self._set)

    def add(self, interest: Interest) -> None:
        """Add one; harmless when it is there already."""
        if interest.id not in self._interests:
            self._interests[interest.id] = interest
            self._set.add(interest)
            self._note(interest.id, interest)

    def remove(self, id: bytes) -> None:
        """Remove one."""
        if self._interests.pop(id, None) is not None:
            self._set.remove(id)
            self._told.discard(id)
            self._note(id, None)

    def _note(self, id: bytes, interest: Interest | None) -> None:
        if self._aside is None:
            return
        self._changes[id] = interest
        if len(self._changes) > CHANGES_MAX and not self._is_running:
            self._aside, self._changes = None, {}  # large items are rare here: it is made anew for the next one

    def match(self, parsed: ParsedItem) -> set[bytes]:
        """The ids of the interests that an item meets."""
        if parsed.met is not None:
            return parsed.met
        met = self._set.match(parsed.content)
        if self._set.faults:
            self._tell_faults(self._set)
        return met

    def _tell_faults(self, interests: GuardedSet) -> None:
        if interests.faults:
            interests.faults = 0
            failed = {id: why for id, why in interests.failed.items() if id in self._interests}
            if not failed:
                self._on_failed(None, "they could be matched one by one only")
            for id, why in failed.items():
                if id not in self._told:
                    self._told.add(id)
                    self._on_failed(self._interests[id], why)

    def is_for_aside(self, item: StreamItem) -> bool:
        """Whether it takes too long to read and match an item here and now."""
        return item.size > ASIDE_BYTES

    def read(self, item: StreamItem, done: Done, failed: Failed) -> None:
        """Parse an item aside."""
        look_aside(self.offload, read_item, (self._kind, item), done, failed)

    def prepare(self, item: StreamItem | ParsedItem, done: Done, failed: Failed) -> None:
        """Parse an item, unless it is parsed, and match it, aside. One after the other, in the order of the calls."""
        self._jobs.append(_Job(item, done, failed))
        if not self._is_running:
            self._next()

    def _next(self) -> None:
        job = self._jobs[0]
        if self._aside is None:
            self._aside = GuardedSet(self._kind)
            self._changes = dict(self._interests)
        changes, self._changes = self._changes, {}
        self._run(self._aside, changes, job.item, set())

    def _run(
        self,
        interests: GuardedSet,
        changes: Mapping[bytes, Interest | None],
        item: StreamItem | ParsedItem,
        met: set[bytes],
    ) -> None:
        """Match an item with a set that is changed first. ``met``: what it is known to meet already."""
        self._is_running = True
        untold, self._changes = self._changes, {}

        def tell_later() -> None:
            self._changes = {**untold, **self._changes}

        def failed(error: BaseException) -> None:
            tell_later()
            self._end(lambda job: job.failed(error))

        def done(parsed: ParsedItem) -> None:
            found = met | (parsed.met or set())
            came = {id: each for id, each in self._changes.items() if each is not None}
            tell_later()
            self._tell_faults(interests)
            if came:  # while it was matched somebody has asked for more, and counts on getting this item
                self._run(GuardedSet(self._kind), came, parsed, found)
            else:
                self._end(lambda job: job.done(replace(parsed, met=found)))

        look_aside(self.offload, _changed_and_matched, (self._kind, interests, changes, item), done, failed)

    def _end(self, tell: Callable[[_Job], None]) -> None:
        job = self._jobs.popleft()
        self._is_running = False
        try:
            tell(job)
        finally:
            if self._jobs and not self._is_running:
                self._next()
