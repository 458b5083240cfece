"""Large values of small rings, exchanged in pieces: the answer is that of whole values, also when nodes fail."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from peerd.api import RefuseSwap
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.sim.simulation import Simulation
from peerd.swap.kept import REPEATED_S, SLACK_S
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.effects import TreePhase
from protocols.aggregation.exchange import decode_value
from protocols.aggregation.messages import PieceStage, PieceTold, StartRound
from protocols.aggregation.partial import Partial
from protocols.aggregation.pieces import PieceEffect, Pieces
from protocols.aggregation.requesting import Requesting
from protocols.aggregation.splitting import Splitting
from tests.support.aggregation import Round, aggregation_of
from tests.support.aggregation_groups import COUNTS, L_S, check_groups, ring_of_groups
from tests.support.long_cases import cases
from tests.support.sinks import ListSink


def read_slowly(simulation: Simulation, index: int, delay_s: float) -> None:
    """Reading its data takes this node so long."""
    driver = simulation.nodes[index].node.driver
    offload = driver.offload

    def slow(function: Any, arguments: Any, done: Any, failed: Any, cost_s: float, within: Any = None) -> Any:
        return offload(function, arguments, done, failed, delay_s if within is not None else cost_s, within)

    driver.offload = slow  # type: ignore[method-assign]  # of this one node


@pytest.mark.parametrize("count", cases([4, 5, 8, 16, 17], [6, 7, 9, 12, 15]))
def test_large_values_of_a_small_ring_go_in_pieces(count: int) -> None:
    sink = ListSink()
    simulation = ring_of_groups(count, seed=count, sink=sink)
    round_ = Round(simulation, requester=count // 2, query=COUNTS)
    assert check_groups(simulation, round_) == list(range(count))
    assert PieceTold.TYPE_ID in simulation.traffic()
    told = Counter(line["outcome"] for line in sink.of_kind("aggregation.pieces_finished"))
    assert told == {"joined": 1, "merged": count}
    assert not [line for line in sink.of_kind("aggregation.level_finished") if line["outcome"] == "swapped"]
    assert round_.answers[0].duration_s < (14 if count <= 9 else 24) * L_S


@pytest.mark.parametrize("count", cases([5, 16], [9, 12]))
def test_rounds_that_follow_each_other_open_no_connection_anew(count: int) -> None:
    sink = ListSink()
    simulation = ring_of_groups(count, seed=3, sink=sink)
    took: list[float] = []
    swapped = 0
    for _ in range(4):
        swapped = len(sink.of_kind("swap.finished"))
        round_ = Round(simulation, requester=1, query=COUNTS)
        assert check_groups(simulation, round_) == list(range(count))
        took.append(round_.answers[0].duration_s / L_S)
        simulation.run_for(10.0)
    assert took[3] < min(took[0] - 3.5, 13.0)
    last = [line["opened_s"] for line in sink.of_kind("swap.finished")[swapped:] if line["initiated"]]
    assert len(last) >= count and last.count(0.0) >= len(last) - 1, "of 12 the requester has one more than it keeps"
    simulation.run_for(REPEATED_S + SLACK_S)
    assert not any(len(place.node.swaps.kept) for place in simulation.nodes)
    assert not any(place.driver.streams for place in simulation.nodes)


@pytest.mark.parametrize("count", [2, 3])
def test_few_nodes_swap_whole_values(count: int) -> None:
    sink = ListSink()
    simulation = ring_of_groups(count, seed=count, sink=sink)
    assert check_groups(simulation, Round(simulation, query=COUNTS)) == list(range(count))
    assert not sink.of_kind("aggregation.pieces_finished")


def test_one_node_that_swaps_whole_values_makes_all_do() -> None:
    """The requester, whose data may go to others first, so that nobody has told it that pieces are ready."""
    sink = ListSink()
    simulation = ring_of_groups(4, seed=3, sink=sink)
    aggregation_of(simulation, 0).participating.config = AggregationConfig(pieces_from=1 << 40)
    round_ = Round(simulation, query=COUNTS)
    assert check_groups(simulation, round_) == [0, 1, 2, 3]
    assert {line["outcome"] for line in sink.of_kind("aggregation.pieces_finished")} <= {"told", "not_agreed"}
    assert round_.answers[0].duration_s < 25 * L_S


def test_small_values_ride_and_nobody_says_anything_of_pieces() -> None:
    simulation = ring_of_groups(8, seed=4, pieces_from=1 << 20)
    for index in range(8):
        aggregation_of(simulation, index).data.padding_bytes = 0
    round_ = Round(simulation, query=COUNTS)
    assert check_groups(simulation, round_) == list(range(8))
    assert round_.answers[0].duration_s < 12 * L_S
    assert PieceTold.TYPE_ID not in simulation.traffic()


@pytest.mark.parametrize("seed", range(6))
def test_small_values_among_large_ones_are_waited_for_by_nobody(seed: int) -> None:
    """Whoever is ready first decides, and the others learn of it: nobody waits for half of the round."""
    simulation = ring_of_groups(8, seed=seed, pieces_from=1 << 20)
    rng = random.Random(seed)
    for index in range(8):
        aggregation_of(simulation, index).data.padding_bytes = rng.choice([0, 1 << 20])
        read_slowly(simulation, index, rng.uniform(0.0, 0.5))
    round_ = Round(simulation, query=COUNTS)
    assert check_groups(simulation, round_) == list(range(8))
    assert round_.answers[0].duration_s < 5.0


def test_a_small_value_goes_in_pieces_where_the_others_are_large() -> None:
    """Its node has been told that another one is ready before its own data is."""
    sink = ListSink()
    simulation = ring_of_groups(8, seed=4, sink=sink)
    plugin = aggregation_of(simulation, 5)
    plugin.data.padding_bytes = 0
    plugin.participating.config = AggregationConfig(pieces_from=1 << 20)
    read_slowly(simulation, 5, 0.5)
    assert check_groups(simulation, Round(simulation, query=COUNTS)) == list(range(8))
    assert "joined" in [line["outcome"] for line in sink.of_kind("aggregation.pieces_finished")]


@pytest.mark.parametrize("how", ["kill", "silence"])
@pytest.mark.parametrize("seed", cases(range(3), range(3, 40)))
def test_nodes_that_fail_meanwhile_cost_time_only(seed: int, how: str) -> None:
    """At any moment of the exchange; whoever lives on is in the answer, and nobody twice."""
    rng = random.Random(seed)
    count = rng.choice([5, 8, 13, 16])
    simulation = ring_of_groups(count, seed)
    round_ = Round(simulation, query=COUNTS)
    failing = rng.sample(range(1, count), rng.choice([1, 1, 2]))
    for index in failing:
        simulation.run_for(rng.uniform(0.0, 14 * L_S))
        if not round_.answers:
            getattr(simulation, how)(simulation.nodes[index])
    inside = check_groups(simulation, round_)
    assert set(range(count)) - set(failing) <= set(inside)
    simulation.run_for(70)
    for place in simulation.live_nodes():
        assert not aggregation_of(simulation, place.index).participating.participants


def test_who_takes_too_long_is_not_waited_for_all_of_the_round() -> None:
    """After half of the time the others swap whole values, and the answer is there before the round ends."""
    sink = ListSink()
    simulation = ring_of_groups(8, seed=6, sink=sink)
    read_slowly(simulation, 3, 1000.0)
    round_ = Round(simulation, query=COUNTS, deadline_s=20.0)
    assert check_groups(simulation, round_) == [0, 1, 2, 4, 5, 6, 7]
    outcomes = [line["outcome"] for line in sink.of_kind("aggregation.pieces_finished")]
    assert set(outcomes) == {"timed_out", "told"}


def gives_garbage(splitting: Splitting) -> None:
    """No piece of its value can be decoded."""
    splitting._to_give = {node: bytes(8) + b"\xc1" for node in splitting._to_give}


def gives_for_others(splitting: Splitting) -> None:
    """Its pieces say that they are another node's."""
    other = next(node for node in splitting.pieces.nodes if node != splitting._host.id)
    change_pieces(splitting, lambda node, part: replace(part, contributors=(other,)))


