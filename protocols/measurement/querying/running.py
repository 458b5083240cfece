"""A statement while it is answered: what to read now, and what is known so far. Sans-IO.

``needs()`` says what to read, ``told()`` takes what came, again until nothing is needed. Conditions on tags rule nodes
out before anything is read of them. Then, until REQUIRE is met or BUDGET spent, the rows of T? are asked about with
bounds half as wide, those first that probably belong to the answer (section 6.2.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import ceil, inf, prod
from typing import Final, TypeAlias

from msgspec.structs import replace

from peerd.ids import NodeId
from peerd.lib.filter import tree
from peerd.lib.filter.errors import FilterError
from peerd.lib.filter.meaning import positive
from peerd.lib.filter.selectivity import Histogram
from protocols.measurement.guarantee.words import Measurement, Want
from protocols.measurement.messages import READ_MAX
from protocols.measurement.querying.answer import QueryAnswer
from protocols.measurement.querying.answering import JudgedRow, group_rows, plain_rows, unmet
from protocols.measurement.querying.intervals import Certainty, judge, probability, undecided
from protocols.measurement.querying.plan import Knowledge, Row, first_half_width, sides_of
from protocols.measurement.querying.ranking import SKYLINE_MAX, SortColumn, in_skyline, in_top, ranked
from protocols.measurement.querying.statement import NamedColumn, Statement
from protocols.measurement.readings import NodeEntry, NoReading, Reading

MESSAGES_EACH: Final = 2
"""The most that a question to an owner costs, with its answer."""
REFINE_ROUNDS_MAX: Final = 8
"""How often bounds are halved."""
PAIRS_MAX: Final = 10_000
"""Most pairs of a join whose measurements are looked at."""

Cached: TypeAlias = Callable[[Measurement, float], bool]
"""Whether this node has a value with such bounds at hand."""
History: TypeAlias = Callable[[Measurement], Histogram | None]
"""How a measurement was spread lately."""


class RunningQuery:
    """One statement over these nodes. Raises `FilterError` when it names what no node has, or pairs too many nodes.

    ``half_width``: the usual one of a measurement, by its name.
    """

    def __init__(
        self,
        statement: Statement,
        nodes: Sequence[NodeEntry],
        half_width: Callable[[str], float],
        *,
        cached: Cached = lambda measurement, half_width: False,
        history: History = lambda measurement: None,
    ) -> None:
        self.statement = statement
        self.known = Knowledge(statement, nodes)
        self.messages = self.rounds = 0
        self._half_width, self.cached, self._history = half_width, cached, history
        self._asked: dict[Measurement, Want] = {}
        self.wanted: dict[Measurement, float] = {}
        """What was asked for so far, with the tightest half-widths."""
        self._rows: list[Row] | None = None
        self._is_spent = self._is_done = False
        self._sides = range(len(statement.tables))
        parts = statement.where.parts if isinstance(statement.where, tree.And) else (statement.where,)
        of_side = [[part for part in parts if sides_of(statement, tree.names(part)) <= {side}] for side in self._sides]
        self._side_judges = [judge(tree.all_of(own), self.known.accessor) for own in of_side]
        self._judge = judge(statement.where, self.known.accessor)
        self._positive = positive(statement.where)
        self.known.summed = sum(1 for _ in self._candidates(0))
        self._steps = self._run()

    # --- reading ----------------------------------------------------------------------------------------------------

    def needs(self) -> tuple[Want, ...]:
        """What to read now; empty when all is known that has to be, or may be asked for."""
        while not self._asked and not self._is_done:
            wanted = next(self._steps, None)
            self._is_done = wanted is None
            self._ask(wanted or {})
            self.rounds += bool(self._asked)
        return tuple(self._asked.values())

    def told(self, readings: Iterable[Reading | NoReading]) -> None:
        """Take what came of what is needed; anything else is passed over."""
        for reading in readings:
            want = self._asked.pop(reading.measurement, None)
            if want is not None:
                self.messages += reading.messages
                self.known.told(reading)

    def _ask(self, wanted: Mapping[Measurement, float]) -> None:
        """Ask for what was not asked for with such bounds before, as far as the budget reaches."""
        budget = self.statement.budget
        left = inf if budget is None else budget - self.messages
        asked = Counter[NodeId]()
        for measurement, half_width in wanted.items():
            is_cached = self.cached(measurement, half_width)
            # One question is for all that is wanted of an owner, up to so many.
            cost = 0 if is_cached or asked[measurement.owner] % READ_MAX else MESSAGES_EACH
            if self.wanted.get(measurement, inf) <= half_width:
                continue
            if cost and cost > left:
                self._is_spent = True
                if measurement not in self.known.readings:
                    self.known.reasons[measurement] = f"the budget of {budget} messages is spent"
                continue
            left -= cost
            asked[measurement.owner] += not is_cached
            self._asked[measurement] = Want(measurement, half_width)
            self.wanted[measurement] = half_width

    def _run(self) -> Iterator[Mapping[Measurement, float]]:
        """The steps of reading. Each is made when what the one before asked for has been told."""
        in_condition = [self.statement.columns[name] for name in tree.names(self.statement.where)]
        keys = (*self.statement.skyline, *self.statement.sort_by)
        selected = (*(key.selected for key in keys), *self.known.shown)
        all_columns = [*in_condition, *(each.column for each in selected if each.column is not None)]
        # One question asks an owner for everything; with a budget, first for what may make the rest needless.
        at_first = all_columns if self.statement.budget is None else in_condition
        of_nodes = [column for column in at_first if not isinstance(column.peer, int)]
        yield self._first_wants(
            (row, [column for column in of_nodes if column.side == side])
            for side in self._sides
            for row in self._candidates(side)
        )
        self._rows = self._joined()
        for columns in (in_condition, all_columns):
            yield self._first_wants((row, columns) for row in self._rows if self._judge(row) is not False)
        for left in range(REFINE_ROUNDS_MAX, 0, -1):
            yield self._refined(left)

    def _candidates(self, side: int) -> Iterator[Row]:
        """The nodes that may belong to this side of the join, each as a row in which it stands for all sides."""
        rows = ((entry,) * len(self._sides) for entry in self.known.nodes)
        return (row for row in rows if self._side_judges[side](row) is not False)

    def _joined(self) -> list[Row]:
        sides = [[row[0] for row in self._candidates(side)] for side in self._sides]
        if len(sides) > 1 and prod(map(len, sides)) > PAIRS_MAX:
            counted = " and ".join(str(len(side)) for side in sides)
            raise FilterError(f"{counted} nodes are more than {PAIRS_MAX} pairs: narrow one side by a condition")
        return list(product(*sides))

    def _first_wants(self, rows: Iterable[tuple[Row, Iterable[NamedColumn]]]) -> Mapping[Measurement, float]:
        measured = (self.known.measurement(column, row) for row, columns in rows for column in columns)
        wanted = [each for each in measured if each is not None and each not in self.wanted]
        return {
            each: first_half_width(self.statement, each.name, self._half_width, self.known.summed) for each in wanted
        }

    def _refined(self, rounds_left: int) -> Mapping[Measurement, float]:
        """Tighter bounds of what makes rows uncertain, if too many are. No bounds: nothing is left to do."""
        judged = self._judged()
        maybe = [row for row in judged if row.certainty is None]
        sure = sum(row.certainty is True for row in judged)
        lacking = ceil(self.statement.goodness * (sure + len(maybe)) - sure)
        if lacking <= 0 or self._is_spent or self._has_enough(sure):
            return {}
        in_order = sorted(maybe, key=lambda row: -row.confidence)
        tighter = [found for row in in_order if (found := self._tighter(row.row))]
        # As many rows as would do if all of them settle, and so many that all have their turn in the rounds left.
        chosen = tighter[: max(lacking, ceil(len(tighter) / rounds_left))]
        return {each: width for found in chosen for each, width in found.items()}

    def _tighter(self, row: Row) -> dict[Measurement, float]:
        """Half of the bounds on which it depends where the row belongs."""
        labels = undecided(self._positive, self.known.accessor, row)
        columns: list[NamedColumn | None] = [self.statement.columns[label] for label in labels]
        keys = self.statement.skyline if self.statement.limit is None else self.statement.sort_by
        columns += [key.selected.column for key in keys]
        found = {}
        for reading in (self.known.reading(column, row) for column in columns):
            # Whose owner did not tell bounds as narrow as was asked for cannot tell narrower ones.
            if reading and not reading.is_stale and reading.interval.is_within(self.wanted[reading.measurement]):
                found[reading.measurement] = reading.interval.half_width / 2
        return {each: half_width for each, half_width in found.items() if half_width > 0.0}

    # --- what is known ----------------------------------------------------------------------------------------------

    def _judged(self) -> list[JudgedRow]:
        """Rows of T+ and T?, in order; and by LIMIT with ORDER BY, of those the ones that are not in the top, as T-."""
        rows = self._rows if self._rows is not None else self._candidates(0) if len(self._sides) == 1 else ()
        certain = [(row, self._judge(row)) for row in rows]
        judged = [JudgedRow(row, each, self._confidence(row, each)) for row, each in certain if each is not False]
        if self.statement.skyline:
            judged = self._in_skyline(judged)
        sort_by = [(key.selected.column, key.descending) for key in self.statement.sort_by if key.selected.column]
        if not sort_by or self.statement.is_grouped:
            return sorted(judged, key=lambda row: row.certainty is None)
        columns = []
        for column, descending in sort_by:
            known, told = (
                [read(column, row.row) for row in judged] for read in (self.known.value, self.known.estimate)
            )
            columns.append(SortColumn(known, told, descending))
        order = ranked(columns, [row.certainty for row in judged])
        limit = self.statement.limit
        return [
            replace(judged[at], certainty=in_top(judged[at].certainty, place, limit), place=place)
            for at, place in order
        ]

    def _in_skyline(self, judged: Sequence[JudgedRow]) -> list[JudgedRow]:
        """What may belong to the skyline."""
        keys = self.statement.skyline
        if len(judged) > SKYLINE_MAX:
            text = f"a skyline is looked for among at most {SKYLINE_MAX} nodes, and there are {len(judged)}: use WHERE"
            raise FilterError(text)
        columns = [key.selected.column for key in keys if key.selected.column is not None]
        values = [[self.known.value(column, each.row) for each in judged] for column in columns]
        kinds = in_skyline(values, [key.descending for key in keys], [each.certainty for each in judged])
        pairs = zip(judged, kinds, strict=True)
        return [replace(each, certainty=kind) for each, kind in pairs if kind is not False]

    def _confidence(self, row: Row, certainty: Certainty) -> float:
        def spread(label: str) -> Histogram | None:
            measurement = self.known.measurement(self.statement.columns[label], row)
            return None if measurement is None else self._history(measurement)

        return 1.0 if certainty else probability(self._positive, row, self.known.accessor, spread)

    def _has_enough(self, sure: int) -> bool:
        """Whether any so many rows do, and there are so many."""
        limit, is_plain = self.statement.limit, not self.statement.sort_by and not self.statement.is_grouped
        return limit is not None and is_plain and sure >= limit

    def answer(self) -> QueryAnswer:
        """What is known now, also before everything is."""
        statement, judged = self.statement, self._judged()
        sure, maybe = (sum(row.certainty is kind for row in judged) for kind in (True, None))
        goodness = sure / (sure + maybe) if sure + maybe and not self._has_enough(sure) else 1.0
        not_met = unmet(self.known)
        if statement.require is not None and goodness < statement.require:
            why = "no more can be told" if self._is_done else "not all has been read yet"
            why = f"the budget of {statement.budget} messages is spent" if self._is_spent else why
            not_met["REQUIRE"] = f"{goodness:.3f} of the rows are certain; {why}"
        if statement.budget is not None and self.messages > statement.budget:
            not_met["BUDGET"] = f"it cost {self.messages} messages: values came from farther than was reckoned"
        columns = tuple(each.label for each in self.known.shown)
        numeric = tuple(each.label for each in self.known.shown if self.known.is_numeric(each))
        rows = tuple((group_rows if statement.is_grouped else plain_rows)(self.known, judged))
        ruled_out = len(self.known.nodes) ** len(self._sides) - sure - maybe
        missing = tuple(NoReading(each, why) for each, why in self.known.reasons.items())
        counts = (sure, maybe, ruled_out, goodness)
        return QueryAnswer(columns, rows, *counts, missing, self.messages, self.rounds, not_met, numeric)
