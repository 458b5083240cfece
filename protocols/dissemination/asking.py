"""Questions about a whole tree, asked by any node: what its nodes are, and what the producer's policy plans."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from peerd.api import Part, handles
from peerd.errors import Unavailable
from peerd.ids import NodeId, format_id, parse_id
from peerd.messages import Message, PeerRef
from protocols.dissemination.messages import (
    ENVELOPE_BYTES,
    FAN_OUT_MAX,
    MOVES_BYTES_MAX,
    NODE_BYTES_MAX,
    PlanAnswer,
    PlanQuestion,
    TreeAnswer,
    TreeQuestion,
    that_fit,
)
from protocols.dissemination.models import (
    PastMove,
    PlannedMove,
    StreamHistoryView,
    StreamPlanView,
    StreamTreeNode,
    StreamTreeView,
    StreamView,
)
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.streams import Streams, then
from protocols.dissemination.views import view_of

PARALLEL: Final = 16
"""Nodes that are asked at the same time."""
NODES_MAX: Final = 5000
"""Nodes that one walk asks."""
INTERESTS_TOLD_MAX: Final = 16
INTEREST_TOLD_CHARS: Final = 200
FIGURES_TOLD_MAX: Final = 64
MOVES_TOLD_MAX: Final = 100
WALKS_MAX: Final = 8
"""Walks that one node has under way."""


def describe(node: StreamNode, fan_out: int) -> TreeAnswer:
    """What one node says of itself."""
    children = [child.peer for child in node.member.down.children.values()]
    told = StreamTreeNode(
        node=format_id(node.host.id),
        address=node.host.peer.address,
        parent=None if node.parent is None else format_id(node.parent.id),
        depth=node.depth or 0,
        interests=[each.text[:INTEREST_TOLD_CHARS] for each in node.interests[:INTERESTS_TOLD_MAX]],
        children=len(children),
        fan_out=fan_out,
        figures=dict(_finite(node.figures())[:FIGURES_TOLD_MAX]),
        second_parent=None if node.member.second.peer is None else format_id(node.member.second.peer.id),
    )
    data = told.model_dump_json().encode()
    if len(data) > NODE_BYTES_MAX:
        data = told.model_copy(update={"interests": [], "figures": {}}).model_dump_json().encode()
    room = TreeAnswer.BYTES_MAX - ENVELOPE_BYTES - len(data)
    return TreeAnswer(node.record.key, data, that_fit(children[:FAN_OUT_MAX], room))


def _finite(figures: Mapping[str, float]) -> list[tuple[str, float]]:
    """In the order of their names, without those that are no numbers in JSON: who asks would not take the answer."""
    return [each for each in sorted(figures.items()) if math.isfinite(each[1])]


def told_moves(moves: Sequence[PlannedMove] | Sequence[PastMove]) -> bytes:
    """Moves as they travel: as many as there is room for. Of a plan those are the first, which would be made next; of
    what was done, where the oldest come first, the last."""
    is_past = any(isinstance(each, PastMove) for each in moves[:1])
    some = moves[-MOVES_TOLD_MAX:] if is_past else moves[:MOVES_TOLD_MAX]
    found = [each.model_dump(mode="json") for each in some]
    while len(data := json.dumps(found, separators=(",", ":")).encode()) > MOVES_BYTES_MAX:
        half = len(found) // 2
        found = found[-half:] if is_past and half else found[:half]
    return data


def node_in_tree(view: StreamTreeView, wanted: str) -> PeerRef:
    """The node of a tree that a client means, by its address or the beginning of its id. Raises `StreamRefused`."""
    found = [each for each in view.nodes if wanted and (each.address == wanted or each.node.startswith(wanted))]
    if len(found) == 1:
        host, _, port = found[0].address.rpartition(":")
        return PeerRef(parse_id(found[0].node), host.strip("[]"), int(port))
    if found:
        raise StreamRefused("invalid", f"{len(found)} nodes of the tree of {view.stream} begin with {wanted:.40}")
    raise StreamRefused(
        "unknown",
        f"no node in the tree of {view.stream} has the address or id {wanted:.80}: subscribe there first",
    )


class StreamQuestions(Part):
    """Of clients, and of other nodes. Every method may raise `Unavailable` at once; ``on_done`` gets the answer, that,
    or `StreamRefused`."""

    def __init__(self, streams: Streams) -> None:
        self._streams, self._host = streams, streams.host
        self.walks = 0

    @handles(TreeQuestion, PlanQuestion)
    def on_question(self, message: TreeQuestion | PlanQuestion, source: PeerRef) -> Message:
        """Answer about one stream."""
        return self.answer_here(message)

    @handles(TreeAnswer, PlanAnswer)
    def on_answer(self, message: Message, source: PeerRef) -> None:
        """An answer that comes after its time."""

    def answer_here(self, message: TreeQuestion | PlanQuestion) -> Message:
        """What this node answers."""
        node = self._streams.nodes.get(message.stream)
        if isinstance(message, TreeQuestion):
            fan_out = self._streams.config().fan_out
            return TreeAnswer(message.stream) if node is None else describe(node, fan_out)
        if node is None:
            return PlanAnswer(message.stream)
        return PlanAnswer(message.stream, told_moves(node.policy.history() if message.is_past else node.policy.plan()))

    # Of clients

    def streams(self) -> list[StreamView]:
        """The streams that this node takes part in, by name."""
        return [self._streams.view(node) for node in sorted(self._streams.nodes, key=lambda node: node.name)]

    def find(self, name: str, on_done: Callable[[StreamView | Exception], None]) -> None:
        """A stream by its name, wherever it is produced."""

        def view(record: StreamRecord) -> None:
            node = self._streams.nodes.get(record.key)
            told(view_of(record) if node is None else self._streams.view(node))

        told = self._streams.later(on_done)
        self._streams.find_now(name, then(view, told))

    def tree(self, name: str, on_done: Callable[[StreamTreeView | Exception], None]) -> None:
        """The whole tree of a stream, asked of its nodes."""
        told = self._streams.later(on_done)
        self._streams.find_now(name, then(lambda record: self.walk(record, told), told))

    def plan(self, name: str, on_done: Callable[[StreamPlanView | Exception], None]) -> None:
        """What the stream's policy would change next."""
        self._moves_of(name, StreamPlanView, on_done)

    def history(self, name: str, on_done: Callable[[StreamHistoryView | Exception], None]) -> None:
        """What the stream's policy has changed."""
        self._moves_of(name, StreamHistoryView, on_done)

    def _moves_of(
        self, name: str, view: type[StreamPlanView | StreamHistoryView], on_done: Callable[[Any], None]
    ) -> None:
        told = self._streams.later(on_done)

        def found(record: StreamRecord) -> None:
            def moved(moves: list[Any]) -> None:
                told(view(stream=record.name, policy=record.policy, moves=moves))

            self.moves(record, view is StreamHistoryView, then(moved, told))

        self._streams.find(name, then(found, told))

    # Of other nodes

    def ask(
        self, peer: PeerRef, question: TreeQuestion | PlanQuestion, on_answer: Callable[[Message | None], None]
    ) -> None:
        """Ask one node, perhaps this one; ``None``: no answer in time."""
        if peer.id == self._host.id:
            on_answer(self.answer_here(question))
            return
        self._host.request(
            peer,
            question,
            self._streams.config().ask_timeout,
            lambda reply, source: on_answer(reply),
            lambda: on_answer(None),
        )

    def walk(self, record: StreamRecord, on_done: Callable[[StreamTreeView | Exception], None]) -> None:
        """Ask for the whole tree. Raises `Unavailable` when too many are asked for at once."""
        if self.walks >= WALKS_MAX:
            raise Unavailable(f"{WALKS_MAX} trees are being asked for already")
        self.walks += 1

        def done(view: StreamTreeView) -> None:
            self.walks -= 1
            on_done(view)

        _Walk(self, record, done).begin()

    def moves(self, record: StreamRecord, is_past: bool, on_done: Callable[[list[Any] | Exception], None]) -> None:
        """What the producer's policy plans, or has done."""
        kind: Any = PastMove if is_past else PlannedMove

        def done(answer: Message | None) -> None:
            if not isinstance(answer, PlanAnswer):
                on_done(Unavailable(f"the producer of {record.name} does not answer"))
                return
            try:
                found: list[Any] = TypeAdapter(list[kind]).validate_json(answer.moves)
            except ValidationError:
                on_done(Unavailable(f"the producer of {record.name} gives an answer that cannot be read"))
                return
            on_done(found)

        self.ask(record.producer.peer, PlanQuestion(record.key, is_past), done)


