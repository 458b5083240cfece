"""Statements of clients: answered once, or watched for as long as somebody reads the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

from peerd.api import Host, Part, on_timer
from peerd.errors import ClientRefusal
from peerd.ids import NodeId
from peerd.lib.feed import Feed
from peerd.lib.filter.errors import FilterError
from peerd.lib.subscriptions import ClientSubscriptions
from protocols.measurement.aggregates.tree import AggregateTree, WantedAggregate
from protocols.measurement.bounds import STALE_S, usual_half_width
from protocols.measurement.directory import Directory
from protocols.measurement.guarantee.words import Measurement
from protocols.measurement.reading import Readings
from protocols.measurement.readings import NoReading, Reading
from protocols.measurement.watching import UNREAD_S, Watch, Watching

if TYPE_CHECKING:  # a daemon that nobody asks in SQL loads none of it
    from protocols.measurement.aggregates.statements import TreePlan
    from protocols.measurement.querying.answer import QueryAnswer, Value
    from protocols.measurement.querying.statement import Statement

STANDING_MAX: Final = 64
"""Watched statements of one node's clients."""
LOOK_S: Final = 1.0
"""How often the answer of a watched statement is reckoned anew, from values that are held."""
ANSWER_BYTES: Final = 8192
"""What an answer counts for in a feed."""
_LOOK: Final = "standing"


class AnsweredQuery(NamedTuple):
    """An answer. ``lines``: of EXPLAIN; with EXPLAIN alone ``answer`` is ``None``. ``wanted``: what it has read, with
    the tightest half-widths."""

    answer: QueryAnswer | None
    lines: tuple[str, ...] = ()
    wanted: Mapping[Measurement, float] = {}


Told: TypeAlias = Callable[[AnsweredQuery | Exception], None]


@dataclass(eq=False)
class StandingQuery:
    """A statement that a client watches."""

    number: int
    statement: Statement
    feed: Feed[QueryAnswer]
    name: str = ""
    owner: str = ""
    unread_since: float | None = None
    watch: Watch | None = None
    """What holds the values that it needs."""
    aggregate: WantedAggregate | None = None
    """What is told of it in the tree T."""
    told: QueryAnswer | None = None
    is_asking: bool = False

    @property
    def id(self) -> str:
        """Its name for clients."""
        return format(self.number, "016x")

    @property
    def is_begun(self) -> bool:
        """It may be read at once."""
        return True


