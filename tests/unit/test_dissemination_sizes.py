"""Every message of streams fits into its own bytes, whatever may be in it: one that does not fails who sends it."""

from __future__ import annotations

import types
import typing
from typing import Any, Final

import pytest

from peerd.errors import Bug, ProtocolError
from peerd.ids import NodeId
from peerd.limits import HOST_LENGTH_MAX
from peerd.messages import Message, PeerRef, Struct, encode_body
from protocols.dissemination import messages
from protocols.dissemination.asking import describe
from protocols.dissemination.documents import messages as document_messages
from protocols.dissemination.loading import policy_messages
from protocols.dissemination.policies.cost import messages as cost_messages
from protocols.dissemination.policies.cost.messages import FAMILY_MAX, BranchFigures, CostReport, NodeFigures
from protocols.dissemination.policies.cost.policy import CostFactory, CostPolicy
from protocols.dissemination.policies.overlap.joining import ADD_WANTS_BYTES_MAX
from protocols.dissemination.policies.overlap.messages import AddRequest
from protocols.dissemination.stream_node import StreamNode
from tests.unit.test_dissemination_overlap import ABOVE, PEERS, ROOT, FakeTree, X, Y, policy_at

BY_BYTES: Final = (
    *(messages.Attach, messages.Widen, messages.ReplayItems, messages.ItemBatch, messages.TreeAnswer),
    *(CostReport, cost_messages.CostRelatives, AddRequest),
)
"""Their parts are counted in bytes by who makes them, because all at their largest would not fit."""
KINDS: Final = (*messages.MESSAGES, *document_messages.MESSAGES, *policy_messages())


