"""READ (section 4.1): values of other nodes, for whoever asks here, and for the nodes that ask this one.

What is known here and good enough is told at once, at no cost. The rest is asked over T where that is cheaper
(`placing.along`), else of the owners, all values of one owner in one question: two messages, one round trip. What came
is kept, and told to others for as long as it is young enough for them. Who asks while an answer is under way waits for
that one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from peerd.api import Host, Part, handles
from peerd.errors import ProtocolError
from peerd.ids import NodeId, short_id
from peerd.lib.leases import at_least, at_most
from peerd.messages import Message, PeerRef
from protocols.measurement.directory import Directory
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.words import Known, Measurement, Want
from protocols.measurement.messages import PAIRS_MAX, READ_MAX, NotRead, ReadValue, ReadValues, ValuesRead
from protocols.measurement.names import is_name
from protocols.measurement.placing.along import FoundAlong as Found, ReadsAlong
from protocols.measurement.placing.statistics import Statistics
from protocols.measurement.placing.wants import AskedOften
from protocols.measurement.readings import NoReading, Reading
from protocols.measurement.sources.past import PastSamples
from protocols.measurement.traffic import TrafficCounts

if TYPE_CHECKING:
    from peerd.lib.filter.selectivity import Histogram

ANSWER_S: Final = 2.0
"""An owner that has not answered by then has no answer."""
AHEAD_S: Final = ANSWER_S + 0.25
"""When something has to be asked for, so are values that would be too old by then: the latest answer, and the time by
which a busy node's timer is late."""
KEPT_MAX: Final = 8192
"""Values that were read, the newest ones."""
REMEMBERED_MAX: Final = 32
"""Values of one measurement that are remembered, for confidence; fewer than so many say nothing of it:"""
REMEMBERED_MIN: Final = 8
ASKED_MAX: Final = 16_384
"""Measurements that are asked for at a time. Of more, nothing is told."""
NOT_THERE: Final = "it is not measured there, or its source does not answer"
Told = Callable[[list[Reading | NoReading]], None]
Pairs = Callable[[str], Sequence[str]]


@dataclass(slots=True, eq=False)
class _Question:
    """Somebody's, for several values. ``told`` is called when there is an answer for each."""

    told: Told
    max_age_s: float
    is_counted: bool = True
    at_hand: int = 0
    """So many of ``found``, the first ones, were known here."""
    open: int = 0
    found: list[Found | NoReading] = field(default_factory=list)


class _Waiting(NamedTuple):
    """A question that waits for a value of this half-width."""

    question: _Question
    half_width: float

    def has_enough(self, values: Iterable[Found], now: float) -> bool:
        """Whether these values are as good as it wants them."""
        limit_s = self.question.max_age_s
        known = [each.known for each in values]
        return all(each.claim.interval.is_within(self.half_width) and now - each.basis <= limit_s for each in known)


