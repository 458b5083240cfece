"""What one plugin's configuration says that a node is, another one groups and selects by."""

from __future__ import annotations

from pathlib import Path

from peerd.sim.simulation import Simulation
from peerd.testing.simulation import ring
from protocols.aggregation.answers import GIVEN
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.figures import GroupedAnswer
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.query import parse_query
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.plugin import MeasurementQueries
from tests.support.aggregation import Round, aggregation_of

ROLES = ["web", "db", "web", ""]


def test_a_round_groups_and_selects_by_the_tags_of_nodes(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"x": 1}\n{"x": 2}\n')
    simulation = tagged_ring(tmp_path)
    assert [place.node.plugins["aggregation"].host.tags() for place in simulation.nodes] == [
        {"role": role} if role else {} for role in ROLES
    ]
    grouped = Round(simulation, query=parse_query("count by @tag.role")).answer()
    assert isinstance(grouped.value, GroupedAnswer) and dict(grouped.value.groups) == {"web": 4, "db": 2}
    assert grouped.contributors == len(ROLES)
    selected = Round(simulation, query=parse_query('sum(x) where "@tag.role" = web')).answer()
    assert selected.value == 6


def tagged_ring(data_root: Path) -> Simulation:
    """A ring of nodes with these roles, which all read the same folder."""

    def plugins(index: int) -> list[Aggregation | MeasurementQueries]:
        tags = {"role": ROLES[index]} if ROLES[index] else {}
        return [
            Aggregation(AggregationConfig(data_root=str(data_root))),
            MeasurementQueries(MeasurementConfig(tags=tags)),
        ]

    return ring(len(ROLES), 3, plugins=plugins)


def test_an_answer_is_given_to_the_nodes_that_are_meant(tmp_path: Path) -> None:
    """At no other message than that which ends the round."""
    (tmp_path / "log").write_text('{"x": 1}\n')
    simulation = tagged_ring(tmp_path)
    everybody = Round(simulation, requester=1, query=parse_query("sum(x)"), to="TRUE").answer()
    web = Round(simulation, requester=1, query=parse_query("count"), to="role = 'web'").answer()
    simulation.run_for(5.0)
    assert (everybody.given_to, web.given_to) == ("TRUE", "role = 'web'")
    for index, role in enumerate(ROLES):
        plugin = aggregation_of(simulation, index)
        assert not plugin.participating.participants
        feed = plugin.answers.feed
        found = [feed.held(number) for number in range(feed.first, feed.last + 1)]
        kept = [GIVEN.validate_json(each) for each in found if each is not None]
        queries = [each.answer.query for each in kept]
        assert queries == (["sum(x)", "count"] if role == "web" else ["sum(x)"])
        first = kept[0]
        assert (first.answer.value, first.answer.contributors) == (4, 4)
        assert first.requester == simulation.nodes[1].id