class Queries(Part):
    """Those of one node's clients. ``aggregates``: where there is a tree T that can answer some of them, about so
    many nodes at the ``fewest``."""

    def __init__(
        self,
        host: Host,
        directory: Directory,
        readings: Readings,
        watching: Watching,
        aggregates: AggregateTree | None = None,
        fewest: int = 0,
    ) -> None:
        self._host, self._directory, self._readings, self._watching = host, directory, readings, watching
        self._aggregates, self._fewest = aggregates, fewest
        self.standing: ClientSubscriptions[StandingQuery] = ClientSubscriptions(ClientRefusal)
        host.when_over(self.standing.let_go)

    # Once

    def ask(self, text: str, told: Told) -> None:
        """Answer a statement. Raises `ClientRefusal` for what is none."""
        statement = _parsed(text)
        if statement.watch:
            raise ClientRefusal("invalid", "WATCH has no single answer: follow /v1/measurement/query/watch")
        self._directory.refreshed(lambda: self._run(statement, told))

    def _run(self, statement: Statement, told: Told, *, is_asked: bool = True) -> None:
        from protocols.measurement.querying.explain import explain_cost, explain_plan
        from protocols.measurement.querying.running import RunningQuery

        stale_s = STALE_S if statement.stale_s is None else statement.stale_s

        def is_cached(measurement: Measurement, half_width: float) -> bool:
            return self._readings.has(measurement, half_width, stale_s)

        try:
            nodes, history = list(self._directory.known()), self._readings.history
            query = RunningQuery(statement, nodes, usual_half_width, cached=is_cached, history=history)
            plan = explain_plan(query, in_tree=self._tree_plan(statement) is not None) if statement.explain else ()
        except FilterError as error:
            told(ClientRefusal("invalid", str(error)))
            return
        if statement.explain == "plan":
            told(AnsweredQuery(None, plan))
            return

        is_thrifty = statement.budget is not None or bool(statement.explain)  # no more is spent than was reckoned

        def go_on(readings: list[Reading | NoReading]) -> None:
            query.told(readings)
            try:
                needs = query.needs()
            except FilterError as error:
                told(ClientRefusal("invalid", str(error)))
                return
            if needs:
                self._readings.read(needs, stale_s, go_on, is_thrifty=is_thrifty, is_counted=is_asked)
            else:
                answer = query.answer()
                lines = (*plan, *explain_cost(answer, query)) if statement.explain else ()
                told(AnsweredQuery(answer, lines, query.wanted))

        go_on([])

    # Watched

    def watch(self, text: str, owner: str = "") -> StandingQuery:
        """Watch a statement. Raises `ClientRefusal` for what is none, and where there are too many."""
        statement = _parsed(text)
        if statement.explain:
            raise ClientRefusal("invalid", "what is explained is not watched")
        self.standing.check_room(STANDING_MAX)
        self.standing.check_share(owner, STANDING_MAX)
        feed: Feed[QueryAnswer] = Feed(self._host.new_epoch())
        query = StandingQuery(self._host.rng.getrandbits(64), statement, feed, owner=owner)
        if not len(self.standing):
            self._host.cancel_timer(_LOOK)  # of a statement that has just ended
            self._host.set_timer(_LOOK, LOOK_S)
        self.standing.add(query)
        self._look_at(query)
        return query

    @on_timer(_LOOK)
    def _look(self, payload: None) -> None:
        for query in self.standing.unread(self._host.now(), UNREAD_S):
            self._end(query, "nobody reads it")
        for query in self.standing:
            if query.feed.ended is None and not query.is_asking:
                self._look_at(query)
        if len(self.standing):
            self._host.set_timer(_LOOK, LOOK_S)

    def _look_at(self, query: StandingQuery) -> None:
        query.is_asking = True

        def told(answered: AnsweredQuery | Exception) -> None:
            query.is_asking = False
            if query.feed.ended is not None:
                return
            if isinstance(answered, Exception):
                self._end(query, str(answered))
            elif answered.answer is not None:
                self._tell(query, answered.answer)
                self._hold(query, answered.wanted)

        def look() -> None:
            try:
                plan = None if query.feed.ended is not None else self._tree_plan(query.statement)
            except FilterError:
                plan = None  # it is refused below
            if plan is None:
                self._run(query.statement, told, is_asked=False)
            else:
                query.is_asking = False
                self._look_in_tree(query, plan)

        self._directory.refreshed(look)

    def _tree_plan(self, statement: Statement) -> TreePlan | None:
        from protocols.measurement.aggregates.statements import tree_plan

        plan = None if self._aggregates is None else tree_plan(statement, list(self._directory.known()))
        return None if plan is None or plan.expected < self._fewest else plan

    def _look_in_tree(self, query: StandingQuery, plan: TreePlan) -> None:
        """Ask T, unless that is done, and tell what is known of it now."""
        from protocols.measurement.aggregates.statements import tree_answer

        aggregates, before = cast(AggregateTree, self._aggregates), query.aggregate
        try:
            query.aggregate = before if before is not None and before.spec == plan.spec else aggregates.want(plan.spec)
        except ClientRefusal as error:
            self._end(query, str(error))
            return
        if before is not None and before is not query.aggregate:
            aggregates.unwant(before)
        if (found := aggregates.answer(query.aggregate)) is not None:
            self._tell(query, tree_answer(query.statement, plan, found))

    def _hold(self, query: StandingQuery, wanted: Mapping[Measurement, float]) -> None:
        """Hold what the statement reads from now on, as tight as it was asked for."""
        wants: dict[str, float] = {}
        owners: dict[NodeId, None] = {}
        for measurement, half_width in wanted.items():
            name = measurement.name.partition("@")[0]
            wants[name] = min(half_width, wants.get(name, half_width))
            owners[measurement.owner] = None
        if query.watch is not None and query.watch.wants == wants and query.watch.about == frozenset(owners):
            return
        stale_s = STALE_S if query.statement.stale_s is None else query.statement.stale_s
        before = query.watch
        query.watch = self._watching.hold(wants, owners, stale_s) if wants else None
        if before is not None:
            self._watching.end(before, "it is about other values now")

    @staticmethod
    def _tell(query: StandingQuery, answer: QueryAnswer) -> None:
        if query.told is not None and is_still_so(query.told, answer):
            return
        if query.feed.may_push(ANSWER_BYTES):
            query.told = answer
            query.feed.push(answer, ANSWER_BYTES)

    def _end(self, query: StandingQuery, reason: str) -> None:
        query.feed.end(reason, is_final=True)
        self.standing.remove(query)
        if query.watch is not None:
            self._watching.end(query.watch, reason)
        if query.aggregate is not None and self._aggregates is not None:
            self._aggregates.unwant(query.aggregate)
            query.aggregate = None


def is_still_so(told: QueryAnswer, now: QueryAnswer) -> bool:
    """Whether an answer that a client has still says what is known: the same rows, and all values in its bounds."""
    if (told.columns, told.missing, told.unmet.keys()) != (now.columns, now.missing, now.unmet.keys()):
        return False
    if [row.certainty for row in told.rows] != [row.certainty for row in now.rows]:
        return False
    rows = zip(told.rows, now.rows, strict=True)
    values = (pair for before, after in rows for pair in zip(before.values, after.values, strict=True))
    return all(_is_value_still_so(before, after) for before, after in values)


def _is_value_still_so(told: Value, now: Value) -> bool:
    from protocols.measurement.querying.answer import BoundedValue

    if isinstance(told, BoundedValue) and isinstance(now, BoundedValue):
        return told.stale == now.stale and told.low <= now.value <= told.high
    return told == now


def _parsed(text: str) -> Statement:
    from protocols.measurement.querying.statement import parse_statement

    try:
        return parse_statement(text)
    except FilterError as error:
        raise ClientRefusal("invalid", str(error)) from error
