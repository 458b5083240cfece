"""The answer of a round: the value, and which nodes' data is in it and which is not.

The one model of it: the plugin makes it, the HTTP API sends it, client and command line read it. As JSON (`LINE`) an id
is 32 hexadecimal digits; fields are only ever added, and a reader ignores those that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, computed_field

from peerd.ids import format_id
from protocols.aggregation.collector import Basis, HexId, Missing
from protocols.aggregation.figures import Figure, Figures, GroupedAnswer
from protocols.aggregation.partial import ExtractionReport, Partial

CONTRIBUTORS_LISTED_MAX = 4096
"""Ids of contributors in an answer that leaves the daemon; it counts them all."""
SHARES_LISTED_MAX: Final = 256
"""Nodes of which an answer says what they read; of more, only the spread over all of them."""


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """The progress of a round as the requester sees it; ``stage`` is a short word that stays the same."""

    round_id: str
    stage: str
    enrolled: int
    expected: int
    contributors: int
    level: int | None
    elapsed_s: float
    type: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True)
class Spread:
    """How a count differs from node to node."""

    least: int = 0
    median: float = 0
    most: int = 0

    @staticmethod
    def of(counts: Iterable[int]) -> Spread:
        """Summarise the counts; without any, all figures are zero."""
        found = list(counts)
        return Spread(min(found), median(found), max(found)) if found else Spread()


@dataclass(frozen=True, slots=True)
class NodeShare:
    """How much one contributor read."""

    node: HexId
    files: int
    records: int


@dataclass(frozen=True, slots=True)
class Shares:
    """How much each contributor read; ``listed`` has the first `SHARES_LISTED_MAX` of them, in the order of ids."""

    listed: tuple[NodeShare, ...] = ()
    files: Spread = Spread()
    records: Spread = Spread()
    without_files: int = 0
    without_records: int = 0

    @staticmethod
    def of(partial: Partial | None) -> Shares:
        """Summarise the shares; for a round without any data the result is empty."""
        if partial is None:
            return Shares()
        files, records = [each[0] for each in partial.shares], [each[1] for each in partial.shares]
        rows = zip(partial.contributors[:SHARES_LISTED_MAX], files, records, strict=False)
        listed = tuple(NodeShare(*row) for row in rows)
        return Shares(listed, Spread.of(files), Spread.of(records), files.count(0), records.count(0))


@dataclass(frozen=True, slots=True)
class Rejected:
    """A node whose result was not taken: it, or somebody whose data it holds, says what cannot be true."""

    node: HexId
    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a round.

    ``value``: of one function, of several by their texts, or of groups; ``None`` for a round without any data, and
    where a function has no answer, as the mean of nothing.
    """

    round: str
    query: str
    value: Figure | Figures | GroupedAnswer
    contributors: int
    contributor_ids: tuple[HexId, ...]
    expected: int
    expected_basis: Basis
    missing: tuple[Missing, ...]
    missing_count: int
    report: ExtractionReport
    duration_s: float
    value_bytes: int
    moved_bytes: int
    computed_by: HexId | None
    files: str = ""
    """The glob that was asked for."""
    sampled: int = 0
    """Contributors to be asked at random whether they take part, in a round so large that nobody enrols."""
    confirmed: int = 0
    """How many of them have said so."""
    shares: Shares = Shares()
    rejected: tuple[Rejected, ...] = ()
    given_to: str = ""
    """The filter on the tags of those that were given the answer, too."""
    not_given: str = ""
    """Why nobody else was given it, although somebody was to be."""
    type: Literal["answer"] = "answer"

    @computed_field  # type: ignore[prop-decorator]  # what pydantic asks for, and mypy does not know
    @property
    def warnings(self) -> tuple[str, ...]:
        """Return whose result was rejected, and hints that the question is mistaken, such as a glob without a match."""
        rejected = tuple(f"the result of {format_id(each.node)} was rejected: {each.reason}" for each in self.rejected)
        not_given = (f"no other node was given the answer: {self.not_given}",) if self.not_given else ()
        return rejected + self._unconfirmed() + self._hints() + not_given

    def _unconfirmed(self) -> tuple[str, ...]:
        if self.confirmed == self.sampled:
            return ()
        asked = f"of {self.sampled} contributors drawn at random {self.confirmed} confirmed that they take part"
        return (f"{asked}; the others have died since, were not asked in time, or were invented",)

    def _hints(self) -> tuple[str, ...]:
        report = self.report
        tried = report.files_read + report.files_unreadable + report.files_binary + report.files_skipped
        if not self.files or not self.contributors or tried or report.records:
            return ()
        which = "the only node" if self.contributors == 1 else f"any of the {self.contributors} nodes"
        return (f"no file on {which} in this answer matches {self.files!r}",)

    @computed_field  # type: ignore[prop-decorator]  # what pydantic asks for, and mypy does not know
    @property
    def completeness(self) -> float:
        """Return the share of the expected nodes that contributed, from 0 to 1."""
        return min(1.0, self.contributors / self.expected) if self.expected else 0.0

    @computed_field  # type: ignore[prop-decorator]  # what pydantic asks for, and mypy does not know
    @property
    def outcome(self) -> Literal["complete", "partial", "failed"]:
        """ "complete", "partial" or "failed".

        An answer that lacks an expected node is never called complete, nor is one with a contributor that was asked in
        vain whether it is one.
        """
        if not self.contributors:
            return "failed"
        is_whole = self.missing_count == 0 and self.completeness >= 1.0
        return "complete" if is_whole and self.confirmed == self.sampled else "partial"

    def shortened(self) -> Answer:
        """For a client: not more than `CONTRIBUTORS_LISTED_MAX` ids."""
        return replace(self, contributor_ids=self.contributor_ids[:CONTRIBUTORS_LISTED_MAX])

    def without_lists(self) -> Answer:
        """For other nodes: figures, and no lists of nodes."""
        return replace(self, contributor_ids=(), missing=(), shares=replace(self.shares, listed=()))

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain data with names that stay the same."""
        plain: dict[str, Any] = LINE.dump_python(self, mode="json")
        return plain


@dataclass(frozen=True, slots=True)
class Failed:
    """The daemon could not finish the round; the last line of such a stream."""

    detail: str
    type: Literal["error"] = "error"


LINE: Final[TypeAdapter[RoundProgress | Answer | Failed]] = TypeAdapter(
    Annotated[RoundProgress | Answer | Failed, Field(discriminator="type")]
)
"""The lines of the stream that answers ``POST /v1/aggregate``."""


def value_of(partial: Partial | None, top: int | None) -> Figure | Figures | GroupedAnswer:
    """The finished value of a partial, its ``top`` groups or every one listed."""
    return None if partial is None else partial.finish(top)
