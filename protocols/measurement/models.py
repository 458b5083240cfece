"""What clients of measurement queries send and get, as JSON."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, Final

from msgspec.structs import asdict
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat

from peerd.errors import Unavailable
from peerd.ids import format_id
from peerd.lib.filter.errors import FilterError
from peerd.quantities import Duration, between_durations
from protocols.measurement.bounds import STALE_S
from protocols.measurement.guarantee.interval import VALUE_MAX
from protocols.measurement.names import FULL_NAME_LENGTH_MAX, NAME, split_name
from protocols.measurement.querying.answer import QueryAnswer
from protocols.measurement.readings import NodeEntry, NoReading, Reading

NAMES_MAX: Final = 64
"""Names in one question."""
NODES_MAX: Final = 4096
"""Nodes that one question names."""
WHERE_LENGTH_MAX: Final = 4096
QUERY_LENGTH_MAX: Final = 8192


def _full(name: str) -> str:
    split_name(name.removesuffix("@"))
    return name


def _simple(name: str) -> str:
    if NAME.fullmatch(name) is None:
        raise ValueError("expected lower-case letters, digits and _, beginning with a letter")
    return name


FullName = Annotated[str, Field(max_length=FULL_NAME_LENGTH_MAX), AfterValidator(_full)]
SimpleName = Annotated[str, Field(max_length=FULL_NAME_LENGTH_MAX), AfterValidator(_simple)]
NodeText = Annotated[str, Field(max_length=300)]
HalfWidth = Annotated[float, Field(ge=0.0, le=VALUE_MAX, allow_inf_nan=False)]
Rounded = Annotated[float, AfterValidator(lambda value: round(value, 6))]
Stale = Annotated[Duration, between_durations("1s", "1d")]


class MeasureModel(BaseModel):
    """Base: frozen, made of plain values with the same names, and a newer daemon may add fields."""

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True, defer_build=True)


class TableModel(MeasureModel):
    """Base of what has rows. What is missing, and why, is in other fields."""

    @abstractmethod
    def table(self) -> dict[str, list[Any]]:
        """Columns by name."""

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` of the rows. Raises `Unavailable` without pandas."""
        return _library("pandas").DataFrame(self.table())

    def to_arrow(self) -> Any:
        """A ``pyarrow.Table`` of the rows. Raises `Unavailable` without pyarrow."""
        return _library("pyarrow").table(self.table())


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise Unavailable(f"{name} is not installed: pip install {name}, or 'peerd[spark]', which has it") from error


class MeasuredNode(MeasureModel):
    """A node, as it has described itself. A name with ``@`` is of this node and each of several others."""

    node: str
    address: str
    tags: dict[str, str]
    measurements: list[str]

    @classmethod
    def of(cls, entry: NodeEntry) -> MeasuredNode:
        """As JSON has it."""
        return cls(
            node=format_id(entry.id),
            address=entry.address,
            tags=dict(entry.tags),
            measurements=list(entry.measurements),
        )


class MeasuredNodes(MeasureModel):
    """The nodes of the ring. ``problems``: why some may be missing."""

    nodes: list[MeasuredNode]
    problems: list[str]


class ReadRequest(BaseModel):
    """Values of which names, of which nodes, how exactly, how old at most.

    ``nodes``: ids (or their beginnings) and addresses; ``where``: a filter on tags, node and address; neither: all.
    ``within``: half the width of bounds, by name; ``stale``: the oldest that counts.
    """

    model_config = ConfigDict(extra="forbid")

    names: Annotated[list[FullName], Field(min_length=1, max_length=NAMES_MAX)]
    nodes: Annotated[list[NodeText], Field(max_length=NODES_MAX)] = []
    where: Annotated[str, Field(max_length=WHERE_LENGTH_MAX)] = ""
    within: Annotated[dict[str, HalfWidth], Field(max_length=NAMES_MAX)] = {}
    stale: Stale = STALE_S


class ValueView(MeasureModel):
    """A value: it was from ``low`` to ``high`` up to a moment that is at most ``age_s`` ago.

    ``stale``: it is older than was asked for. ``provider``: the node that told, its owner or a cache; ``hops``: nodes
    since the owner. ``messages``: what this one has cost.
    """

    node: str
    name: str
    value: float
    low: float
    high: float
    age_s: Rounded
    stale: bool = False
    provider: str = ""
    hops: int = 0
    messages: int = 0

    @classmethod
    def of(cls, reading: Reading) -> ValueView:
        """As JSON has it."""
        return cls(
            node=format_id(reading.measurement.owner),
            name=reading.measurement.name,
            value=reading.value,
            low=reading.interval.low,
            high=reading.interval.high,
            age_s=reading.age_s,
            stale=reading.is_stale,
            provider=format_id(reading.provider),
            hops=reading.hops,
            messages=reading.messages,
        )


class MissingView(MeasureModel):
    """A value that there is not, and why."""

    node: str
    name: str
    reason: str

    @classmethod
    def of(cls, missing: NoReading) -> MissingView:
        """As JSON has it."""
        return cls(node=format_id(missing.measurement.owner), name=missing.measurement.name, reason=missing.reason)