def equivocates(splitting: Splitting) -> None:
    """It tells one holder of more files than all others."""
    odd = splitting.pieces.nodes[-1 if splitting._host.id == splitting.pieces.nodes[0] else 0]

    def changed(node: NodeId, part: Partial) -> Partial:
        if node != odd:
            return part
        return replace(part, report=replace(part.report, files_read=5), shares=((5, part.report.records),))

    change_pieces(splitting, changed)


def change_pieces(splitting: Splitting, change: Callable[[NodeId, Partial], Partial]) -> None:
    for node, value in splitting._to_give.items():
        part, _ = decode_value(COUNTS, value, is_part=True)
        splitting._to_give[node] = bytes(8) + change(node, part).encode()


def refuses(splitting: Splitting) -> None:
    """It is ready, and exchanges nothing."""
    splitting.piece_requested = lambda peer: RefuseSwap("busy")  # type: ignore[method-assign]  # of this one node


def says_merged_at_once(splitting: Splitting) -> None:
    """Before it has anything that the requester could fetch; it is asked when the requester has merged its own."""
    tell(splitting, PieceStage.MERGED)


def keeps_what_it_merged(splitting: Splitting) -> None:
    """The requester gets nothing of it."""
    splitting.merged_requested = lambda peer: RefuseSwap("busy")  # type: ignore[method-assign]  # of this one node


def says_whole_at_once(splitting: Splitting) -> None:
    """And goes on as if it had not."""
    tell(splitting, PieceStage.WHOLE)


def says_what_nobody_knows(splitting: Splitting) -> None:
    """Stages of a version to come are passed over."""
    tell(splitting, 77)


def tell(splitting: Splitting, stage: int) -> None:
    for node in splitting.pieces.nodes:
        if (peer := splitting.pieces.peer(node)) is not None:
            splitting._host.send(peer, PieceTold(splitting._round_id, stage))