class _Walk:
    """One question for a whole tree, from the producer down."""

    def __init__(
        self, questions: StreamQuestions, record: StreamRecord, on_done: Callable[[StreamTreeView], None]
    ) -> None:
        self._questions, self._record, self._on_done = questions, record, on_done
        self._nodes: list[StreamTreeNode] = []
        self._missing: list[str] = []
        self._waiting: deque[PeerRef] = deque()
        self._seen: set[NodeId] = set()
        self._asked = 0
        self._is_over = False

    def begin(self) -> None:
        """Ask the producer."""
        self._add((self._record.producer.peer,))
        self._go_on()

    def _add(self, peers: Sequence[PeerRef]) -> None:
        for peer in peers:
            if peer.id not in self._seen and len(self._seen) < NODES_MAX:
                self._seen.add(peer.id)
                self._waiting.append(peer)

    def _go_on(self) -> None:
        while self._waiting and self._asked < PARALLEL:
            self._ask(self._waiting.popleft())
        if not self._asked and not self._waiting and not self._is_over:
            self._is_over = True
            nodes = sorted(self._nodes, key=lambda node: (node.depth, node.node))
            self._on_done(
                StreamTreeView(
                    stream=self._record.name,
                    policy=self._record.policy,
                    nodes=nodes,
                    missing=sorted(self._missing),
                    standbys=[each.id for each in self._record.standbys],
                )
            )

    def _ask(self, peer: PeerRef) -> None:
        self._asked += 1

        def answered(answer: Message | None) -> None:
            self._asked -= 1
            self._take(peer, answer)
            self._go_on()

        self._questions.ask(peer, TreeQuestion(self._record.key), answered)

    def _take(self, peer: PeerRef, answer: Message | None) -> None:
        if not isinstance(answer, TreeAnswer) or not answer.node:
            self._missing.append(format_id(peer.id))
            return
        try:
            node = StreamTreeNode.model_validate_json(answer.node)
        except ValidationError:
            self._missing.append(format_id(peer.id))
            return
        # It may say what it likes of itself, but not who it is.
        self._nodes.append(node.model_copy(update={"node": format_id(peer.id), "address": peer.address}))
        self._add(answer.children)
