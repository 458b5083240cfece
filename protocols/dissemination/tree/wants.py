"""What a node wants from its parent: for itself and for those below it. Pure.

An interest is *complete since* a mark when the node has had, and gets, every item after that mark that meets it. It can
serve a child, or a subscription of its own, from that mark on. What it lacks it asks its parent for.

An interest that a wider one covers rides on that one: the parent need not know of it. Before the wider one is given up,
its riders are asked for themselves.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from peerd.frozen import Frozen
from peerd.lib.apart import compared
from peerd.limits import KIB
from protocols.dissemination.messages import WANTS_MAX
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.ports import Holder, Interest, InterestKind

SENT_MAX: Final = WANTS_MAX * 3 // 4
"""Interests that a parent is told of one by one; above it, and above the next one, it is asked for everything."""
SENT_BYTES_MAX: Final = 40 * KIB
TEXT_OVERHEAD_BYTES: Final = 8
EVERYTHING: Final = ("everything",)
"""Who wants everything, when there are too many wants."""


class Ask(Frozen):
    """Ask the parent for an interest, with what came after the mark; ``None``: with nothing of the past."""

    interest: Interest
    after: StreamPosition | None


@dataclass(slots=True)
class _Want:
    interest: Interest
    holders: set[Holder] = field(default_factory=set)
    since: StreamPosition | None = None
    """Complete since then; ``None``: not complete."""
    is_sent: bool = False
    """The parent knows of it."""
    asked: int = 0
    """So many questions the parent has not answered yet."""
    asked_after: StreamPosition | None = None
    is_kept: bool = True
    """When nobody wants it: it is kept for a while, because its last holder may come back."""

    def is_asked_for(self, after: StreamPosition | None, floor: StreamPosition) -> bool:
        """Whether the parent has been asked for it from this mark on."""
        return self.asked > 0 and (after is None or _reaches(self.asked_after, after, floor))


class Wants:
    """The wants of one node in one stream."""

    def __init__(self, kind: InterestKind) -> None:
        self._kind = kind
        self._wants: dict[bytes, _Want] = {}
        self._everything: Interest | None = None
        """Asked for because there are too many wants to tell of each."""
        self.version = 0
        """Grows when what the parent has promised to send may have changed."""

    def promised(self) -> list[Interest]:
        """What the parent sends by now."""
        return [want.interest for want in self._wants.values() if want.is_sent and want.since is not None]

    def __len__(self) -> int:
        return len(self._wants)

    def __contains__(self, id: bytes) -> bool:
        return id in self._wants

    def since(self, id: bytes) -> StreamPosition | None:
        """Since when an interest is complete; ``None``: it is not, or is not wanted."""
        want = self._wants.get(id)
        return None if want is None else want.since

    def sent(self) -> dict[bytes, Interest]:
        """What a parent has to know of."""
        return {id: want.interest for id, want in self._wants.items() if want.is_sent}

    def is_sent(self, id: bytes) -> bool:
        """Whether the parent was told of an interest, and not that it is wanted no more."""
        want = self._wants.get(id)
        return want is not None and want.is_sent

    def has_pending(self) -> bool:
        """Whether something has been asked for, and not been answered."""
        return any(want.asked for want in self._wants.values())

    def has_unwanted(self) -> bool:
        """Whether something is had that nobody wants any more."""
        return self._is_everything_too_much() or any(not want.holders for want in self._wants.values())

    def _is_everything_too_much(self) -> bool:
        """Whether so little is left that it can be asked for one by one: half, so that it seldom changes."""
        if self._everything is None:
            return False
        parsed = [_size(want.interest.text) for want in self._wants.values() if want.holders]
        return len(parsed) <= SENT_MAX // 2 and sum(parsed) <= SENT_BYTES_MAX // 2

    def ask_again(self) -> list[Ask]:
        """What has not been answered, to be asked of another parent, or once more of this one."""
        waiting = [want for want in self._wants.values() if want.asked]
        for want in waiting:
            want.asked = 1
        return [Ask(want.interest, want.asked_after) for want in waiting]

    def is_held(self, id: bytes, holder: Holder) -> bool:
        """Whether somebody still wants an interest."""
        want = self._wants.get(id)
        return want is not None and holder in want.holders

    def is_answered(self, ids: Iterable[bytes]) -> bool:
        """Whether all of these are as complete as they will be."""
        found = [self._wants.get(id) for id in ids]
        is_waiting = self._is_everything_asked()
        return all(
            want is not None and want.since is not None and not want.asked and not (is_waiting and self._rides(want))
            for want in found
        )

    def need(
        self, holder: Holder, interests: Iterable[Interest], after: StreamPosition | None, floor: StreamPosition
    ) -> list[Ask]:
        """Somebody wants these from a mark on (``None``: from now on); returns what the parent is to be asked for.

        ``floor``: this node remembers nothing before it, whatever it has had.
        """
        asks = []
        for interest in interests:
            want = self._wants.setdefault(interest.id, _Want(interest))
            want.holders.add(holder)
            if _reaches(want.since, after, floor):
                continue
            if self._everything is None and not want.is_sent and self._is_full(interest):
                self._everything = self._kind.parse("")  # nothing less: it has to cover what comes later, too
            if self._everything is not None and not want.is_sent and holder is not EVERYTHING:
                everything = self._asked_everything()
                if everything is None or not everything.is_asked_for(after, floor):
                    asks += self.need(EVERYTHING, [self._everything], after, floor)
            if after is None and self._is_everything_asked() and self._rides(want):
                continue  # what covers it by now does not matter: it has to wait in any case
            wider = self._covering(want, after, floor)
            if wider is not None:
                want.since = wider.since if want.since is None else min(want.since, wider.since or want.since)
            elif not self._rides(want) and not want.is_asked_for(after, floor):
                asks.append(_ask(want, after))
        return asks

    def hold(self, holder: Holder, interests: Iterable[Interest], since: StreamPosition) -> None:
        """Somebody wants these of the stream's producer. It has all of the stream, so there is nobody to ask."""
        self.version += 1
        for interest in interests:
            want = self._wants.setdefault(interest.id, _Want(interest))
            want.holders.add(holder)
            want.is_sent = True
            want.since = since if want.since is None else min(want.since, since)

    def at_producer(self, since: StreamPosition) -> None:
        """This node is the producer from now on, and remembers all that came after a mark: nobody need be asked."""
        self.version += 1
        if self._everything is not None:
            everything, self._everything = self._everything, None
            self.release(EVERYTHING, [everything.id], is_final=True)
        for want in self._wants.values():
            want.is_sent, want.asked, want.asked_after, want.since = True, 0, None, since

    def at_member(self) -> None:
        """This node is not the producer any more: a parent has to be told of its wants. If there are many, of all."""
        self.version += 1
        texts = [want.interest.text for want in self._wants.values()]
        if _have_room(texts):
            return
        sinces = [want.since for want in self._wants.values() if want.since is not None]
        self._everything = self._kind.parse("")
        wanted = self._wants.setdefault(self._everything.id, _Want(self._everything))
        for want in self._wants.values():
            want.is_sent = want is wanted
        wanted.holders.add(EVERYTHING)
        wanted.since = max(sinces)

    def _is_full(self, more: Interest) -> bool:
        return not self._has_room_for([more])

    def _has_room_for(self, more: Iterable[Interest]) -> bool:
        """Whether a parent can be told of these one by one, besides what it knows of."""
        sent = [want.interest.text for want in self._wants.values() if want.is_sent]
        return _have_room([*sent, *(each.text for each in more)])

    def _rides(self, want: _Want) -> bool:
        """Whether it is complete as soon as everything is."""
        return self._everything is not None and not want.is_sent and want.interest.id != self._everything.id

    def _covers(self, wide: _Want, narrow: _Want) -> bool:
        is_everything = self._everything is not None and wide.interest.id == self._everything.id
        return is_everything or compared(self._kind.covers, wide.interest, narrow.interest, False)

    def _covering(self, want: _Want, after: StreamPosition | None, floor: StreamPosition) -> _Want | None:
        others: Iterable[_Want] = self._wants.values()
        if (everything := self._asked_everything()) is not None:
            others = chain((everything,), others)  # first: no comparison is needed then
        for other in others:
            is_firm = other is not want and other.is_sent and _reaches(other.since, after, floor)
            if is_firm and self._covers(other, want):
                return other
        return None

    def _is_everything_asked(self) -> bool:
        """Whether the parent has yet to answer that it sends everything."""
        everything = self._asked_everything()
        return everything is not None and everything.asked > 0

    def _asked_everything(self) -> _Want | None:
        return None if self._everything is None else self._wants.get(self._everything.id)

    def widened(self, ids: Sequence[bytes], since: StreamPosition) -> None:
        """The parent says that these are complete since a mark."""
        self.version += 1
        if self._everything is not None and self._everything.id in ids:
            for want in self._wants.values():
                if self._rides(want):
                    want.since = since if want.since is None else min(want.since, since)
        for id in ids:
            if (told := self._wants.get(id)) is not None:
                told.asked, told.is_sent = max(0, told.asked - 1), True
                told.since = since if told.since is None else min(told.since, since)

    def complete_since(self, since: StreamPosition, told: Container[bytes]) -> None:
        """A new parent has begun to send what it was told of: where nothing of the past is asked for, that is all."""
        self.version += 1
        has_everything = self._everything is not None and self._everything.id in told
        for id, want in self._wants.items():
            is_had = id in told and want.asked > 0 and want.asked_after is None
            if is_had or (has_everything and want.since is None and self._rides(want)):
                want.asked, want.since = 0, since

    def lost(self, until: StreamPosition) -> None:
        """Something up to this mark is lost: nothing is complete before it."""
        for want in self._wants.values():
            if want.since is not None and want.since < until:
                want.since = until

    def fall_back(self, watermark: StreamPosition) -> None:
        """The stream is only so far: what was complete since a later mark is so from there on."""
        for want in self._wants.values():
            if want.since is not None:
                want.since = watermark

    def release(self, holder: Holder, ids: Iterable[bytes] | None = None, *, is_final: bool = False) -> bool:
        """Somebody wants these (or anything) no more; whether there is now something that nobody wants.

        ``is_final``: the holder will not come back for them, so they need not be kept for a while.
        """
        is_any = False
        for id in list(self._wants if ids is None else ids):
            want = self._wants.get(id)
            if want is not None:
                if holder in want.holders:
                    want.holders.discard(holder)
                    want.is_kept = not is_final
                is_any = is_any or not want.holders
        return is_any

    def give_up(self, watermark: StreamPosition, *, is_late: bool) -> tuple[dict[bytes, bool], list[Ask]]:
        """Forget what nobody wants. Returns that, with whether the parent knows of it, and what to ask it for first.

        ``is_late``: also what was kept for a while. Only what the parent knows of is: the rest is had because of
        something wider, which may be given up now.
        An interest that others ride on stays until they are complete without it: call again when they are. Where they
        are too many to be asked for one by one, everything is.
        """
        gone: dict[bytes, bool] = {}
        asks: list[Ask] = []
        if self._everything is not None and self._is_everything_too_much():
            everything, self._everything = self._everything, None
            self.release(EVERYTHING, [everything.id], is_final=True)
        parsed = [want for want in self._wants.values() if want.holders]
        waiting, unsent = [want for want in parsed if want.asked], [want for want in parsed if not want.is_sent]
        for id, want in list(self._wants.items()):
            if want.holders or (not is_late and want.is_sent and (want.is_kept or want.asked)):
                continue
            if want.is_sent and unsent and self._is_everything_asked():
                continue  # something may ride on it until the answer to that is here
            riders = self._riders(want, unsent) if want.is_sent else []
            late = [rider for rider in riders if not rider.asked and not any(self._others(rider, want))]
            if late and not self._has_room_for(rider.interest for rider in late):
                self._everything = self._kind.parse("")
                asks += self.need(EVERYTHING, [self._everything], watermark, watermark)
                continue
            asks += [_ask(rider, watermark) for rider in late]
            waiting += late
            if not riders and not any(self._covers(want, other) for other in waiting):
                del self._wants[id]
                self.version += 1
                gone[id] = want.is_sent
        return gone, asks

    def _riders(self, gone: _Want, unsent: Iterable[_Want]) -> list[_Want]:
        """Those that are complete only because this one is sent."""
        everything = self._asked_everything()
        if everything is not None and everything is not gone and everything.is_sent and everything.holders:
            return []
        return [
            want
            for want in unsent
            if not want.is_sent
            and self._covers(gone, want)
            and all(other.asked for other in self._others(want, gone))  # what was not answered brings nothing yet
        ]

    def _others(self, want: _Want, gone: _Want) -> Iterator[_Want]:
        """What the parent sends, or is asked for, that covers one just as what is given up does."""
        for other in self._wants.values():
            is_there = other is not want and other is not gone and other.is_sent and other.holders
            if is_there and self._covers(other, want):
                yield other

    def interests(self) -> Iterator[Interest]:
        """All of them, in the order in which they came."""
        return (want.interest for want in self._wants.values())

    def validate(self) -> None:
        """Assert the invariants, which hold for who has a parent that is told."""
        everything = self._kind.parse("").id
        sent = [want.interest.text for id, want in self._wants.items() if want.is_sent and id != everything]
        assert _have_room(sent), "the parent would refuse so much"


def _size(text: str) -> int:
    return len(text.encode()) + TEXT_OVERHEAD_BYTES


def _have_room(texts: Sequence[str]) -> bool:
    """Whether a parent can be told of these one by one."""
    return len(texts) <= SENT_MAX and sum(map(_size, texts)) <= SENT_BYTES_MAX


def _ask(want: _Want, after: StreamPosition | None) -> Ask:
    want.asked += 1
    want.is_sent = True
    want.asked_after = after
    return Ask(want.interest, after)


def _reaches(since: StreamPosition | None, after: StreamPosition | None, floor: StreamPosition) -> bool:
    return since is not None and (after is None or max(since, floor) <= after)
