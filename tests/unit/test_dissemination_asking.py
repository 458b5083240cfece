"""Questions about a tree and about its policy: what travels, and what one node can spoil with a strange answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peerd.ids import NodeId, format_id
from peerd.messages import Message, PeerRef
from protocols.dissemination.asking import MOVES_TOLD_MAX, StreamQuestions, describe, told_moves
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.front.tree_drawing import as_dot, as_mermaid, as_svg, as_text
from protocols.dissemination.messages import MOVES_BYTES_MAX, PlanAnswer, PlanQuestion, TreeAnswer, TreeQuestion
from protocols.dissemination.models import PastMove, PlannedMove, StreamTreeNode, StreamTreeView
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.streams import Streams
from tests.support.fake_streams import PAST, PLANNED, node

ME, CHILD = PeerRef(NodeId(1), "127.0.0.1", 1), PeerRef(NodeId(2), "127.0.0.1", 2)
OWN = node(format_id(ME.id), None, 0, items_per_s=1.0)
RECORD = cast(
    StreamRecord,
    SimpleNamespace(name="news", policy="cost", key=NodeId(9), producer=SimpleNamespace(peer=ME), standbys=()),
)


def asked(answer_here: Callable[[TreeQuestion | PlanQuestion], Message], child: Message) -> StreamQuestions:
    """Questions of the producer, whose only child gives this answer."""

    class OneChild:
        id = ME.id

        def request(self, peer: PeerRef, question: Message, within_s: float, on_reply: Any, on_timeout: Any) -> None:
            assert peer == CHILD
            on_reply(child, peer)

    questions: Any = StreamQuestions(cast(Streams, SimpleNamespace(host=OneChild(), config=DisseminationConfig)))
    questions.answer_here = answer_here
    return cast(StreamQuestions, questions)


# What travels


def past(at_ms: int, unit: str = "") -> PastMove:
    return PAST.model_copy(update={"at_ms": at_ms, "unit": unit})


def planned(gain: float, unit: str = "") -> PlannedMove:
    return PLANNED.model_copy(update={"gain": gain, "unit": unit})


def test_of_what_was_done_the_newest_is_told_and_of_a_plan_what_comes_first() -> None:
    count = 2 * MOVES_TOLD_MAX
    done = json.loads(told_moves([past(number) for number in range(count)]))
    assert [each["at_ms"] for each in done] == list(range(MOVES_TOLD_MAX, count))
    plan = json.loads(told_moves([planned(number) for number in range(count)]))
    assert [each["gain"] for each in plan] == list(range(MOVES_TOLD_MAX))
    assert told_moves([]) == b"[]"


def test_what_has_no_room_is_left_out_from_the_other_end() -> None:
    long = "x" * (MOVES_BYTES_MAX // 10)
    done = json.loads(told_moves([past(number, long) for number in range(20)]))
    assert done and done[-1]["at_ms"] == 19 and done[0]["at_ms"] > 0
    plan = json.loads(told_moves([planned(number, long) for number in range(20)]))
    assert plan and plan[0]["gain"] == 0 and plan[-1]["gain"] < 19
    assert told_moves([past(1, "x" * MOVES_BYTES_MAX)]) == told_moves([planned(1, "x" * MOVES_BYTES_MAX)]) == b"[]"


# What one node can spoil


@pytest.mark.parametrize("figure", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_node_with_figures_that_are_no_numbers_counts_as_missing(figure: str) -> None:
    here = TreeAnswer(RECORD.key, OWN.model_dump_json().encode(), (CHILD,))
    strange = node("", OWN.node, 1, bytes_per_s=7.5).model_dump_json().replace("7.5", figure)
    view: list[Any] = []
    asked(lambda question: here, TreeAnswer(RECORD.key, strange.encode())).walk(RECORD, view.append)
    assert [each.node for each in view[0].nodes] == [OWN.node] and view[0].missing == [format_id(CHILD.id)]


def test_a_node_tells_no_figure_that_would_have_it_count_as_missing() -> None:
    member = SimpleNamespace(down=SimpleNamespace(children={}), second=SimpleNamespace(peer=None))
    figures = {"b": 2.0, "a": float("nan"), "c": float("inf")}
    told = SimpleNamespace(
        host=SimpleNamespace(id=ME.id, peer=ME),
        member=member,
        parent=None,
        depth=0,
        interests=(),
        record=RECORD,
        figures=lambda: figures,
    )
    answer = describe(cast(StreamNode, told), 6)
    assert StreamTreeNode.model_validate_json(answer.node).figures == {"b": 2.0}


@pytest.mark.parametrize("figure", [1e308, -1e308, 5e-324])
def test_a_node_with_figures_that_are_numbers_is_drawn_whatever_they_are(figure: float) -> None:
    here = TreeAnswer(RECORD.key, OWN.model_dump_json().encode(), (CHILD,))
    names = ("items_per_s", "bytes_per_s", "late_s", "spurious_share", "moves")
    strange = node("", OWN.node, 1, **dict.fromkeys(names, figure)).model_dump_json()
    found: list[Any] = []
    asked(lambda question: here, TreeAnswer(RECORD.key, strange.encode())).walk(RECORD, found.append)
    [view] = found
    assert len(view.nodes) == 2 and StreamTreeView.model_validate_json(view.model_dump_json()) == view
    for draw in (as_text, as_dot, as_mermaid, as_svg):
        assert draw(view)


@pytest.mark.parametrize(
    ("is_past", "spoiled"),
    [
        (True, {"predicted": "NaN"}),
        (True, {"measured": "Infinity"}),
        (True, {"at_ms": str(10**21)}),
        (True, {"at_ms": "-1"}),
        (False, {"gain": "NaN"}),
    ],
)
def test_moves_of_which_nothing_can_be_shown_are_an_answer_that_cannot_be_read(
    is_past: bool, spoiled: dict[str, str]
) -> None:
    [(name, text)] = spoiled.items()
    move = json.dumps((PAST if is_past else PLANNED).model_dump() | {name: "HERE"}).replace('"HERE"', text)
    answer = PlanAnswer(RECORD.key, f"[{move}]".encode())
    found: list[Any] = []
    asked(lambda question: answer, answer).moves(RECORD, is_past, found.append)
    assert "cannot be read" in str(found[0])


def test_a_node_of_an_older_version_is_read_as_before() -> None:
    assert StreamTreeNode.model_validate_json(OWN.model_dump_json(exclude={"second_parent"})) == OWN