class Readings(Part):
    """``directory`` knows where owners are. ``pairs``: the full names of a pairwise measurement of this node."""

    kept_max = KEPT_MAX

    def __init__(
        self,
        host: Host,
        caching: Caching,
        directory: Directory,
        pairs: Pairs,
        traffic: TrafficCounts,
        statistics: Statistics,
        along: ReadsAlong,
        often: AskedOften,
    ) -> None:
        self._host, self._caching, self._directory = host, caching, directory
        self._pairs, self._traffic, self._statistics = pairs, traffic, statistics
        self._along, self._often = along, often
        along.found, along.direct = self._found_along, self._ask_owners
        self._kept: OrderedDict[Measurement, Found] = OrderedDict()
        self._past = PastSamples(REMEMBERED_MAX, KEPT_MAX)
        self._asked: dict[Measurement, list[_Waiting]] = {}

    # For clients of this node

    def read(
        self,
        wants: Iterable[Want],
        max_age_s: float,
        told: Told,
        *,
        is_thrifty: bool = False,
        is_counted: bool = True,
    ) -> None:
        """Tell what is known of each of these, once for all: at most so old, or what there is, marked as stale.

        ``is_thrifty``: what is young enough now is not asked for, though it may be too old when the rest has come; and
        owners are asked, two messages each.
        ``is_counted``: a client asks.
        """
        question, together, begun = _Question(told, max_age_s, is_counted), object(), self._host.now()
        kept_s = max_age_s if self.kept_max else 0.0
        missing: dict[NodeId, list[Want]] = {}
        wanted = list(wants)
        known = [self._here(want, max_age_s) for want in wanted]
        if None in known and not is_thrifty:  # the others are older when all is told, and may be too old by then
            young_s = max_age_s - min(AHEAD_S, max_age_s / 2)
            is_held = self._often.is_held  # then it is younger by then
            known = [self._here(want, max_age_s if is_held(want.measurement) else young_s) for want in wanted]
        if is_counted and kept_s and not is_thrifty:
            self._often.note((want for want in wanted if want.measurement.owner != self._host.id), max_age_s)
        for want, here in zip(wanted, known, strict=True):
            is_foreign = is_counted and want.measurement.owner != self._host.id
            if is_foreign and here is None:
                self._statistics.read(want, max_age_s, group=together)
            elif is_foreign and want.measurement in self._caching.holder.held:
                self._statistics.read_held(want, max_age_s, begun, kept_s, together)
            if here is not None:
                question.found += here
            elif len(self._asked) >= ASKED_MAX:
                question.found.append(NoReading(want.measurement, "too much is being asked for here"))
            else:
                question.open += 1
                waiting = self._asked.setdefault(want.measurement, [])
                if not waiting:
                    missing.setdefault(want.measurement.owner, []).append(want)
                waiting.append(_Waiting(question, want.half_width))
        ask = self._ask_owners if is_thrifty else partial(self._ask, max_age_s=max_age_s)  # what owners cost is known
        question.at_hand = len(question.found)
        if not question.open:
            self._tell_all(question, begun)  # a value that was young enough is, though time goes on meanwhile
        elif all(self._directory.peer(owner) is not None for owner in missing):
            ask(missing)
        else:
            self._directory.refreshed(partial(ask, missing))

    def has(self, measurement: Measurement, half_width: float, max_age_s: float) -> bool:
        """Whether a value is known here so well that it costs no message."""
        return self._here(Want(measurement, half_width), max_age_s) is not None

    def _here(self, want: Want, max_age_s: float) -> list[Found | NoReading] | None:
        """What is known here, if it is good enough."""
        measurement, now = want.measurement, self._host.now()
        if measurement.owner == self._host.id:
            return [self._own(each) for each in self._of_name(measurement)]
        answer = self._caching.read(measurement, now, max_age_s)
        if answer is not None and not answer.is_stale and answer.claim.interval.is_within(want.half_width):
            return [Found(measurement, Known(answer.claim, now - answer.age_s), answer.provider, 0)]
        kept = self._kept.get(measurement)
        if kept is None or now - kept.known.basis > max_age_s:
            return None
        return [kept] if kept.known.claim.interval.is_within(want.half_width) else None

    def _own(self, measurement: Measurement) -> Found | NoReading:
        known = self._caching.owner.known(measurement)
        return NoReading(measurement, NOT_THERE) if known is None else Found(measurement, known, self._host.id, 0)

    def _of_name(self, measurement: Measurement) -> Sequence[Measurement]:
        """The measurement, or those of all pairs."""
        if not measurement.name.endswith("@"):
            return (measurement,)
        return [Measurement(measurement.owner, name) for name in self._pairs(measurement.name[:-1])[:PAIRS_MAX]]

    def _tell_all(self, question: _Question, now: float) -> None:
        """There is an answer for each value. Those that were here are older by now."""
        answers = [
            each if isinstance(each, NoReading) else self._reading(self._youngest(each), question.max_age_s, now)
            for each in question.found
        ]
        if question.is_counted:
            self._traffic.read(answers, question.at_hand)
        question.told(answers)

    def _youngest(self, found: Found) -> Found:
        """The same value as this node holds it now, if its bounds are as narrow: what was found while others were
        waited for, such as a node that has died, may have been vouched for anew. Also if nobody vouches for it by now:
        it was right at that time."""
        held, claim = self._caching.holder.held.get(found.measurement), found.known.claim
        if held is None or held.basis <= found.known.basis:
            return found
        if not held.claim.interval.is_within(claim.interval.half_width):
            return found
        return found._replace(known=Known(held.claim, held.basis), provider=held.provider)

    @staticmethod
    def _reading(found: Found, max_age_s: float, now: float) -> Reading:
        claim, age_s = found.known.claim, max(0.0, now - found.known.basis)
        value, is_stale = (found.measurement, claim.value, claim.interval), age_s > max_age_s
        return Reading(*value, age_s, is_stale, found.provider, claim.hops, found.messages)

    def _ask(self, missing: dict[NodeId, list[Want]], max_age_s: float) -> None:
        if (way := self._along.choose(missing)) is None:
            self._ask_owners(missing)
            return
        pairs: dict[NodeId, list[Want]] = {}
        simple: dict[NodeId, list[Want]] = {}  # only the owner knows which pairs there are
        for owner, wants in missing.items():
            for of, kind in ((pairs, True), (simple, False)):
                if some := [want for want in wants if want.measurement.name.endswith("@") is kind]:
                    of[owner] = some
        self._ask_owners(pairs)
        young_s = at_least(max_age_s - min(AHEAD_S, max_age_s / 2))  # so that it is not too old when it comes
        self._along.ask(simple, young_s, way)

    def _ask_owners(self, missing: Mapping[NodeId, Sequence[Want]]) -> None:
        for owner, wants in missing.items():
            peer = self._directory.peer(owner)
            for first in range(0, len(wants), READ_MAX):
                some = tuple(wants[first : first + READ_MAX])
                if peer is None:
                    self._unread(some, f"no node {short_id(owner)} is known")
                    continue
                asked_at = self._host.now()
                # The owner is asked for what it knows now, whatever bounds would do: they cost nothing there.
                silent = partial(self._unread, some, f"{peer.address} did not answer within {ANSWER_S:g} s")
                asked = ReadValues(some)
                self._host.request(peer, asked, ANSWER_S, partial(self._answered, some, asked_at), silent)
                self._traffic.sent(asked)

    def _answered(self, wants: Sequence[Want], asked_at: float, answer: Message, source: PeerRef) -> None:
        if not isinstance(answer, ValuesRead):
            self._unread(wants, "its owner does not know the question")
            raise ProtocolError("wrong_answer", f"{type(answer).__name__} is no answer to ReadValues")
        reasons = {each.measurement: each.reason for each in answer.missing}
        found: dict[Measurement, list[Found]] = {}
        asked = {want.measurement for want in wants}
        rates = (*answer.updates, *(0.0 for _ in answer.values))
        for value, rate in zip(answer.values, rates, strict=False):
            each = value.measurement
            name = each if each in asked else Measurement(each.owner, f"{each.name.partition('@')[0]}@")
            if name not in asked or each.owner != source.id or not is_name(each.name):
                continue  # nobody asked that node for this
            told = Found(each, Known(value.claim, asked_at - at_most(value.age_s)), source.id, 0)
            found.setdefault(name, []).append(told)
            self._keep(told)
            self._statistics.paid(each, 2.0 / len(wants), rate, (source.id, asked_at))
        messages = 2
        for want in wants:
            values = found.get(want.measurement)
            if values is None:
                reason = reasons.get(want.measurement, "")
                if want.measurement.name.endswith("@") and not reason:
                    self._tell(want.measurement, [])
                    continue
                self._missing(want.measurement, reason or "its owner says nothing of it", messages)
                messages = 0
            else:
                self._tell(want.measurement, values, messages)
                messages = 0  # one question and one answer for all of them

    def _found_along(self, found: Sequence[Found]) -> None:
        """Answers that have come over T."""
        for each in found:
            self._keep(each._replace(messages=0))
            self._tell(each.measurement, [each], each.messages, is_last=False)
        better: dict[NodeId, list[Want]] = {}  # than a cache has it, somebody wants it
        for measurement in (each.measurement for each in found if each.measurement in self._asked):
            better.setdefault(measurement.owner, []).append(Want(measurement, 0.0))
        self._ask_owners(better)

    def _keep(self, found: Found) -> None:
        self.remember(found.measurement, found.known.claim.value)
        before = self._kept.pop(found.measurement, found)
        self._kept[found.measurement] = found if found.known.basis >= before.known.basis else before
        if len(self._kept) > self.kept_max:
            self._kept.popitem(last=False)

    def remember(self, measurement: Measurement, value: float) -> None:
        """This was its value lately: so confidence in what only bounds are known of goes by how it was spread."""
        self._past.add(f"{measurement.owner:x} {measurement.name}", self._host.now(), value)

    def history(self, measurement: Measurement) -> Histogram | None:
        """How its values were spread that this node has read; ``None``: it has read too few."""
        from peerd.lib.filter.selectivity import Histogram

        past = self._past.last(f"{measurement.owner:x} {measurement.name}", REMEMBERED_MAX)
        return Histogram.of(value for _, value in past) if len(past) >= REMEMBERED_MIN else None

    def _tell(self, asked: Measurement, values: Sequence[Found], messages: int = 0, *, is_last: bool = True) -> None:
        now, waiting = self._host.now(), self._asked.pop(asked, [])
        later = [each for each in waiting if not is_last and not each.has_enough(values, now)]
        if later:
            self._asked[asked] = later
        for question in (each.question for each in waiting if each not in later):
            for each in values:
                question.found.append(each._replace(messages=messages))
                messages = 0
            self._one_less(question)

    def _unread(self, wants: Sequence[Want], reason: str) -> None:
        messages = 1
        for want in wants:
            self._missing(want.measurement, reason, messages)
            messages = 0

    def _missing(self, measurement: Measurement, reason: str, messages: int) -> None:
        """There is no answer; an older value is better than none, if it says what it is."""
        known = max(self.known(measurement), key=lambda each: each.basis, default=None)
        for question, _ in self._asked.pop(measurement, ()):
            old = None if known is None else Found(measurement, known, measurement.owner, messages)
            question.found.append(old or NoReading(measurement, reason, messages))
            messages = 0
            self._one_less(question)

    def known(self, measurement: Measurement) -> list[Known]:
        """All that is known here of a measurement, stale or not."""
        held = self._caching.holder.held.get(measurement)
        known = [Known(held.claim, held.basis)] if held is not None else []
        if (own := self._caching.owner.known(measurement)) is not None:
            known.append(own)
        if (kept := self._kept.get(measurement)) is not None:
            known.append(kept.known)
        return known

    def _one_less(self, question: _Question) -> None:
        question.open -= 1
        if not question.open:
            self._tell_all(question, self._host.now())

    # For other nodes

    @handles(ReadValues)
    def _read_by_other(self, question: ReadValues, source: PeerRef) -> ValuesRead:
        values: list[ReadValue] = []
        updates: list[float] = []
        missing: list[NotRead] = []
        now = self._host.now()
        for want in question.wants:
            if want.measurement.owner != self._host.id:
                missing.append(NotRead(want.measurement, "this node is not its owner"))
                continue
            for each in self._of_name(want.measurement):
                known = self._caching.fresh(each, now)
                if known is None:
                    missing.append(NotRead(each, NOT_THERE))
                elif len(values) < READ_MAX:
                    values.append(ReadValue(each, known.claim, max(0.0, now - known.basis)))
                    updates.append(self._along.updates_s(Want(each, want.half_width)))
        return ValuesRead(tuple(values), tuple(missing[:READ_MAX]), tuple(updates))
