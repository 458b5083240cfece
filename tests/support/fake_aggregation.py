"""The aggregation plugin without a ring: it notes what it is asked, and the test answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from peerd.api import Host
from peerd.errors import Unavailable
from peerd.testing.host import FakeHost
from protocols.aggregation.answer import Answer, RoundProgress
from protocols.aggregation.collector import Basis, Missing
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.figures import GroupedAnswer
from protocols.aggregation.partial import ExtractionReport
from protocols.aggregation.participant import Participant
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.query import Query
from protocols.aggregation.requester import RoundListener
from protocols.aggregation.requesting import Requesting
from tests.support.fake_daemon import peer

PROGRESS = RoundProgress("aa", "enrolled", 2, 3, 1, None, 0.25)
ANSWER = Answer(
    round="aa",
    query="count by word",
    value=GroupedAnswer({"a": 3, "b": 2, "c": 1}, groups_total=3, remainder_groups_max=0, remainder=None),
    contributors=2,
    contributor_ids=(peer(1).id, peer(2).id),
    expected=3,
    expected_basis=Basis.LEAF_SET,
    missing=(Missing(peer(3).id, "127.0.0.1:7003", "no answer"),),
    missing_count=1,
    report=ExtractionReport(files_read=4, records=6, records_selected=6, notes=("x.csv: odd",)),
    duration_s=0.5,
    value_bytes=100,
    moved_bytes=200,
    computed_by=peer(1).id,
)


@dataclass
class Call:
    """One round that was asked for."""

    query: Query
    listener: RoundListener
    deadline_s: float | None

    def answer(self, answer: Answer) -> None:
        """Give the answer, with the groups that were asked for."""
        if isinstance(answer.value, GroupedAnswer):
            groups = dict(list(answer.value.groups.items())[: self.listener.top])
            answer = replace(answer, value=replace(answer.value, groups=groups))
        self.listener.finished(answer)


class FakeAggregation(Aggregation):
    """A plugin that is never started: what clients do goes to a `FakeRequesting`."""

    def __init__(self) -> None:
        super().__init__(AggregationConfig())
        self.requesting = self.fake = FakeRequesting(FakeHost(1), AggregationConfig(), {})


class FakeRequesting(Requesting):
    """Notes what it is asked; the test answers."""

    def __init__(self, host: Host, config: AggregationConfig, participants: Mapping[bytes, Participant]) -> None:
        super().__init__(host, config, participants)
        self.calls: list[Call] = []
        self.cancelled: list[bytes] = []
        self.on_call: Callable[[Call], None] = lambda call: None
        self.refusal: str | None = None

    def aggregate(self, query: Query, listener: RoundListener, deadline_s: float | None = None) -> bytes:
        """See `Requesting.aggregate`."""
        if self.refusal is not None:
            raise Unavailable(self.refusal)
        query.compiled_pattern(self.config.regex_engine)
        call = Call(query, listener, deadline_s)
        self.calls.append(call)
        self.on_call(call)
        return b"%d" % len(self.calls)

    def cancel(self, round_id: bytes) -> None:
        """See `Requesting.cancel`."""
        self.cancelled.append(round_id)


def answer_at_once(call: Call) -> None:
    """Progress, and `ANSWER`."""
    assert call.listener.progress is not None
    call.listener.progress(PROGRESS)
    call.answer(ANSWER)
