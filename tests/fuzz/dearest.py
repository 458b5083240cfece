"""``python -m tests.fuzz.dearest``: what the dearest valid message of each kind costs the node that gets it, and the
dearest request of each HTTP route (`tests.fuzz.dearest_routes`) the daemon.

Of each kind the smallest message that means something in a small ring (`tests.support.amplification`) is sent, and
larger ones made of it: lists as long and texts as large as their caps allow, filters that are dear to read. What is
counted is the processor time of the thread from the frame to the end of the handler; what goes to a worker is not in
it. Every measurement is made in a child process, and the dearest message of a kind three times, of which the least
counts. It is given in milliseconds of a machine that reads `_REFERENCE` in `REFERENCE_MS`, so that a busy or a slow
machine does not change the table by much.

Whatever costs more than `CHEAP_MS` stands in `PAYS`, with who pays for it; tests/sim/test_dearest.py asks for that.
"""

from __future__ import annotations

import dataclasses
import gc
import sys
import time
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgpack

from peerd.errors import Bug, PeerdError
from peerd.messages import Message, encode_body
from peerd.sim.simulation import Place, Simulation
from peerd.wire.codec import encode_request
from peerd.words import counted
from tests.support.amplification import background, placed, ring_of, verbs
from tests.support.branch import in_a_branch

CHEAP_MS: Final = 5.0
REFERENCE_MS: Final = 5.0
TRIES: Final = 3
DEAR_FILTER: Final = " OR ".join(f"a = {number}" for number in range(250))
CROSSED_FILTER: Final = " AND ".join(f"(a > {number} OR a < {number - 50})" for number in range(6))
PAYS: Final[dict[str, str]] = {
    "ProbeSub": "all that comes over other nodes together: UNPROVEN_PER_S; the rest its subscriber has to bring",
    "InsertSub": "the link: WORK_PER_S",
    "HoldEvents": "the link: LOOKS_PER_S, for each leaf",
    "ProbePub": "the publisher: events_per_member; each delivery is one that a subscriber has asked for",
    "StreamEnds": "the parent in the stream's tree, once: the stream is over then",
    "ExplainQuestion": "the link: WORK_PER_S, for the filters that are read again",
}
"""Who pays, by message, for what costs more than `CHEAP_MS`: before it is done."""


@dataclasses.dataclass(frozen=True, slots=True)
class Dearest:
    """The dearest message of a kind that was found."""

    name: str
    milliseconds: float
    size_bytes: int

    @property
    def microseconds_a_byte(self) -> float:
        """What each of its bytes costs."""
        return 1000.0 * self.milliseconds / self.size_bytes


def dearest_of(kind: type[Message]) -> Dearest:
    """Measure all candidates of a kind, and the dearest again."""
    background(ring_of(kind))  # makes the ring, once
    first: list[tuple[float, int]] = in_a_branch(lambda: _all_of(kind))
    if not first:
        raise Bug(f"no message of the kind {kind.__name__} could be sent")
    number = max(range(len(first)), key=lambda each: first[each][0])
    again = [first[number][0], *(in_a_branch(lambda: _one_of(kind, number)) for _ in range(TRIES - 1))]
    return Dearest(kind.__name__, min(again), first[number][1])


def _all_of(kind: type[Message]) -> list[tuple[float, int]]:
    simulation, member, victim, candidates = _candidates(kind)
    _warm_up(simulation, member, victim, candidates[0])
    return [_cost_of(member, victim, each) for each in candidates]


def _one_of(kind: type[Message], number: int) -> float:
    simulation, member, victim, candidates = _candidates(kind)
    _warm_up(simulation, member, victim, candidates[0])
    return _cost_of(member, victim, candidates[number])[0]


def _warm_up(simulation: Simulation, member: Place, victim: Place, smallest: Message) -> None:
    """Have another node handle such a message: the pages of a new process are copied, and modules are imported."""
    gc.disable()  # a collection of the whole ring's garbage would be counted for one message
    for other in [place for place in simulation.live_nodes() if place not in (member, victim)][:2]:
        _cost_of(member, other, smallest)


def _candidates(kind: type[Message]) -> tuple[Simulation, Place, Place, list[Message]]:
    simulation, smallest, member, victim = placed(kind)
    found = [smallest]
    for change in (lambda each: each, _dear(DEAR_FILTER), _dear(CROSSED_FILTER)):
        for factor in (1, 4, 64, 1 << 16):
            larger = change(_larger(smallest, factor))
            if larger not in found and _fits(larger):
                found.append(larger)
    return simulation, member, victim, found