class ValueViews(TableModel):
    """Values, and those that are missing. ``problems``: why nodes may be missing that nobody knows of."""

    values: list[ValueView]
    missing: list[MissingView] = []
    problems: list[str] = []
    messages: int = 0

    @classmethod
    def of(cls, readings: Iterable[Reading | NoReading], problems: list[str]) -> ValueViews:
        """As JSON has it, by node and name."""
        in_order = sorted(readings, key=lambda each: (each.measurement.owner, each.measurement.name))
        found = [ValueView.of(each) for each in in_order if isinstance(each, Reading)]
        missing = [MissingView.of(each) for each in in_order if isinstance(each, NoReading)]
        messages = sum(each.messages for each in found)
        return cls(values=found, missing=missing, problems=problems, messages=messages)

    def table(self) -> dict[str, list[Any]]:
        """A row for each value, with the fields of `ValueView`."""
        return {name: [getattr(each, name) for each in self.values] for name in ValueView.model_fields}


class QueryRequest(BaseModel):
    """A statement, such as ``SELECT node, cpu FROM nodes WHERE role = 'web' AND cpu < 0.5 WITHIN 0.05 STALE 5s``."""

    model_config = ConfigDict(extra="forbid")

    query: Annotated[str, Field(max_length=QUERY_LENGTH_MAX)]


class BoundedView(MeasureModel):
    """A measured value or an aggregate: between ``low`` and ``high``. ``age_s``: of the oldest value in it."""

    value: float
    low: float
    high: float
    age_s: Rounded
    stale: bool = False


class RowView(MeasureModel):
    """A row. ``certainty``: "yes", or "maybe" where the bounds do not tell whether it belongs to the answer."""

    values: list[BoundedView | str | None]
    certainty: str
    confidence: Rounded = 1.0
    places: tuple[int, int] | None = None


BOUNDED_PARTS: Final[Mapping[str, str]] = {
    "": "value",
    "_low": "low",
    "_high": "high",
    "_age_s": "age_s",
    "_stale": "stale",
}
"""What comes behind the name of a column with numbers, for which field of `BoundedView`."""


class QueryView(TableModel):
    """The answer to a statement. ``sure``, ``maybe``, ``ruled_out``: the sizes of T+, T? and T-. ``unmet``: which of
    WITHIN, STALE, REQUIRE and BUDGET were not met, and why. ``explained``: the lines of EXPLAIN. ``numeric``: the
    columns that have numbers, also where no row has one now."""

    columns: list[str] = []
    rows: list[RowView] = []
    sure: int = 0
    maybe: int = 0
    ruled_out: int = 0
    goodness: float = 1.0
    missing: list[MissingView] = []
    messages: int = 0
    rounds: int = 0
    unmet: dict[str, str] = {}
    problems: list[str] = []
    explained: list[str] = []
    numeric: list[str] = []

    @classmethod
    def of(cls, answer: QueryAnswer | None, problems: Sequence[str] = (), explained: Sequence[str] = ()) -> QueryView:
        """As JSON has it."""
        told: dict[str, Any] = {"problems": problems, "explained": explained}
        if answer is not None:
            told |= asdict(answer) | {"missing": [MissingView.of(each) for each in answer.missing]}
        return cls.model_validate(told)

    def table(self) -> dict[str, list[Any]]:
        """NAME, and where it has numbers NAME_low, NAME_high, NAME_age_s, NAME_stale; ``certainty``, ``confidence``.

        Raises `FilterError`, a ``ValueError``, where two have the same name.
        """
        found: list[tuple[str, list[Any]]] = []
        for at, name in enumerate(self.columns):
            cells = [row.values[at] for row in self.rows]
            if name in self.numeric or any(isinstance(each, BoundedView) for each in cells):
                parts = BOUNDED_PARTS.items()
                found += [(f"{name}{end}", [getattr(each, of, None) for each in cells]) for end, of in parts]
            else:
                found.append((name, cells))
        found += [(name, [getattr(row, name) for row in self.rows]) for name in ("certainty", "confidence")]
        table = dict(found)
        if len(table) < len(found):
            raise FilterError(f"two columns have the same name: {', '.join(name for name, _ in found)}")
        return table


class PutValue(BaseModel):
    """A value that an application measures on this machine. It counts for ``ttl``, unless it is put again."""

    model_config = ConfigDict(extra="forbid")

    value: Annotated[FiniteFloat, Field(ge=-VALUE_MAX, le=VALUE_MAX)]
    ttl: Annotated[Duration, between_durations("1s", "1d")] = 60.0


class OwnView(MeasureModel):
    """A measurement of this node."""

    name: str
    source: str
    value: float | None
    age_s: Rounded | None


class OwnViews(MeasureModel):
    """What this node measures. ``problems``: sources that do not answer, and why."""

    measurements: list[OwnView]
    problems: list[str] = []
