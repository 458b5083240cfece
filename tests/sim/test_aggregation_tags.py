"""What one plugin's configuration says that a node is, another one groups and selects by."""

from __future__ import annotations

from pathlib import Path

from peerd.testing.simulation import ring
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.figures import GroupedAnswer
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.query import parse_query
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.plugin import MeasurementQueries
from tests.support.aggregation import Round

ROLES = ["web", "db", "web", ""]


def test_a_round_groups_and_selects_by_the_tags_of_nodes(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"x": 1}\n{"x": 2}\n')

    def plugins(index: int) -> list[Aggregation | MeasurementQueries]:
        tags = {"role": ROLES[index]} if ROLES[index] else {}
        return [
            Aggregation(AggregationConfig(data_root=str(tmp_path))),
            MeasurementQueries(MeasurementConfig(tags=tags)),
        ]

    simulation = ring(len(ROLES), 3, plugins=plugins)
    assert [place.node.plugins["aggregation"].host.tags() for place in simulation.nodes] == [
        {"role": role} if role else {} for role in ROLES
    ]
    grouped = Round(simulation, query=parse_query("count by @tag.role")).answer()
    assert isinstance(grouped.value, GroupedAnswer) and dict(grouped.value.groups) == {"web": 4, "db": 2}
    assert grouped.contributors == len(ROLES)
    selected = Round(simulation, query=parse_query('sum(x) where "@tag.role" = web')).answer()
    assert selected.value == 6