def _dear(filter: str) -> Any:
    """Give whatever is named a filter this text."""

    def changed(value: Any) -> Any:
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            return value
        fields: dict[str, Any] = {}
        for each in dataclasses.fields(value):
            now = getattr(value, each.name)
            if each.name == "filter" and isinstance(now, str):
                fields[each.name] = filter
            elif isinstance(now, tuple):
                fields[each.name] = tuple(map(changed, now))
            elif dataclasses.is_dataclass(now):
                fields[each.name] = changed(now)
        return dataclasses.replace(value, **fields)

    return changed


def _larger(message: Message, factor: int) -> Message:
    """The same with its lists so many times as long, as far as their caps and that of the message allow."""
    hints = typing.get_type_hints(type(message), include_extras=True)
    for each in dataclasses.fields(message):  # type: ignore[arg-type]  # a message is a dataclass
        now = getattr(message, each.name)
        if not isinstance(now, tuple | bytes) or not now:
            continue
        most = _length_max(hints[each.name])
        longer = (now * max(1, -(-most // len(now))))[: min(most, len(now) * factor)]
        larger = dataclasses.replace(message, **{each.name: longer})  # type: ignore[type-var]  # as above
        while len(longer) > len(now) and not _fits(larger):
            longer = longer[: max(len(now), len(longer) // 2)]
            larger = dataclasses.replace(message, **{each.name: longer})  # type: ignore[type-var]  # as above
        message = larger
    return message


def _length_max(hint: Any) -> int:
    caps = [each.max_length for each in getattr(hint, "__metadata__", ()) if getattr(each, "max_length", None)]
    return min(caps, default=1 << 16)


def _fits(message: Message) -> bool:
    try:
        return len(encode_body(message)) <= type(message).BYTES_MAX
    except (Bug, PeerdError, ValueError, OverflowError):
        return False


def _cost_of(member: Place, victim: Place, message: Message) -> tuple[float, int]:
    frame = encode_request(message, 1 << 20)
    return milliseconds(lambda: victim.node.frame_received(member.peer, frame)), frame.size_bytes


def milliseconds(work: Callable[[], object]) -> float:
    """The processor time of some work, in milliseconds of a machine that reads `_REFERENCE` in `REFERENCE_MS`."""
    begun = time.thread_time()
    work()
    return reference_milliseconds(time.thread_time() - begun)


def reference_milliseconds(spent_s: float) -> float:
    """The same of processor time that was spent just now."""
    return 1000.0 * spent_s * REFERENCE_MS / _reference_ms()


def _reference_ms() -> float:
    """What a fixed piece of work takes here now: the least of three."""
    return min(_reference_once() for _ in range(3))


def _reference_once() -> float:
    begun = time.thread_time()
    for _ in range(_REFERENCE_ROUNDS):
        msgpack.unpackb(_REFERENCE)
    return max(1e-3, 1000.0 * (time.thread_time() - begun))


_REFERENCE: Final = msgpack.packb([[number, str(number), {"key": number}] for number in range(1000)])
_REFERENCE_ROUNDS: Final = 10


def kinds() -> list[type[Message]]:
    """Every message that a node can get."""
    return [kind for outer, kind in verbs() if outer is None]


def main() -> int:
    """Print both tables, the dearest first; ends with 1 where nobody pays for something dear."""
    from tests.fuzz import dearest_routes  # it measures with what is here

    wanted = sys.argv[1:]
    named = [kind for kind in kinds() if not wanted or kind.__name__ in wanted]
    unpaid = _print("message", map(dearest_of, named), PAYS, "its sender's rate of messages")
    routes = [route for route in dearest_routes.routes() if not wanted or route in wanted]
    unpaid += _print("route", map(dearest_routes.dearest_request, routes), dearest_routes.PAYS, "the client: a request")
    return 1 if unpaid else 0


def _print(what: str, measured: Iterable[Dearest], payers: Mapping[str, str], otherwise: str) -> int:
    """Print a table; returns for how many nobody pays."""
    found = []
    for each in measured:
        found.append(each)
        print(f"{each.name}: {each.milliseconds:.2f} ms", file=sys.stderr, flush=True)
    found.sort(key=lambda each: -each.milliseconds)
    width = max((len(each.name) for each in found), default=0)
    unpaid = 0
    print(f"{what:{width}} {'ms':>8} {'bytes':>7} {'µs/byte':>8}  who pays")
    for each in found:
        pays = payers.get(each.name, otherwise)
        if each.milliseconds > CHEAP_MS and each.name not in payers:
            pays, unpaid = "NOBODY", unpaid + 1
        cost = f"{each.milliseconds:8.2f} {each.size_bytes:7} {each.microseconds_a_byte:8.2f}"
        print(f"{each.name:{width}} {cost}  {pays}")
    print(f"{counted(len(found), what)}; more than {CHEAP_MS:g} ms without an admission: {unpaid}")
    return unpaid


if __name__ == "__main__":
    sys.exit(main())
