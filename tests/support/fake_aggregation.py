"""The aggregation plugin without a ring: it notes what it is asked, and the test answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from peerd.errors import Unavailable
from protocols.aggregation.answer import Answer, RoundProgress
from protocols.aggregation.collector import Basis, Missing
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.functions import GroupedAnswer
from protocols.aggregation.partial import ExtractionReport
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.query import Query
from protocols.aggregation.requester import RoundListener
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


class FakeAggregation(Aggregation):
    """Notes what it is asked; the test answers."""

    def __init__(self) -> None:
        super().__init__(AggregationConfig())
        self.calls: list[Call] = []
        self.cancelled: list[bytes] = []
        self.on_call: Callable[[Call], None] = lambda call: None
        self.refusal: str | None = None

    def aggregate(self, query: Query, listener: RoundListener, deadline_s: float | None = None) -> bytes:
        """See `Aggregation.aggregate`."""
        if self.refusal is not None:
            raise Unavailable(self.refusal)
        query.compiled_pattern(self.config.regex_engine)
        call = Call(query, listener, deadline_s)
        self.calls.append(call)
        self.on_call(call)
        return b"%d" % len(self.calls)

    def cancel(self, round_id: bytes) -> None:
        """See `Aggregation.cancel`."""
        self.cancelled.append(round_id)


def answer_at_once(call: Call) -> None:
    """Progress, and `ANSWER`."""
    assert call.listener.progress is not None
    call.listener.progress(PROGRESS)
    call.listener.finished(ANSWER)
