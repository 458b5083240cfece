"""Measures the round trip between any two nodes of the ring, and finds the node that a user's text names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from peerd.api import LookupResult
from peerd.config import split_address
from peerd.daemon.admin.subject import Subject
from peerd.daemon.admin.view import UnknownNode, match, peers
from peerd.errors import Unavailable
from peerd.ids import DIGITS, NodeId, format_id, parse_id
from peerd.messages import PeerRef
from peerd.models.admin import ReachNode, Rtt
from peerd.node.node import Node
from peerd.overlay.messages import REACH_TARGETS_MAX, Reached, ViewReply
from peerd.words import ago

PINGS: Final = 5
LOOKUP_TIMEOUT_S: Final = 10.0

Result = TypeVar("Result")


async def call(start: Callable[[Callable[[Result], None]], object]) -> Result:
    """Await the argument of a callback: ``await call(lambda done: walk(done))``."""
    future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    def done(result: Result) -> None:
        if not future.done():
            future.set_result(result)

    start(done)
    return await future


async def find_node(node: Node, text: str) -> PeerRef:
    """The one node that a full id, a unique prefix of an id, or an address names, anywhere in the ring.

    Nodes whose ids begin alike are neighbours, so the root of the prefix's first key and its successors tell whether
    there is one, and only one. Raises `UnknownNode`, `Unavailable`.
    """
    wanted = text.strip().lower()
    known = {peer.id: peer for peer in node.overlay.state.peers()}
    known[node.peer.id] = node.peer
    if ":" in wanted:
        return await _at_address(node, wanted, known)
    if not wanted or len(wanted) > DIGITS or any(digit not in "0123456789abcdef" for digit in wanted):
        raise UnknownNode(f"{text!r} is no node: give the first digits of an id, or host:port; see `peerd peers`")
    first = NodeId(int(wanted.ljust(DIGITS, "0"), 16))
    if len(wanted) == DIGITS and first in known:
        return known[first]
    here = await around(node, first) if node.is_ready else known
    try:
        return here[match(wanted, here, here)]
    except UnknownNode:
        _refuse_missing(node, wanted)
        raise


def _refuse_missing(node: Node, wanted: str) -> None:
    """Raise `UnknownNode` when the text names a missing node: it is known, but cannot be asked."""
    missing = {member.peer.id: member for member in node.overlay.missing_members()}
    found = [member for node_id, member in missing.items() if format_id(node_id).startswith(wanted)]
    if len(found) == 1:
        peer, age_s = found[0].peer, found[0].age_s
        raise UnknownNode(f"{format_id(peer.id)} at {peer.address} is missing: lost {ago(age_s)}")


async def _at_address(node: Node, wanted: str, known: dict[NodeId, PeerRef]) -> PeerRef:
    for peer in known.values():
        if peer.address == wanted:
            return peer
    try:
        host, port = split_address(wanted)
    except ValueError as error:
        raise UnknownNode(f"{wanted!r} is no address: expected host:port") from error
    dial = node.hosts[node.overlay.name].dial

    def start(done: Callable[[PeerRef | None], None]) -> None:
        dial(host, port, done)

    found: PeerRef | None = await call(start)
    if found is None:
        raise Unavailable(f"nobody of this cluster answers at {wanted}")
    return found


async def around(node: Node, key: NodeId) -> dict[NodeId, PeerRef]:
    """The root of a key, and its leaf set."""
    host = node.hosts[node.overlay.name]
    result: LookupResult = await call(lambda done: host.lookup(key, done, LOOKUP_TIMEOUT_S))
    if result.root is None:
        raise Unavailable("the lookup of that node got no answer; try again in a moment, or see `peerd ring --check`")
    root = result.root
    view = await _view(node, root)
    near = {root.id: root}
    if view is not None:
        near |= {peer.id: peer for peer in (*view.smaller, *view.larger)}
    return near


async def _view(node: Node, peer: PeerRef) -> ViewReply | None:
    return await call(lambda done: node.overlay.survey.ask_view(peer, done))


async def measure_rtt(node: Node, source: PeerRef, target: PeerRef, pings: int) -> Rtt:
    """Return the predicted and the measured round trip. Raises `UnknownNode` when both are the same node."""
    if source.id == target.id:
        raise UnknownNode(f"both are {format_id(source.id)}: name two nodes")
    survey = node.overlay.survey
    views = [await _view(node, peer) for peer in (source, target)]
    places = [view.coordinate for view in views if view is not None]
    found: dict[NodeId, Reached] | str = await call(lambda done: survey.measure(source, [target], pings, done))
    reached = None if isinstance(found, str) else found.get(target.id)
    return Rtt(
        source=_node(source),
        target=_node(target),
        predicted_s=places[0].rtt_s(places[1]) if len(places) == 2 else None,
        prediction_error=max(place.error for place in places) if len(places) == 2 else None,
        measured_s=None if reached is None else reached.rtt_s,
        is_reached=reached is not None and reached.is_reached,
        reason=found if isinstance(found, str) else None,
    )


async def measure_known(daemon: Subject, pings: int) -> list[Rtt]:
    """Ping every node that this one knows, in batches; in id order.

    The overlay's own measurements would not do: they are smoothed over a few requests, most of them from the time when
    the ring formed and every node was busy, and may be half an hour old. Raises `Unavailable`.
    """
    overlay = daemon.node.overlay
    refs = list({peer.id: peer for peer in (*overlay.leaf_set().members(), *overlay.table_peers())}.values())
    reached: dict[NodeId, Reached] = {}
    for start in range(0, len(refs), REACH_TARGETS_MAX):
        reached |= await _pinged(daemon.node, refs[start : start + REACH_TARGETS_MAX], pings)
    found = []
    for peer in peers(daemon):
        pinged = reached.get(parse_id(peer.id))
        found.append(
            Rtt(
                source=_node(daemon.node.peer),
                target=ReachNode(id=peer.id, address=peer.address),
                predicted_s=peer.predicted_rtt_s,
                prediction_error=peer.prediction_error,
                measured_s=None if pinged is None else pinged.rtt_s,
                is_reached=pinged is not None and pinged.is_reached,
            )
        )
    return found


async def _pinged(node: Node, targets: Sequence[PeerRef], pings: int) -> dict[NodeId, Reached]:
    found: dict[NodeId, Reached] | str = await call(
        lambda done: node.overlay.survey.measure(node.peer, targets, pings, done)
    )
    if isinstance(found, str):
        raise Unavailable(f"this node {found}; try again in a moment")
    return found


def _node(peer: PeerRef) -> ReachNode:
    return ReachNode(id=format_id(peer.id), address=peer.address)