def largest(annotation: Any, rules: tuple[Any, ...] = ()) -> Any:
    """A value of a field that takes as many bytes as any."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    length = next((rule.max_length for rule in rules if rule.max_length is not None), 0)
    if origin is typing.Annotated:
        return largest(parts[0], (*rules, *parts[1:]))
    if origin in (types.UnionType, typing.Union):
        return largest(next(part for part in parts if part is not types.NoneType), rules)
    if origin is tuple:
        return (largest(parts[0]),) * length
    if annotation is NodeId:
        return NodeId((1 << 128) - 1)
    if annotation is PeerRef:
        return PeerRef(NodeId((1 << 128) - 1), "h" * HOST_LENGTH_MAX, 65535)
    if annotation is int:
        most = [rule.lt - 1 for rule in rules if rule.lt is not None]
        return min([*most, *(rule.le for rule in rules if rule.le is not None)], default=(1 << 64) - 1)
    if annotation in (bytes, str):
        return (b"\xff" if annotation is bytes else "\U0001f600") * length
    if annotation in (bool, float):
        return annotation(1)
    return full(annotation)


def full(kind: type[Struct]) -> Any:
    hints = typing.get_type_hints(kind, include_extras=True)
    return kind(*(largest(hints[name]) for name in kind.__struct_fields__))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in BY_BYTES])
def test_a_message_at_its_largest_fits(kind: type[Message]) -> None:
    assert encode_body(full(kind))


@pytest.mark.parametrize("kind", BY_BYTES)
def test_a_message_whose_parts_are_counted_in_bytes_needs_that(kind: type[Message]) -> None:
    with pytest.raises(Bug):
        encode_body(full(kind))


# What is counted in bytes


def far(number: int) -> PeerRef:
    """A node that takes as many bytes as any."""
    return PeerRef(NodeId((1 << 127) + number), "h" * HOST_LENGTH_MAX, 65535)


def test_a_node_tells_of_as_many_children_as_fit() -> None:
    for count, name, told in ((256, "10.0.0.1", 256), (256, "h" * HOST_LENGTH_MAX, 200), (256, "é" * 126, 200)):
        children = {number: types.SimpleNamespace(peer=PeerRef(NodeId(number), name, 9)) for number in range(count)}
        own = types.SimpleNamespace(
            host=types.SimpleNamespace(id=far(0).id, peer=far(0)),
            member=types.SimpleNamespace(
                down=types.SimpleNamespace(children=children), second=types.SimpleNamespace(peer=None)
            ),
            parent=None,
            depth=0,
            interests=(),
            record=types.SimpleNamespace(key=NodeId(9)),
            figures=dict,
        )
        answer = describe(typing.cast(StreamNode, own), 6)
        assert min(told, count) <= len(answer.children) <= count and encode_body(answer)


def report_of(child: PeerRef, below: list[PeerRef], below_each: int) -> CostReport:
    def figures(peer: PeerRef, ids: list[NodeId]) -> NodeFigures:
        branches = tuple(BranchFigures(id, 1.5, 1.5, 255) for id in ids)
        return NodeFigures(peer, 0.1, 0.1, 0.5, 0.5, 1.5, True, branches)

    children = tuple(figures(peer, [NodeId(number) for number in range(below_each)]) for peer in below)
    return CostReport(FakeTree().stream, figures(child, [peer.id for peer in below]), children, ())


def cost_policy_at(tree: FakeTree, children: list[PeerRef]) -> CostPolicy:
    factory = CostFactory()
    policy = factory.make(tree, factory.settings({}))
    tree.child_refs += children
    for child in children:
        policy.child_came(child.id)
    return policy


def test_a_child_is_asked_for_as_many_delays_as_fit() -> None:
    for name, least in (("10.0.0.1", 512), ("h" * 60, 512), ("h" * HOST_LENGTH_MAX, 200)):
        tree = FakeTree()
        children = [PeerRef(NodeId(1 + number), "10.0.0.1", 9) for number in range(FAMILY_MAX)]
        policy = cost_policy_at(tree, children)
        for number, child in enumerate(children):
            below = [PeerRef(NodeId((number + 1 << 10) + each), name, 9) for each in range(20)]
            policy.received(child, report_of(child, below, 3))
        tree.at_s += 100.0
        policy.tick()
        asked = [told for _, told in tree.take(cost_messages.CostRelatives)]
        assert len(asked) == FAMILY_MAX
        for told in asked:
            assert isinstance(told, cost_messages.CostRelatives) and len(told.peers) >= least


def test_a_report_tells_of_as_many_delays_as_fit() -> None:
    tree = FakeTree()
    children = [far(number) for number in range(FAMILY_MAX)]
    policy = cost_policy_at(tree, children)
    for number, child in enumerate(children):
        below = [far((number + 1) * 1000 + each) for each in range(FAMILY_MAX)]
        policy.received(child, report_of(child, below, FAMILY_MAX))
    others = tuple(PeerRef(NodeId(5000 + number), "10.0.0.1", 9) for number in range(512))
    tree.rtts = {peer.id: 0.1 for peer in others}
    policy.tick()
    tree.at_s += 100.0
    policy.received(ABOVE, cost_messages.CostRelatives(tree.stream, 1.0, others))
    policy.tick()
    told = tree.take(CostReport)[-1][1]
    assert isinstance(told, CostReport) and len(told.children) == FAMILY_MAX and 200 < len(told.delays) < len(others)


def test_a_request_for_a_place_has_room_for_the_items_that_the_first_node_looks_up() -> None:
    """The node that is asked puts the newcomer's items in before it hands the request on."""
    tree = FakeTree(me=ROOT, parent=None)
    policy = policy_at(tree, [X, Y])
    newcomer = PEERS[-1]
    fits = ADD_WANTS_BYTES_MAX // 1008
    for count in (fits, fits + 1, 60):
        wants = tuple("a" * 997 + format(number, "03") for number in range(count))
        request = AddRequest(tree.stream, newcomer, 1, ROOT.id, wants)
        assert encode_body(request)
        if count == fits:
            policy.received(newcomer, request)
            assert len(tree.take(AddRequest)) == 1
        else:
            with pytest.raises(ProtocolError, match="at most"):
                policy.received(newcomer, request)