@pytest.mark.parametrize(
    ("spoil", "outcome"),
    [
        (gives_garbage, "aggregation_partial"),
        (gives_for_others, "foreign_contributor"),
        (equivocates, "parts_differ"),
        (refuses, "swap_failed"),
        (says_merged_at_once, "joined"),
        (keeps_what_it_merged, "swap_failed"),
        (says_whole_at_once, "told"),
        (says_what_nobody_knows, "joined"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_one_member_that_spoils_the_pieces_costs_time_only(
    spoil: Callable[[Splitting], None], outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its whole value is as it should be; the data of all others is in the answer, whatever is made of it."""
    sink = ListSink()
    simulation = ring_of_groups(8, seed=5, sink=sink)
    simulation.misbehaviour_is_failure = False
    liar = simulation.nodes[3].id
    begin = Pieces.begin

    def spoiled(pieces: Pieces) -> list[PieceEffect]:
        participants = aggregation_of(simulation, 3).participating.participants
        for participant in participants.values():
            if participant.splitting is not None and participant.splitting.pieces is pieces:
                spoil(participant.splitting)
        return begin(pieces)

    monkeypatch.setattr(Pieces, "begin", spoiled)
    round_ = Round(simulation, requester=1, query=COUNTS)
    inside = check_groups(simulation, round_)
    assert set(inside) >= {0, 1, 2, 4, 5, 6, 7}
    outcomes = {line["outcome"] for line in sink.of_kind("aggregation.pieces_finished")}
    assert outcome in outcomes
    blamed = {about.id for _, _, about, _ in simulation.misbehaviours}
    assert blamed == ({liar} if outcome in ("aggregation_partial", "foreign_contributor") else set())
    simulation.run_for(70)
    assert not any(aggregation_of(simulation, index).participating.participants for index in range(8))


def test_a_word_that_overtakes_the_start_is_kept() -> None:
    """A node to which the broadcast comes late still learns who was ready before."""
    simulation = ring_of_groups(8, seed=7)
    late = aggregation_of(simulation, 6).participating
    start_told = late.start_told
    told: list[StartRound] = []

    def delayed(start: StartRound) -> None:
        if not told:
            told.append(start)
            simulation.after(0.4, lambda: start_told(start))

    late.start_told = delayed  # type: ignore[method-assign]  # of this one node
    late._ask_start = lambda round_id, source: None  # type: ignore[method-assign]  # the answer is lost
    round_ = Round(simulation, query=COUNTS)
    assert check_groups(simulation, round_) == list(range(8))
    assert told
    assert round_.answers[0].duration_s < 30 * L_S


def test_an_exchange_that_fails_is_told_from_a_connection_that_was_opened_ahead() -> None:
    """Of the same node: the requester keeps a connection ready to fetch what the node merges."""
    simulation = ring_of_groups(8, seed=5)
    asker = simulation.nodes[1].id

    def refuse(otherwise: Callable[[PeerRef], Any], peer: PeerRef) -> Any:
        return RefuseSwap("busy") if peer.id == asker else otherwise(peer)

    round_ = Round(simulation, requester=1, query=COUNTS)
    simulation.run_until(
        lambda: all(aggregation_of(simulation, index).participating.participants for index in range(8)), limit_s=5
    )
    for index in range(8):
        for participant in aggregation_of(simulation, index).participating.participants.values():
            refused = participant.splitting
            assert refused is not None
            requested = partial(refuse, refused.piece_requested)
            refused.piece_requested = requested  # type: ignore[method-assign]  # of this one node
    assert check_groups(simulation, round_) == list(range(8))
    assert round_.answers[0].duration_s < 2.0, "all go on with whole values as soon as the requester knows"


@pytest.mark.parametrize("unknown", [1, 5])
def test_who_is_not_named_is_in_the_answer(unknown: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others exchange pieces if the requester is one of them; its data, or the requester's, is left over."""
    sink = ListSink()
    simulation = ring_of_groups(9, seed=2, sink=sink)
    left_out, named = simulation.nodes[unknown].id, Requesting._nodes
    monkeypatch.setattr(Requesting, "_nodes", lambda self: tuple(node for node in named(self) if node != left_out))
    round_ = Round(simulation, requester=1, query=COUNTS)
    assert check_groups(simulation, round_) == list(range(9))
    assert round_.answers[0].duration_s < 3.0
    assert bool(sink.of_kind("aggregation.pieces_finished")) == (unknown != 1)


def test_who_is_not_noted_yet_gives_no_large_value_whole_either() -> None:
    """Somebody swaps whole values already; but of a swap nobody could show that this node takes part."""
    simulation = ring_of_groups(8, seed=5)
    round_ = Round(simulation, requester=1, query=COUNTS)
    participants = aggregation_of(simulation, 3).participating.participants
    simulation.run_until(lambda: bool(participants), limit_s=5)
    (participant,) = participants.values()
    noted = participant.noted
    participant.noted = lambda: None  # type: ignore[method-assign]  # of this one node
    simulation.run_for(0.3)
    assert participant.splitting is not None and participant.aggregate is not None
    participant.splitting.go_whole()
    assert participant.tree.phase is TreePhase.IDLE
    noted()
    assert participant.tree.phase is not TreePhase.IDLE
    assert check_groups(simulation, round_) == list(range(8))
