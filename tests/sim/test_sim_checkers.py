"""Every invariant has a bug, put into the code on purpose, that its checker finds, and that no other finds first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from peerd import messages
from peerd.errors import Bug
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.overlay.config import OverlayConfig
from peerd.overlay.dedupe import Window
from peerd.overlay.expectations import Expectations
from peerd.overlay.leafset import Leaves, SideRule, on_any_side
from peerd.overlay.membership import Membership
from peerd.overlay.messages import EntriesRequest, LookupProbe, Route, TraceHop
from peerd.overlay.state import OverlayState
from peerd.overlay.table import RoutingTable
from peerd.sim.checkers import (
    CONTINUOUS,
    QUIESCENT,
    Boundedness,
    Checker,
    CorrectDelivery,
    DeadMembers,
    Dedupe,
    EverybodyReady,
    ExpectedMembers,
    FailureDetection,
    IdBinding,
    LeafSetConsistency,
    MonotoneEpochs,
    NodesValid,
    Progress,
    RingUnity,
    SingleRoot,
    TableCoverage,
    TableEntries,
    WireHygiene,
)
from peerd.sim.churn import Churn, ChurnSettings
from peerd.sim.faults import Impairment, Scope
from peerd.sim.network import NetworkConfig
from peerd.sim.simulation import Simulation
from peerd.sim.truth import HEAL_S, REPAIR_S
from peerd.sim.workload import SimulationProbe, Workload
from peerd.sim.world import SimulationFailure
from peerd.testing.simulation import ring

Patch = pytest.MonkeyPatch
PROBE = frozenset((SimulationProbe.TYPE_ID,))


def checked(count: int, seed: int = 3, *, without: type[Checker] | None = NodesValid, **arguments: Any) -> Simulation:
    """A ring of nodes that start now, with every checker of the continuous invariants.

    Nodes check themselves too, and would find some of the bugs first, so they are not asked by default.
    """
    checkers = [kind() for kind in CONTINUOUS if kind is not without]
    simulation = Simulation(seed, checkers=[*checkers, CorrectDelivery(), Dedupe(PROBE)], sweep_every=100, **arguments)
    simulation.start(count, spacing_s=0.2)
    return simulation


def formed(count: int, seed: int = 3, **arguments: Any) -> Simulation:
    """The same, once everybody has joined and settled."""
    simulation = checked(count, seed, **arguments)
    simulation.run_for(0.2 * count)
    simulation.run_until(simulation.is_ready, limit_s=60.0)
    simulation.run_for(20.0)
    return simulation


def send_probes(simulation: Simulation, duration_s: float = 30.0) -> None:
    """Send ten messages a second."""
    Workload(simulation, 10.0).start()
    simulation.run_for(duration_s)


# One bug for each invariant


def addresses_are_mixed_up(patch: Patch) -> None:
    admit = OverlayState.admit_leaf
    patch.setattr(
        OverlayState,
        "admit_leaf",
        lambda self, peer, told=(): admit(self, PeerRef(peer.id, peer.host, peer.port + 1), told),
    )
    checked(4).run_for(30.0)


def nearest_member_is_overlooked(patch: Patch) -> None:
    simulation = formed(12)
    patch.setattr(Leaves, "closest", lambda self, key: None)
    send_probes(simulation)


def a_neighbour_is_never_admitted(patch: Patch) -> None:
    simulation = checked(30)
    blind, unseen, *_ = sorted(place.id for place in simulation.nodes)
    add, would_accept = Leaves.add, Leaves.would_accept

    def accepts(self: Leaves, node_id: NodeId) -> bool:
        return (self.own, node_id) != (blind, unseen) and would_accept(self, node_id)

    def adds(self: Leaves, peer: PeerRef, can_be: SideRule = on_any_side) -> tuple[bool, PeerRef | None]:
        return (False, None) if (self.own, peer.id) == (blind, unseen) else add(self, peer, can_be)

    patch.setattr(Leaves, "would_accept", accepts)
    patch.setattr(Leaves, "add", adds)
    simulation.run_for(120.0)


def table_slots_are_one_off(patch: Patch) -> None:
    slot = RoutingTable.cell
    patch.setattr(RoutingTable, "cell", lambda self, node_id: slot(self, node_id) ^ 1)
    checked(4).run_for(30.0)


def any_entry_will_do(patch: Patch) -> None:
    simulation = formed(40)
    patch.setattr(RoutingTable, "next_hop", lambda self, key: next(iter(self)))
    send_probes(simulation)


def copies_are_not_recognised(patch: Patch) -> None:
    simulation = formed(12, network=NetworkConfig(duplication=0.5))
    patch.setattr(Window, "is_new", lambda self, identity: True)
    send_probes(simulation)


def boot_epoch_is_forgotten(patch: Patch) -> None:
    simulation = formed(4)
    simulation.nodes[2].boot_epoch = 0
    simulation.restart(simulation.nodes[2])
    simulation.run_for(1.0)


def suspects_are_removed_unasked(patch: Patch) -> None:
    simulation = formed(12)
    patch.setattr(OverlayState, "silence_s", lambda self, node_id: 1000.0)

    def remove(self: Membership, peer: PeerRef, evidence: str = "silent", **options: Any) -> None:
        self.remove(peer, evidence, is_told=True)

    patch.setattr(Membership, "exchange", remove)
    simulation.run_for(30.0)


def leaf_sets_are_not_trimmed(patch: Patch) -> None:
    patch.setattr(Leaves, "_trim_gapless", lambda self: None)
    checked(30).run_for(60.0)


def node_finds_fault_with_itself(patch: Patch) -> None:
    simulation = checked(4, without=None)
    simulation.run_for(10.0)

    def validate(self: Leaves) -> None:
        raise Bug("an invariant of mine")

    patch.setattr(Leaves, "validate", validate)
    simulation.run_for(30.0)


def a_field_gets_lost(patch: Patch) -> None:
    patch.setitem(cast(dict[Any, Any], messages._decoders), EntriesRequest, lambda body: EntriesRequest())
    checked(40, overlay=OverlayConfig.model_validate({"table_interval": "1s"})).run_for(60.0)


def the_silent_are_taken_for_gone(patch: Patch) -> None:
    patch.setattr(Expectations, "lost", lambda *arguments, **options: False)
    simulation = checked(9)
    simulation.run_for(30.0)
    simulation.silence(simulation.nodes[4])
    simulation.run_for(60.0)


CONTINUOUS_BUGS: dict[type[Checker], Callable[[Patch], None]] = {
    IdBinding: addresses_are_mixed_up,
    CorrectDelivery: nearest_member_is_overlooked,
    SingleRoot: a_neighbour_is_never_admitted,
    TableEntries: table_slots_are_one_off,
    Progress: any_entry_will_do,
    Dedupe: copies_are_not_recognised,
    MonotoneEpochs: boot_epoch_is_forgotten,
    ExpectedMembers: the_silent_are_taken_for_gone,
    FailureDetection: suspects_are_removed_unasked,
    Boundedness: leaf_sets_are_not_trimmed,
    NodesValid: node_finds_fault_with_itself,
    WireHygiene: a_field_gets_lost,
}


def cut_off(simulation: Simulation) -> None:
    """Start a newcomer that reaches nobody."""
    newcomer = simulation.add_node()
    simulation.partition([newcomer])
    simulation.run_for(5.0)


def dead_unnoticed(simulation: Simulation) -> None:
    simulation.silence(simulation.nodes[7])


def member_forgotten(simulation: Simulation) -> None:
    leaves = simulation.nodes[7].node.overlay.state.leaves
    leaves.remove(leaves.smaller()[-1].id)


def neighbour_forgotten(simulation: Simulation) -> None:
    for place in simulation.nodes:
        place.node.overlay.state.leaves.remove(simulation.nodes[7].id)


def entry_forgotten(simulation: Simulation) -> None:
    table = simulation.nodes[7].node.overlay.state.table
    table.remove(next(iter(table)).id)


QUIESCENT_BUGS: dict[type[Checker], Callable[[Simulation], None]] = {
    EverybodyReady: cut_off,
    DeadMembers: dead_unnoticed,
    LeafSetConsistency: member_forgotten,
    RingUnity: neighbour_forgotten,
    TableCoverage: entry_forgotten,
}


@pytest.mark.parametrize("kind", CONTINUOUS_BUGS, ids=lambda kind: kind.__name__)
def test_continuous_checker_bites(kind: type[Checker], monkeypatch: Patch) -> None:
    with pytest.raises(SimulationFailure) as caught:
        CONTINUOUS_BUGS[kind](monkeypatch)
    assert str(caught.value).startswith(f"{kind.name}: "), str(caught.value)


@pytest.mark.parametrize("kind", QUIESCENT_BUGS, ids=lambda kind: kind.__name__)
def test_quiescent_checker_bites(kind: type[Checker]) -> None:
    simulation = ring(20, seed=2)
    if kind is TableCoverage:
        simulation.run_until(lambda: not TableCoverage().check(simulation), limit_s=3600.0, poll_s=60.0)
    assert kind().check(simulation) == []
    QUIESCENT_BUGS[kind](simulation)
    assert kind().check(simulation) != []


def test_every_checker_has_a_bug_that_it_finds() -> None:
    assert {*CONTINUOUS_BUGS} == {*CONTINUOUS, CorrectDelivery, Dedupe}
    assert {*QUIESCENT_BUGS} == {*QUIESCENT, TableCoverage}


def test_all_hold_in_a_healthy_ring_under_churn() -> None:
    simulation = formed(20, without=None, check_every=5)
    churn = Churn(simulation, ChurnSettings(session_mean_s=120.0, graceful=0.3, returning=0.3))
    churn.start()
    send_probes(simulation, 120.0)
    assert churn.report.departures > 5 and churn.report.arrivals > 5
    churn.stop()
    simulation.run_for(HEAL_S + REPAIR_S)
    simulation.sweep()
    simulation.check([kind() for kind in QUIESCENT])


# What the bugs above do not show


def test_the_dead_must_not_stay_in_leaf_sets(monkeypatch: Patch) -> None:
    simulation = formed(12)
    monkeypatch.setattr(Membership, "remove", lambda self, peer, evidence, *, is_told: None)
    simulation.silence(simulation.nodes[5])
    # DETECT_S + REPAIR_S, and then until the next sweep: nothing else need happen at a node in a calm ring
    with pytest.raises(SimulationFailure, match=r"^failure detection: \w+ still has \w+, dead for (4[5-9]|50)"):
        simulation.run_for(60.0)


def test_hops_and_loops_are_bounded() -> None:
    simulation = ring(10)
    checker = Progress()
    source, place, before = simulation.nodes[:3]
    key = place.id  # this hop is progress, whatever it was before

    def handled(hops: int, way: tuple[PeerRef, ...] | None) -> str | None:
        trace = None if way is None else tuple(TraceHop(peer, None) for peer in way)
        message = Route((key,), LookupProbe.TYPE_ID, b"", source.peer, 1, 1, hops, trace)
        return checker.handled(simulation, place, message, before.peer)

    assert handled(9, None) is None
    assert "has made 10 hops, over 9" in (handled(10, None) or "")
    assert handled(2, (before.peer, place.peer)) is None
    assert "second time" in (handled(4, (before.peer, place.peer, before.peer, place.peer)) or "")
    simulation.network.configure(loss=0.1)
    assert handled(10, None) is None, "a lost acknowledgement may send a copy on another way"


def test_nobody_runs_twice_under_one_id() -> None:
    simulation = ring(4)
    first = simulation.nodes[1]
    simulation.add_node(first.id)
    assert MonotoneEpochs().check(simulation) == []
    simulation.run_for(30.0)
    assert any("at two addresses" in offence for offence in MonotoneEpochs().check(simulation))


def test_disturbances_excuse_what_they_cause_and_nothing_later() -> None:
    simulation = formed(12)
    simulation.partition(simulation.nodes[:6])
    assert simulation.truth.calm_s() == 0.0
    send_probes(simulation, 40.0)  # each half answers for all keys
    deliveries = next(checker for checker in simulation.checkers if isinstance(checker, CorrectDelivery))
    assert deliveries.excused > 0 and deliveries.wrong == 0
    simulation.heal()
    simulation.run_for(7.0)
    assert simulation.truth.calm_s() == pytest.approx(7.0)
    simulation.truth.disturb(simulation.now + 5.0)
    assert simulation.truth.calm_s() == 0.0
    simulation.run_for(6.0)
    assert simulation.truth.calm_s() == pytest.approx(1.0)


@pytest.mark.parametrize("impairment", [Impairment(loss=0.1), Impairment(clog=0.1, clog_longest_s=1.0)])
def test_bad_paths_disturb_until_they_are_healed(impairment: Impairment) -> None:
    """However long: nobody says in advance when they end."""
    simulation = ring(2)
    simulation.network.impair(impairment, Scope(frozenset((0,))))
    simulation.run_for(100.0)
    assert simulation.truth.calm_s() == 0.0
    simulation.heal()
    simulation.run_for(3.0)
    assert simulation.truth.calm_s() == pytest.approx(3.0)
    simulation.network.impair(Impairment(duplication=0.1), Scope())
    assert simulation.truth.calm_s() == pytest.approx(3.0), "copies disturb nobody"
    simulation.network.configure(clog=0.01)
    assert simulation.truth.calm_s() == 0.0


def test_pause_is_a_disturbance_until_it_ends() -> None:
    simulation = ring(4)
    simulation.pause(simulation.nodes[1])
    assert simulation.truth.calm_s() == 0.0 and simulation.nodes[1].id not in simulation.truth.ready
    simulation.resume(simulation.nodes[1])
    simulation.run_for(3.0)
    assert simulation.truth.calm_s() == pytest.approx(3.0) and simulation.nodes[1].id in simulation.truth.ready
