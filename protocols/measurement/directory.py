"""Which nodes there are, what their operators say of them, and what they measure.

Each node keeps a record of itself, which it alone can change, under two of a few keys, its *shards*: the ring's nodes
are spread over them by their ids, twice, so that a root that is silent or lies hides nobody. Who wants to know asks the
roots of all shards: one round trip to each of them, whose answer has only what has changed since the last one; later
those of one copy in turn, and of the other one, too, when anything has changed or cannot be had. A node that is gone
without goodbye is known until its record lapses, so that an answer can say who is missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from peerd.api import Host, LookupResult, Part, RecordOutcome, RecordResult, handles, on_timer
from peerd.errors import ProtocolError, Unavailable
from peerd.ids import NodeId, id_to_bytes, key_of
from peerd.messages import Message, PeerRef, decode_struct, encode_struct
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.messages import (
    Described,
    Description,
    NodesAnswer,
    NodesQuestion,
)
from protocols.measurement.placing.squares import Spot
from protocols.measurement.readings import NodeEntry
from protocols.measurement.traffic import TrafficCounts

if TYPE_CHECKING:
    from protocols.measurement.shards import HeldShard

SHARDS: Final = 4
"""Roots that share the descriptions. The same on all nodes. Each has those of 4,096 nodes (``[records]
key_items_max``)."""
COPIES: Final = 2
"""So often they do."""
FRESH_S: Final = 10.0
"""What was asked for so lately is not asked for again."""
WRITES_PER_BOOT: Final = 1 << 10
"""The numbers of the descriptions of one boot are so far from those of the next: a node's boots are seconds apart."""
PARTLY_FRESH_S: Final = 1.0
"""The same, while a part of it could not be had."""
LIFE_S: Final = 3600.0
"""A description lapses when its node has not put it again for so long: then nobody expects the node any more."""
AGAIN_MIN_S: Final = 1.0
AGAIN_MAX_S: Final = 60.0
"""Pauses before a description that could not be put is tried again: the first one; they double up to the other."""
PLACED_S: Final = 20.0
"""A node that does not know yet where it is in the latency space is described again after this time."""
SOON_S: Final = 1.0
"""Changes within this time are put at once, as one."""
ANSWER_S: Final = 3.0
"""The root of a shard answers within this time, or the shard stays as it is known."""
NODES_MAX: Final = 4096
"""Nodes of one shard that a node knows."""
LOST_S: Final = 60.0
"""So long is a node that was not to be reached asked for nothing by way of others, and is asked for nobody."""
WAITERS_MAX: Final = 4096
"""Questions that wait for the roots' answers. More are answered with what is known."""
_PUT: Final = "describe"


def shard_of(node: NodeId, copy: int) -> int:
    """Where a copy of a node's description is kept."""
    return copy * SHARDS + id_to_bytes(node)[-1 - copy] % SHARDS


def shard_key(shard: int) -> NodeId:
    """The key of a shard."""
    return key_of(f"peerd measurement nodes {shard}")


def by_value(value: str, nodes: Iterable[NodeId]) -> list[NodeId]:
    """Nodes, the nearest first to a value in the space of a tag (section 5.2): the same order at whoever reckons it
    (rendezvous hashing)."""
    seed = hashlib.blake2b(value.encode(), digest_size=16).digest()
    return sorted(nodes, key=lambda node: hashlib.blake2b(id_to_bytes(node), key=seed, digest_size=16).digest())


def entry_of(description: Description) -> NodeEntry:
    """A description as others see it."""
    names = sorted(f"{each.name}@" if each.peers else each.name for each in description.names)
    tags = {each.key: each.value for each in description.tags}
    pairs = {each.name: each.peers for each in description.names if each.peers}
    return NodeEntry(description.peer.id, description.peer.address, tags, tuple(names), pairs, description.spot)


def _without_peers(description: Description) -> tuple[object, ...]:
    """What is told at once when it has changed: which nodes are neighbours changes often, and hardly matters."""
    names = [(each.name, bool(each.peers)) for each in description.names]
    return description.peer, description.tags, names, description.key


