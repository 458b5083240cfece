"""Which values a question is about, and what people type."""

from __future__ import annotations

import pytest
import typer

from peerd.errors import ClientRefusal
from peerd.ids import NodeId, format_id
from protocols.measurement.asking import selection, wants_of
from protocols.measurement.bounds import usual_half_width
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.front import MeasurementFront
from protocols.measurement.front.measure import shown, widths
from protocols.measurement.names import full_name, split_name
from protocols.measurement.readings import NodeEntry

WEB = NodeEntry(NodeId(1 << 100), "192.0.2.1:7420", {"role": "web"}, ("cpu", "rtt@"))
DB = NodeEntry(NodeId(2 << 100), "192.0.2.2:7420", {"role": "db"}, ("cpu",))


def test_only_those_who_measure_a_name_are_asked_for_it() -> None:
    wants = wants_of([WEB, DB], ["cpu", "rtt"], {"cpu": 0.5})
    assert [(want.measurement.owner, want.measurement.name) for want in wants] == [
        (WEB.id, "cpu"),
        (WEB.id, "rtt@"),
        (DB.id, "cpu"),
    ]
    assert wants[0].half_width == 0.5
    assert wants[1].half_width == usual_half_width("rtt")


def test_one_pair_may_be_asked_for_by_the_peer() -> None:
    full = full_name("rtt", DB.id)
    (want,) = wants_of([WEB, DB], [full], {})
    assert want.measurement.name == full
    assert split_name(full) == ("rtt", DB.id)


def test_a_name_that_nobody_measures_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ClientRefusal, match='none of these 2 nodes measures cpuu, did you mean "cpu"'):
        wants_of([WEB, DB], ["cpuu"], {})


def test_too_many_values_are_refused() -> None:
    with pytest.raises(ClientRefusal, match="more than 16,384 values"):
        wants_of([WEB] * 300, [f"name{number}" for number in range(64)], {})


@pytest.mark.parametrize(
    ("where", "nodes", "found"),
    [
        ("", (), [WEB, DB]),
        ("role = 'web'", (), [WEB]),
        ("role IN ('db', 'web') AND address LIKE '%.2:%'", (), [DB]),
        ("", ("192.0.2.2:7420",), [DB]),
        ("", (format_id(WEB.id)[:8],), [WEB]),
        ("", ("000",), []),
        (f"node = '{format_id(DB.id)}'", (), [DB]),
    ],
)
def test_nodes_are_meant_by_filter_id_or_address(where: str, nodes: tuple[str, ...], found: list[NodeEntry]) -> None:
    assert [entry for entry in (WEB, DB) if selection(where, nodes)(entry)] == found


def test_what_is_no_filter_is_refused() -> None:
    with pytest.raises(ClientRefusal, match="expected"):
        selection("role =")


@pytest.mark.parametrize("text", ["x", "-1", "nan", "inf", "cpu=", "cpu=x"])
def test_within_is_a_number_of_zero_or_more(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        widths([text], ["cpu"])


def test_within_is_for_one_name_or_for_all() -> None:
    assert widths(["0.5", "cpu=0.1"], ["cpu", "memory"]) == {"cpu": 0.1, "memory": 0.5}


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (17.0, "17"), (0.030303, "0.0303"), (123456.7, "123,457"), (-2.5, "-2.5")]
)
def test_numbers_are_shown_in_four_digits(value: float | None, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize("tags", [{"1x": "a"}, {"node": "a"}, {"a b": "c"}, {"role": "x" * 129}])
def test_tags_are_checked(tags: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="tag"):
        MeasurementConfig.model_validate({"tags": tags})


def test_tags_of_a_new_node_are_typed_as_pairs() -> None:
    (option,) = MeasurementFront().init_options()
    assert option.settings("role=web, rack=3") == {"tags": {"role": "web", "rack": "3"}}
    with pytest.raises(ValueError, match="KEY=VALUE"):
        option.settings("web")


@pytest.mark.parametrize("name", ["", "Cpu", "1cpu", "cpu@", "cpu@12", "a" * 49, "cpu@" + "G" * 32])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a measurement"):
        split_name(name)
