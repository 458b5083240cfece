"""The exchange in pieces: whole networks of its state machines in any order of events, and single steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given, strategies as st

from peerd.api import value_size_bytes
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.testing.host import peer
from protocols.aggregation import partial as partial_module
from protocols.aggregation.exchange import (
    OVERFLOW,
    Aggregate,
    PieceRejected,
    join_pieces,
    merge_pieces,
    open_own,
    split_own,
)
from protocols.aggregation.groups import Grouped, GroupStates, Remainder
from protocols.aggregation.messages import PieceStage
from protocols.aggregation.partial import ExtractionReport, Partial, merge
from protocols.aggregation.pieces import (
    AT_ONCE,
    ExchangePieces,
    FetchMerged,
    GoWhole,
    JoinPieces,
    MergePieces,
    PieceEffect,
    PiecePhase,
    Pieces,
    TellStage,
)
from protocols.aggregation.query import parse_query

COUNTS = parse_query("count by key")
PEERS = {NodeId(index << 120): peer(index << 120) for index in range(1, 18)}
NODES = tuple(PEERS)


def machine(own: int, requester: int, count: int) -> Pieces:
    """That of node ``own`` of so many, counted from 0."""
    others = {node: PEERS[node] for node in NODES[:count] if node != NODES[own]}
    return Pieces(NODES[own], NODES[requester], others)


class SwapEnds(NamedTuple):
    """Both sides of a swap have what they wait for."""

    peer: PeerRef
    is_fetch: bool


class Network:
    """Machines whose effects are carried out one at a time, in the order that is drawn."""

    def __init__(self, count: int, requester: int) -> None:
        self.machines = {NODES[own]: machine(own, requester, count) for own in range(count)}
        self.pending: list[tuple[NodeId, PieceEffect | SwapEnds]] = []
        self.whole: set[NodeId] = set()
        self.joined: list[NodeId] = []
        self.pairs: list[frozenset[NodeId]] = []

    def put(self, node: NodeId, effects: list[PieceEffect]) -> None:
        self.machines[node].validate()
        for effect in effects:
            if isinstance(effect, TellStage):
                self.pending += [(node, TellStage((to,), effect.stage)) for to in effect.peers]
            else:
                self.pending.append((node, effect))

    def step(self, index: int, fails: bool) -> None:
        """Carry one of the pending effects out; what can fail does so, if told."""
        node, effect = self.pending.pop(index)
        here = self.machines[node]
        match effect:
            case TellStage((to,), stage):
                self.put(to.id, self.machines[to.id].told(PEERS[node], stage))
            case GoWhole():
                self.whole.add(node)
            case SwapEnds(to, is_fetch):
                self.put(node, here.ended(to, is_fetch=is_fetch))
            case _ if fails:
                self.put(node, here.failed("drawn"))
            case ExchangePieces(to):
                there = self.machines[to.id]
                if there.accept(PEERS[node]):
                    self.pairs.append(frozenset((node, to.id)))
                    self.put(to.id, there.piece_here(PEERS[node]))
                    self.put(node, here.piece_here(to))
                    self.pending += [(node, SwapEnds(to, False)), (to.id, SwapEnds(PEERS[node], False))]
                else:
                    self.put(node, here.failed("refused"))
            case MergePieces():
                self.put(node, here.merged())
            case FetchMerged(to):
                given = self.machines[to.id].gives_merged(PEERS[node])
                self.put(node, here.fetched(to) if given else here.failed("refused"))
                self.pending += [(node, SwapEnds(to, True))] if given else []
            case JoinPieces():
                if here.joined():
                    self.joined.append(node)


@given(st.integers(2, 17), st.data())
def test_in_any_order_all_is_joined_or_everybody_goes_whole(count: int, data: st.DataObject) -> None:
    requester = data.draw(st.integers(0, count - 1))
    fails_at = data.draw(st.none() | st.integers(0, count * count))
    rng = data.draw(st.randoms(use_true_random=False))
    network = Network(count, requester)
    to_begin = list(network.machines)
    rng.shuffle(to_begin)
    steps = 0
    while network.pending or to_begin:
        if to_begin and (not network.pending or rng.random() < 0.2):
            node = to_begin.pop()
            if not network.machines[node].is_over:  # else it has been told to go whole before its data was ready
                network.put(node, network.machines[node].begin())
        else:
            network.step(rng.randrange(len(network.pending)), steps == fails_at)
            steps += 1
    if network.joined:
        assert network.joined == [NODES[requester]]
    if not network.whole:
        assert network.joined, "nothing is waited for, and nothing has come of it"
        assert len(network.pairs) == len(set(network.pairs)) == count * (count - 1) // 2
    elif not network.joined:
        assert network.whole == set(network.machines)


@pytest.mark.parametrize("count", range(2, 18))
def test_each_pair_exchanges_once_and_all_begin_equally_many(count: int) -> None:
    """A few at a time, and as many others are let begin at a time."""
    begun: list[frozenset[NodeId]] = []
    each: list[int] = []
    for own in range(count):
        pieces = machine(own, 0, count)
        assert not [effect for other in NODES[:count] for effect in pieces.told(PEERS[other], PieceStage.BEGIN)]
        pending = pieces.begin()
        told: list[NodeId] = []
        found: list[NodeId] = []
        while pending:
            beginning = [effect.peer.id for effect in pending if isinstance(effect, ExchangePieces)]
            stages = [effect for effect in pending if isinstance(effect, TellStage)]
            ready = [to.id for effect in stages if effect.stage is PieceStage.BEGIN for to in effect.peers]
            assert len(beginning) <= AT_ONCE and len(ready) <= AT_ONCE
            found += beginning
            told += ready
            pending = [effect for node in (*beginning, *ready) for effect in pieces.piece_here(PEERS[node])]
        begun += [frozenset((NODES[own], other)) for other in found]
        each.append(len(found))
        assert {*found, *told} == {*NODES[:count]} - {NODES[own]} and len(found) + len(told) == count - 1
        assert pieces.phase is PiecePhase.MERGING
    assert len(begun) == len(set(begun)) == count * (count - 1) // 2
    assert max(each) - min(each) <= 1


def test_strangers_have_no_say() -> None:
    pieces = machine(0, 1, 4)
    pieces.begin()
    stranger = PEERS[NODES[9]]
    for stage in PieceStage:
        assert pieces.told(stranger, stage) == []
    assert not pieces.accept(stranger)
    assert pieces.phase is PiecePhase.EXCHANGING


def test_who_swaps_whole_values_says_so_to_those_who_are_ready_and_to_nobody_else() -> None:
    pieces = machine(0, 1, 4)
    pieces.stop()
    other = PEERS[NODES[2]]
    assert pieces.told(other, PieceStage.READY) == [TellStage((other,), PieceStage.WHOLE)]
    assert pieces.told(other, PieceStage.WHOLE) == pieces.told(other, PieceStage.MERGED) == []


def test_who_has_not_begun_tells_those_who_wait_only() -> None:
    """In rounds of small values nobody is ready with pieces, and nobody is told anything."""
    pieces, other = machine(0, 1, 4), PEERS[NODES[2]]
    assert pieces.failed("not_agreed") == [GoWhole("not_agreed")]
    pieces = machine(0, 1, 4)
    pieces.told(other, PieceStage.READY)
    assert pieces.failed("not_agreed") == [TellStage((other,), PieceStage.WHOLE), GoWhole("not_agreed")]
    pieces = machine(0, 1, 4)
    pieces.begin()
    assert pieces.failed("swap_failed")[0] == TellStage(tuple(PEERS[node] for node in NODES[1:4]), PieceStage.WHOLE)


def test_an_exchange_is_accepted_once_and_only_by_who_was_told_to_begin() -> None:
    pieces = machine(0, 1, 16)
    pieces.begin()
    told = [PEERS[node] for node in NODES[1:16] if node in pieces._told]
    assert len(told) == AT_ONCE
    assert [peer for peer in PEERS.values() if pieces.accept(peer)] == told
    assert not any(map(pieces.accept, told))


def test_only_the_requester_is_given_what_is_merged_and_only_when_it_is() -> None:
    pieces = machine(1, 0, 2)
    assert pieces.begin() == [TellStage((PEERS[NODES[0]],), PieceStage.BEGIN)], "the first of two begins"
    asker, other = PEERS[NODES[0]], PEERS[NODES[1]]
    assert not pieces.gives_merged(asker)
    assert pieces.accept(asker)
    assert pieces.piece_here(asker) == [MergePieces()]
    assert pieces.merged() == [TellStage((asker,), PieceStage.MERGED)]
    assert pieces.gives_merged(asker)
    assert not pieces.gives_merged(other)


# --- values ---------------------------------------------------------------------------------------------------

keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
counts = st.dictionaries(keys, st.integers(1, 1000), max_size=30)


NOTHING = Remainder(0, 0)


def own_of(node: NodeId, groups: dict[str, int], folded: Remainder[int] = NOTHING) -> Aggregate:
    records = sum(groups.values()) + folded.state
    report = ExtractionReport(records=records, records_selected=records, notes=(f"{node}: binary",))
    return open_own(COUNTS, node, 0, Partial.of(COUNTS, node, GroupStates(groups, folded), report).encode())


def exchanged(owns: dict[NodeId, Aggregate]) -> dict[NodeId, Any]:
    """What each node has merged: its piece of all."""
    pieces = {node: split_own(own, len(owns)) for node, own in owns.items()}
    return {
        node: merge_pieces(COUNTS, node, {giver: pieces[giver][place] for giver in owns}).value
        for place, node in enumerate(owns)
    }


@given(st.lists(counts, min_size=2, max_size=6), st.integers(0, 3))
def test_the_pieces_of_all_joined_are_all_values_merged(values: list[dict[str, int]], folded: int) -> None:
    first = Remainder(folded, 7 * folded)
    owns = {NODES[at]: own_of(NODES[at], value, *[first][at:]) for at, value in enumerate(values)}
    joined = join_pieces(COUNTS, NODES[0], exchanged(owns))
    whole = owns[NODES[0]].partial
    for node in list(owns)[1:]:
        whole = merge(whole, owns[node].partial)
    assert joined.partial == whole
    assert Partial.decode(joined.partial.encode(), COUNTS) == whole


def test_many_groups_stay_arrays_until_they_are_few() -> None:
    owns = {
        node: own_of(node, {f"key-{number}": at + 1 for number in range(at, 6000 + at)})
        for at, node in enumerate(NODES[:3])
    }
    assert all(own.partial.value.columns is not None for own in owns.values())
    parts = owns[NODES[0]].partial.split(3)
    assert all(part.value.columns is not None for part in parts)
    assert all(len(part.value) > 1800 for part in parts), "about a third each"
    few = owns[NODES[0]].partial.split(17)
    assert all(part.value.columns is None for part in few)
    joined = join_pieces(COUNTS, NODES[0], exchanged(owns)).partial
    assert joined.value.columns is not None
    assert joined == merge(merge(owns[NODES[0]].partial, owns[NODES[1]].partial), owns[NODES[2]].partial)


def test_a_cap_holds_for_all_pieces_together() -> None:
    query = parse_query("count by key", groups_max=10)
    grouped: Grouped[int] = Grouped(query.function, 10)
    value = GroupStates({f"key-{number}": number + 1 for number in range(10)}, Remainder(0, 0))
    other = GroupStates({f"other-{number}": 1 for number in range(10)}, Remainder(0, 0))
    parts = [grouped.merge(*pair) for pair in zip(grouped.split(value, 2), grouped.split(other, 2), strict=True)]
    joined = grouped.merge(*parts)
    assert len(joined) == 10
    assert grouped.total(joined) == grouped.total(value) + grouped.total(other)


def test_what_is_not_split_is_in_the_first_piece() -> None:
    query = parse_query("sum(value)")
    report = ExtractionReport(records=1, records_selected=1)
    whole = Partial.of(query, NODES[0], query.function.lift(5), report)
    first, *others = whole.split(3)
    assert first == whole
    assert {each.value for each in others} == {query.function.zero}
    assert Partial.join([first, *others]) == whole


def test_a_piece_of_other_nodes_is_its_givers_fault() -> None:
    owns = {node: own_of(node, {"a": 1}) for node in NODES[:3]}
    pieces = {node: split_own(own, 3)[0] for node, own in owns.items()}
    with pytest.raises(PieceRejected, match="foreign_contributor") as caught:
        merge_pieces(COUNTS, NODES[0], {**pieces, NODES[1]: pieces[NODES[2]]})
    assert caught.value.giver == NODES[1]
    with pytest.raises(PieceRejected, match="aggregation_partial") as caught:
        merge_pieces(COUNTS, NODES[0], {**pieces, NODES[2]: bytes(8) + b"\xc1"})
    assert caught.value.giver == NODES[2]
    merged = exchanged(owns)
    with pytest.raises(PieceRejected, match="foreign_contributor") as caught:
        join_pieces(COUNTS, NODES[0], {**merged, NODES[1]: pieces[NODES[1]]})
    assert caught.value.giver == NODES[1]


def test_pieces_that_do_not_fit_together_are_nobodys_fault() -> None:
    """A node may have told one holder of other records than the next one; who it was cannot be known."""
    owns = {node: own_of(node, {"a": 1, "b": 1, "c": 1}) for node in NODES[:2]}
    others = {**owns, NODES[1]: own_of(NODES[1], {"a": 2, "b": 1, "c": 1})}
    mixed = {NODES[0]: exchanged(owns)[NODES[0]], NODES[1]: exchanged(others)[NODES[1]]}
    with pytest.raises(ProtocolError, match="parts_differ") as caught:
        join_pieces(COUNTS, NODES[0], mixed)
    assert not isinstance(caught.value, PieceRejected)
    part = owns[NODES[0]].partial.split(2)
    with pytest.raises(ProtocolError, match="records cannot have"):
        Partial.join([part[0], part[0]])


def test_a_piece_is_no_value() -> None:
    """Its records are those of the whole, of which it has a part."""
    piece = own_of(NODES[0], {"a": 1, "b": 1, "c": 1}).partial.split(2)[0].encode()
    assert Partial.decode(piece, COUNTS, is_part=True).contributors == (NODES[0],)
    with pytest.raises(ProtocolError, match="records cannot have"):
        Partial.decode(piece, COUNTS)


def test_pieces_that_are_too_large_together_are_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    owns = {node: own_of(node, {f"{node}-{number}": 1 for number in range(50)}) for node in NODES[:3]}
    pieces = {node: split_own(own, 3)[0] for node, own in owns.items()}
    monkeypatch.setattr(partial_module, "PARTIAL_BYTES_MAX", max(map(value_size_bytes, pieces.values())) + 20)
    with pytest.raises(ProtocolError, match=OVERFLOW) as caught:
        merge_pieces(COUNTS, NODES[0], pieces)
    assert not isinstance(caught.value, PieceRejected)