@dataclass(slots=True)
class _Shard:
    root: PeerRef | None = None
    mark: bytes = b""
    nodes: dict[NodeId, Description] = field(default_factory=dict)
    coming: dict[NodeId, Description] = field(default_factory=dict)
    """What the answers under way have brought."""
    problem: str = "it was not asked yet"
    """Why this is perhaps not all; empty where it is."""


class Directory(Part):
    """``describe`` says what this node is now. A description is what a node says of itself, and no more than that."""

    def __init__(
        self, host: Host, config: MeasurementConfig, describe: Callable[[], Description], traffic: TrafficCounts
    ) -> None:
        self._host, self._config, self._describe, self._traffic = host, config, describe, traffic
        self._shards = [_Shard() for _ in range(COPIES * SHARDS)]
        self._nodes: dict[NodeId, tuple[PeerRef, NodeEntry]] = {}
        """All that the roots have told."""
        self.spots: dict[NodeId, Spot] = {}
        """Where those are that have said it. Another one when anything in it has changed."""
        self.keys: dict[NodeId, bytes] = {}
        """Of those that sign what they measure, if this node does so, too."""
        self.has_regions = bool(config.region_tag)
        self.regions: dict[NodeId, str] = {}
        """The value of ``region_tag`` of those that have that tag. Another one when anything in it has changed."""
        self._lost: dict[NodeId, float] = {}
        self._asked_at = float("-inf")
        self._open = self._turn = 0
        self._not_asked: list[int] = []
        """Shards of the other copy, while those of one are asked."""
        self._waiting: list[Callable[[], None]] = []
        self._put: Description | None = None
        self._failures = 0
        self._putting = 0
        self._is_lacking = False
        self._writes = 0
        self._has_changed = False
        self._held: dict[NodeId, HeldShard] = {}
        self._outdated: set[NodeId] = set()
        """Keys of shards that have changed since."""

    def start(self) -> None:
        """Begin to describe this node."""
        self._host.set_timer(_PUT, self._host.rng.uniform(0.1, SOON_S))

    # This node

    def changed(self) -> None:
        """What this node is may have changed."""
        if self._put is not None and _without_peers(self._describe()) != _without_peers(self._put):
            self._host.cancel_timer(_PUT)
            self._host.set_timer(_PUT, SOON_S)

    @on_timer(_PUT)
    def _put_again(self, payload: None) -> None:
        described = self._describe()
        if described != self._put:  # else it is put to live on, and nobody has to hear of it again
            self._writes += 1
        written = replace(described, number=described.number * WRITES_PER_BOOT + self._writes)
        self._put, self._putting, self._is_lacking = described, COPIES, False
        me = self._host.id
        for copy in range(COPIES):
            key, item = shard_key(shard_of(me, copy)), id_to_bytes(me)
            try:
                self._host.records.put(key, encode_struct(written), LIFE_S, self._is_put, item=item)
            except Unavailable:
                self._put_ended(is_lacking=True)

    def _is_put(self, result: RecordResult) -> None:
        self._put_ended(is_lacking=result.outcome is not RecordOutcome.STORED)

    def _put_ended(self, *, is_lacking: bool) -> None:
        self._putting -= 1
        self._is_lacking |= is_lacking
        if self._putting:
            return
        if self._is_lacking:
            self._again()
        else:
            self._failures = 0
            self._host.cancel_timer(_PUT)
            # Long before it lapses: all nodes that hold it may fail at once. And soon, while it lacks where this is.
            is_whole, pause_s = self._put is not None and self._put.spot is not None, self._config.describe_interval
            self._host.set_timer(
                _PUT, self._host.rng.uniform(0.8, 1.0) * (pause_s if is_whole else min(PLACED_S, pause_s))
            )
            self.changed()

    def _again(self) -> None:
        self._failures += 1
        pause_s = min(AGAIN_MAX_S, AGAIN_MIN_S * 2.0 ** min(self._failures, 10))
        self._host.cancel_timer(_PUT)
        self._host.set_timer(_PUT, pause_s * self._host.rng.uniform(0.5, 1.0))

    def leave(self, done: Callable[[], None]) -> None:
        """This node goes for good: take its description away."""
        self._host.cancel_timer(_PUT)
        me, left = self._host.id, [COPIES]

        def is_gone(result: RecordResult | None = None) -> None:
            left[0] -= 1
            if not left[0]:
                done()

        for copy in range(COPIES):
            try:
                self._host.records.delete(shard_key(shard_of(me, copy)), is_gone, item=id_to_bytes(me))
            except Unavailable:
                is_gone()

    # All nodes

    def known(self) -> Iterator[NodeEntry]:
        """The nodes that this one knows of now, itself among them."""
        me = self._host.id
        yield entry_of(self._describe())
        yield from (entry for node, (_, entry) in self._nodes.items() if node != me)

    def problems(self) -> list[str]:
        """Why there may be nodes that are not known: of both copies of their descriptions, something is missing."""
        found = [
            [shard.problem for shard in self._shards[copy * SHARDS : (copy + 1) * SHARDS] if shard.problem]
            for copy in range(COPIES)
        ]
        return [f"nodes may be missing: {found[0][0]}"] if all(found) else []

    def peer(self, node: NodeId) -> PeerRef | None:
        """Where a node is."""
        found = self._nodes.get(node)
        return None if found is None else found[0]

    def lost(self, node: NodeId) -> None:
        """It was not to be reached."""
        now = self._host.now()
        self._lost = {each: until for each, until in self._lost.items() if until > now} | {node: now + LOST_S}

    def is_lost(self, node: NodeId) -> bool:
        """Whether that was lately."""
        return self._lost.get(node, 0.0) > self._host.now()

    def refreshed(self, done: Callable[[], None], fresh_s: float = FRESH_S) -> None:
        """Call back when what is known is hardly older than that, or cannot be had."""
        fresh_s = PARTLY_FRESH_S if any(shard.problem for shard in self._shards) else fresh_s
        if (self._host.now() - self._asked_at < fresh_s and not self._open) or len(self._waiting) >= WAITERS_MAX:
            done()
        else:
            self._waiting.append(done)
            if not self._open:
                self._ask_all()

    def _ask_all(self) -> None:
        """Both copies the first time, then one in turn: what has not changed in one has not in the other."""
        self._asked_at, self._turn = self._host.now(), (self._turn + 1) % COPIES
        turn = range(self._turn * SHARDS, (self._turn + 1) * SHARDS)
        is_first = any(not shard.mark for shard in self._shards)
        self._not_asked = [] if is_first else [each for each in range(len(self._shards)) if each not in turn]
        self._ask_shards(range(len(self._shards)) if is_first else turn)

    def _ask_shards(self, numbers: Sequence[int]) -> None:
        self._open = len(numbers)
        for number in numbers:
            shard = self._shards[number]
            shard.coming.clear()
            if shard.root is not None and shard.root.id != self._host.id:
                self._ask(number, NodeId(0))
            else:
                self._find_root(number)

    def _find_root(self, number: int) -> None:
        def found(result: LookupResult) -> None:
            root = self._shards[number].root = result.root
            if root is None:
                self._ended(number, "the root of a part of them was not found")
            elif root.id == self._host.id:
                self._take(number, self._page(NodesQuestion(number, NodeId(0), self._shards[number].mark)))
            else:
                self._ask(number, NodeId(0))

        try:
            self._host.lookup(shard_key(number), found, ANSWER_S)
        except Unavailable as error:
            self._ended(number, str(error))

    def _ask(self, number: int, after: NodeId) -> None:
        shard = self._shards[number]
        if shard.root is None:
            self._find_root(number)
            return
        question = NodesQuestion(number, after, shard.mark if after == 0 else b"")
        silent = partial(self._silent, number)
        self._host.request(shard.root, question, ANSWER_S, partial(self._answered, number), silent)
        self._traffic.sent(question)

    def _silent(self, number: int) -> None:
        self._shards[number].root = None
        self._ended(number, "the root of a part of them did not answer")

    def _answered(self, number: int, answer: Message, source: PeerRef) -> None:
        if not isinstance(answer, NodesAnswer):
            self._ended(number, "the root of a part of them does not know the question")
            raise ProtocolError("wrong_answer", f"{type(answer).__name__} is no answer to NodesQuestion")
        self._take(number, answer)

    def _take(self, number: int, answer: NodesAnswer) -> None:
        """A page of a shard: with the last one, it is what this node knows of it."""
        shard = self._shards[number]
        if not answer.is_settled:
            shard.root = None  # it may be another one by now
        if answer.is_changes and not (answer.nodes or answer.gone):
            self._ended(number, "" if answer.is_settled else "a part of them is being handed over")
            return
        if answer.is_changes:
            gone = set(answer.gone)
            shard.coming = {node: each for node, each in shard.nodes.items() if node not in gone}
        for each in answer.nodes:
            shard.coming.pop(each.node, None)
            with suppress(ProtocolError):  # whose record is wrong is not the root's fault
                description = decode_struct(Description, each.data)
                is_right = description.peer.id == each.node and shard_of(each.node, number // SHARDS) == number
                if is_right and len(shard.coming) < NODES_MAX:
                    shard.coming[each.node] = description
        if not answer.is_all and answer.nodes and len(shard.coming) < NODES_MAX:
            self._ask(number, answer.nodes[-1].node)
            return
        self._has_changed |= shard.mark != answer.mark
        shard.nodes, shard.coming = shard.coming, {}
        shard.mark = answer.mark
        self._ended(number, "" if answer.is_settled else "a part of them is being handed over")

    def _ended(self, number: int, problem: str) -> None:
        self._shards[number].problem = problem
        self._open -= 1
        if self._open:
            return
        others, self._not_asked = self._not_asked, []
        is_same = not (self._has_changed or any(shard.problem for shard in self._shards))
        if others and not is_same:
            self._ask_shards(others)
        else:
            self._merge()
            waiting, self._waiting = self._waiting, []
            for done in waiting:
                done()

    def _merge(self) -> None:
        if not self._has_changed:
            return
        newest: dict[NodeId, Description] = {}
        for shard in self._shards:
            for node, description in shard.nodes.items():
                if node not in newest or newest[node].number < description.number:
                    newest[node] = description
        self._nodes = {node: (description.peer, entry_of(description)) for node, description in newest.items()}
        spots = {node: each.spot for node, each in newest.items() if each.spot is not None}
        self.spots = self.spots if spots == self.spots else spots
        if self._config.signed:
            self.keys = {node: each.key for node, each in newest.items() if each.key}
        if self.has_regions:
            tagged = ((node, entry.tags.get(self._config.region_tag)) for node, (_, entry) in self._nodes.items())
            regions = {node: value for node, value in tagged if value is not None}
            self.regions = self.regions if regions == self.regions else regions
        self._has_changed = False

    # The root of a shard

    @handles(NodesQuestion)
    def _asked(self, question: NodesQuestion, source: PeerRef) -> NodesAnswer:
        return self._page(question)

    def record_changed(self, key: NodeId) -> None:
        """A record that this node holds came, changed or went."""
        if key in self._held:
            self._outdated.add(key)

    def _held_shard(self, key: NodeId) -> HeldShard:
        from protocols.measurement.shards import HeldShard  # many nodes are the root of none

        if key not in self._held or key in self._outdated:
            self._outdated.discard(key)
            held = {each.owner: each.value for each in self._host.records.items(key) if each.owner is not None}
            self._held.setdefault(key, HeldShard()).update(held)
        return self._held[key]

    def _page(self, question: NodesQuestion) -> NodesAnswer:
        if question.shard >= len(self._shards):
            return NodesAnswer(b"", (), True, False)
        key = shard_key(question.shard)
        shard, settled = self._held_shard(key), self._host.records.is_settled(key)
        page = shard.page(question.mark, question.after)
        nodes = tuple(Described(node, value) for node, value in page.nodes)
        return NodesAnswer(shard.mark, nodes, page.is_all, settled, page.gone, page.is_changes)
