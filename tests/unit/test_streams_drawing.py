"""A stream's tree as text, graph and picture, whatever the nodes have answered."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given, strategies as st

from protocols.dissemination.front.tree_drawing import as_dot, as_mermaid, as_svg, as_text, placed
from protocols.dissemination.models import StreamTreeNode, StreamTreeView
from tests.support.fake_streams import INNER, LEAF, PRODUCER, TREE

SVG = "{http://www.w3.org/2000/svg}"
IDS = [letter * 32 for letter in "abcdefgh"]


def test_text_has_a_line_for_each_node_below_its_parent() -> None:
    assert as_text(TREE).splitlines() == [
        "news  shaped by overlap",
        "aaaaaaaa at 10.0.0.0:7420  producer  0 of 6 children  12 items/s  2.0 KiB/s",
        "├─ bbbbbbbb at 10.0.0.1:7420  0 of 6 children  spurious 25.0%  wants price > 20; everything; and 1 more",
        "│  └─ cccccccc at 10.0.0.2:7420  0 of 6 children  spurious 5.0%  wants price > 20; everything; and 1 more",
        "└─ dddddddd at 10.0.0.1:7420  0 of 6 children  wants price > 20; everything; and 1 more",
        "4 nodes, depth 2, mean spurious share 15.0%",
    ]
    wide = as_text(TREE, is_wide=True)
    assert INNER in wide and "moves 3" in wide and "X" * 60 in wide


def test_who_did_not_answer_is_told_and_its_children_are_drawn_without_it() -> None:
    answered = [node for node in TREE.nodes if node.node != INNER]
    told = as_text(TREE.model_copy(update={"nodes": answered, "missing": [INNER]})).splitlines()
    assert told[-1] == "1 node did not answer: bbbbbbbb"
    assert told[3].startswith("cccccccc at "), "it stands at the top, since nobody says what is above it"


def test_graphs_have_each_node_and_edge_once() -> None:
    dot, mermaid = as_dot(TREE), as_mermaid(TREE)
    for graph, arrow in ((dot, " -> "), (mermaid, " --> ")):
        assert graph.count(arrow) == 3
        assert all(node.node in graph for node in TREE.nodes)
    assert dot.endswith("}") and mermaid.startswith("flowchart TD\n")


def test_the_picture_has_a_circle_a_node_redder_with_the_spurious_share() -> None:
    picture = ElementTree.fromstring(as_svg(TREE))
    circles = {circle.get("fill") for circle in picture.iter(f"{SVG}circle")}
    assert circles == {"#ffffff", "#ffd7d7", "#fff7f7"}
    assert len(list(picture.iter(f"{SVG}path"))) == 3
    assert any("price &gt; 20" in line or "price > 20" in line for line in as_svg(TREE).splitlines())


@st.composite
def answers(draw: st.DrawFn) -> StreamTreeView:
    """What nodes may answer while the tree changes, or to harm: parents that do not answer, circles, strange texts."""
    ids = draw(st.lists(st.sampled_from(IDS), unique=True, max_size=8))
    texts = st.text(max_size=20)
    nodes = [
        StreamTreeNode(
            node=id,
            address=draw(texts),
            parent=draw(st.none() | st.sampled_from(IDS)),
            depth=draw(st.integers(0, 3)),
            interests=draw(st.lists(texts, max_size=3)),
            children=0,
            fan_out=1,
            figures=draw(
                st.dictionaries(st.sampled_from(["spurious_share", 'a"<b']), st.floats(-1.0, 2.0), max_size=2)
            ),
        )
        for id in ids
    ]
    return StreamTreeView(stream="news", policy="overlap", nodes=nodes, missing=[])


@given(answers())
def test_every_answer_is_drawn_and_each_node_once(view: StreamTreeView) -> None:
    places = placed(view)
    assert sorted(place.node.node for place in places) == sorted(node.node for node in view.nodes)
    above: set[str] = set()
    for place in places:
        if place.parent is None:
            assert place.depth == 0
        else:
            assert place.parent.node in above and place.node.parent == place.parent.node
        above.add(place.node.node)
    assert as_text(view) and as_text(view, is_wide=True)
    assert as_dot(view).count("label=") == as_mermaid(view).count("[") == len(places)


@given(answers())
def test_every_picture_is_xml(view: StreamTreeView) -> None:
    assert len(list(ElementTree.fromstring(as_svg(view)).iter(f"{SVG}circle"))) == len(view.nodes)


def test_a_node_at_the_top_that_is_no_producer_says_so() -> None:
    orphan = TREE.nodes[2].model_copy(update={"parent": None, "depth": 2})
    view = TREE.model_copy(update={"nodes": [TREE.nodes[0], orphan]})
    lines = as_text(view).splitlines()
    assert PRODUCER[:8] in lines[1] and "producer" in lines[1]
    assert LEAF[:8] in lines[2] and "without a parent" in lines[2]
