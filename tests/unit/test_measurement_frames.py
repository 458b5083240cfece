"""Answers of measurement queries as tables of pandas and Arrow."""

from __future__ import annotations

import sys
from math import isnan

import pytest

from peerd.errors import PeerdError, Unavailable
from protocols.measurement.front.query import printed_rows
from protocols.measurement.models import BoundedView, QueryView, RowView, TableModel, ValueView, ValueViews

CPU = BoundedView(value=0.5, low=0.45, high=0.55, age_s=1.5)
STALE = BoundedView(value=0.75, low=0.7, high=0.8, age_s=99.0, stale=True)
QUERY = QueryView(
    columns=["rack", "cpu", "MAX(load1)"],
    rows=[
        RowView(values=["1", CPU, None], certainty="yes"),
        RowView(values=[None, STALE, None], certainty="maybe", confidence=0.25),
        RowView(values=["3", None, None], certainty="yes"),
    ],
)
VALUES = ValueViews(
    values=[
        ValueView(node="0a", name="cpu", value=0.5, low=0.45, high=0.55, age_s=1.5, provider="0a", messages=2),
        ValueView(node="0b", name="cpu", value=7, low=7, high=7, age_s=99.0, stale=True),
    ]
)


def test_a_column_with_numbers_says_how_exact_and_how_old_they_are() -> None:
    assert QUERY.table() == {
        "rack": ["1", None, "3"],
        "cpu": [0.5, 0.75, None],
        "cpu_low": [0.45, 0.7, None],
        "cpu_high": [0.55, 0.8, None],
        "cpu_age_s": [1.5, 99.0, None],
        "cpu_stale": [False, True, None],
        "MAX(load1)": [None, None, None],
        "certainty": ["yes", "maybe", "yes"],
        "confidence": [1.0, 0.25, 1.0],
    }


@pytest.mark.parametrize("columns", [["cpu", "cpu_low"], ["cpu", "cpu"], ["cpu", "certainty"]])
def test_two_columns_of_one_name_are_refused(columns: list[str]) -> None:
    answer = QueryView(columns=columns, rows=[RowView(values=[CPU, CPU], certainty="yes")])
    with pytest.raises(ValueError, match="two columns have the same name: cpu, cpu_low"):
        answer.table()
    with pytest.raises(PeerdError):  # which a command shows as one line
        list(printed_rows(answer))


def test_rows_are_printed_with_the_columns_of_tables() -> None:
    rows = list(printed_rows(QUERY))
    assert {name: [row[name] for row in rows] for name in rows[0]} == QUERY.table()
    assert list(rows[0]) == list(QUERY.table())


def test_pandas() -> None:
    pytest.importorskip("pandas", reason="the extra `spark` is not installed")
    frame = QUERY.to_pandas()
    assert list(frame.columns) == list(QUERY.table()) and len(frame) == 3
    assert frame["cpu"].dtype == "float64" and isnan(frame["cpu_high"][2])
    assert list(frame.query("certainty == 'yes' and cpu_high < 0.6")["rack"]) == ["1"]
    values = VALUES.to_pandas()
    assert list(values.columns) == list(ValueView.model_fields)
    assert list(values.loc[~values["stale"], "node"]) == ["0a"] and values["high"].sum() == 7.55
    assert QueryView(columns=["node"]).to_pandas().empty


def test_arrow() -> None:
    pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
    table = QUERY.to_arrow()
    assert table.to_pydict() == QUERY.table() and str(table.schema.field("cpu_low").type) == "double"
    assert VALUES.to_arrow().num_rows == 2
    assert QueryView(columns=["node"]).to_arrow().num_rows == 0


@pytest.mark.parametrize("view", [QUERY, VALUES])
def test_without_the_library_it_says_what_to_install(view: TableModel, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Unavailable, match=r"pandas is not installed: pip install pandas, or 'peerd\[spark\]'"):
        view.to_pandas()
    with pytest.raises(Unavailable, match=r"pyarrow is not installed"):
        view.to_arrow()
