"""A node of T lies about aggregates. Whatever it says, no other node fails or is blamed, tables are bounded, and an
answer says when more nodes are counted than are known. What its subtree measures, it is believed."""

from __future__ import annotations

import pytest

from peerd.sim.hostile.member import Behaviour
from protocols.measurement.aggregates.partial import COUNT_MAX
from protocols.measurement.aggregates.tree import AGGREGATES_MAX, EACH_MAX
from protocols.measurement.front.hostile import (
    LIE,
    AsksForManySums,
    IsEverybodysChild,
    OverstatesSums,
    SaysImpossibleSums,
)
from protocols.measurement.querying.answer import BoundedValue, QueryAnswer
from protocols.measurement.standing import StandingQuery
from tests.sim.test_measurement_queries import answers
from tests.sim.test_measurement_tree_hostile import COUNT, Attacked

STALE_S = 12


class Summed(Attacked):
    """Clients of some honest nodes watch a sum, and one of them other aggregates as well."""

    def __init__(self, kind: type[Behaviour], *, is_root: bool) -> None:
        super().__init__(kind, is_root=is_root)
        self.watched = [self.watch(index, "SUM(level)") for index in range(4)]
        self.others = [self.watch(0, f"{function}(level)") for function in ("MEAN", "MIN", "MAX")]
        self.simulation.run_for(40.0)
        assert self.blamed() <= {self.liar}

    def watch(self, index: int, selected: str) -> StandingQuery:
        plugin = list(self.plugins.values())[index]
        query = plugin.queries.watch(f"WATCH SELECT {selected} FROM nodes WITHIN 0 STALE {STALE_S}s")
        query.feed.reader()
        return query

    def told(self) -> list[tuple[QueryAnswer, BoundedValue]]:
        """The last answers about the sum."""
        found = [answers(query)[-1] for query in self.watched]
        values = [answer.rows[0].values[0] for answer in found]
        return [(answer, value) for answer, value in zip(found, values, strict=True) if isinstance(value, BoundedValue)]


@pytest.mark.parametrize("is_root", [True, False])
def test_who_says_that_more_nodes_are_below_it_than_there_are_is_found_out_by_their_number(is_root: bool) -> None:
    ring = Summed(OverstatesSums, is_root=is_root)
    told = ring.told()
    assert told
    assert all(answer.sure == COUNT_MAX and "NODES" in answer.unmet for answer, _ in told)


def test_who_speaks_to_several_parents_is_counted_as_often_and_the_number_says_so() -> None:
    ring = Summed(IsEverybodysChild, is_root=False)
    told = ring.told()
    assert len(told) == len(ring.watched)
    for answer, value in told:
        twice = answer.sure - (COUNT - 1)
        assert twice >= 2 and "NODES" in answer.unmet, "more are counted than are known"
        assert value.low >= twice * LIE, "it is believed, by each of them"


def test_a_flood_of_questions_takes_no_answer_from_others_and_no_more_room_than_there_is() -> None:
    ring = Summed(AsksForManySums, is_root=False)
    told = ring.told()
    assert len(told) == len(ring.watched)
    assert all(answer.sure >= COUNT - 1 and set(answer.unmet) <= {"NODES"} for answer, _ in told), "but for itself"
    for plugin in ring.plugins.values():
        taken = plugin.aggregates.aggregates
        assert EACH_MAX <= len(taken) <= 3 * EACH_MAX + 4 < AGGREGATES_MAX, (
            "some are asked for, some are being forgotten"
        )
    assert ring.blamed() == {ring.liar}, "for what is no condition"


@pytest.mark.parametrize("is_root", [True, False])
def test_bounds_that_cannot_be_cost_their_sender_its_link_and_nobody_else_anything(is_root: bool) -> None:
    ring = Summed(SaysImpossibleSums, is_root=is_root)
    assert ring.blamed() == {ring.liar}
    if not is_root:
        told = ring.told()
        assert len(told) == len(ring.watched)
        assert all(COUNT - 3 <= answer.sure < COUNT and set(answer.unmet) == {"NODES"} for answer, _ in told)
