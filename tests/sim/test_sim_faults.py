"""Faults of the simulated network, clocks and pauses: each for a while, each for some nodes, each from the seed."""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal

import pytest
from hypothesis import given, strategies as st

from peerd.errors import ConfigError
from peerd.limits import LINK_UNUSED_S
from peerd.linking.settings import LinkSettings
from peerd.messages import Message, PeerRef, message
from peerd.sim.clock import DRIFT_MAX, WALL_TIME_START_S, SimClock
from peerd.sim.driver import LINKS_SWEEP_S
from peerd.sim.fault_actions import FAULTS, AnyFault, inject
from peerd.sim.faults import Impairment, Scope, between_groups, majorities_ring
from peerd.sim.network import CONNECT_RETRY_S, RETRANSMIT_S, SEND_TIMEOUT_S, NetworkConfig
from peerd.sim.rng import fork
from peerd.sim.runner import run_scenario
from peerd.sim.scenario import parse_scenario
from tests.support.trivial_world import (
    EXACT,
    LATENCY_S,
    OPENING_S,
    RTT_S,
    NotingHandler,
    TrivialWorld,
    about,
    trivial_world,
)

CONNECT_TIMEOUT_S = LinkSettings().dial_timeout_s
STREAM = EXACT.model_copy(update={"loss_mode": "retransmit"})


@message(0x7F11, bytes_max=32_768)
class Remark(Message):
    """A message without any meaning, which shows who hears whom."""

    text: str


def say(world: TrivialWorld, source: int, target: int, text: str = "x") -> None:
    """One message between two nodes, by index."""
    world.nodes[source].node.send(world.nodes[target].peer, Remark(text))


def meshed(count: int, network: NetworkConfig = EXACT, seed: int = 0) -> TrivialWorld:
    """Every node has a link to every other, and nobody remembers anything."""
    world = trivial_world(count, seed, network=network)
    for source, target in itertools.combinations(range(count), 2):
        say(world, source, target)
    world.run_for(1.0)
    for place in world.nodes:
        place.node.messages.clear()
    return world


def fault(do: str, **keys: Any) -> AnyFault:
    """Make a fault as a scenario file would."""
    made = FAULTS[do].model_validate({"do": do, **keys})
    assert isinstance(made, AnyFault)
    return made


def begin(world: TrivialWorld, what: AnyFault, *indices: int) -> None:
    """Let the fault begin on these nodes."""
    inject(world, what, [world.nodes[index] for index in indices], fork(world.seed, "test"))


def heard(world: TrivialWorld) -> set[tuple[int, int]]:
    """Let every node say something to every other one, and return who heard whom."""
    pairs = list(itertools.permutations(range(len(world.nodes)), 2))
    for place in world.nodes:
        place.node.messages.clear()
    for source, target in pairs:
        say(world, source, target, str(source))
    world.run_for(10 * LATENCY_S)
    return {(s, t) for s, t in pairs if str(s) in world.nodes[t].node.texts()}


def everybody(count: int) -> set[tuple[int, int]]:
    """Return all pairs of nodes."""
    return set(itertools.permutations(range(count), 2))


# Cuts and partitions


@pytest.mark.parametrize(
    ("direction", "is_cut"),
    [("in", lambda s, t: t == 1), ("out", lambda s, t: s == 1), ("both", lambda s, t: 1 in (s, t))],
)
def test_cut_of_a_node_has_a_direction_and_an_end(direction: str, is_cut: Any) -> None:
    world = meshed(4)
    begin(world, fault("cut", nodes=[1], direction=direction, duration="2s"), 1)
    assert heard(world) == {pair for pair in everybody(4) if not is_cut(*pair)}
    world.run_for(2.0)
    assert heard(world) == everybody(4)


def test_who_hears_nobody_is_heard_but_times_out() -> None:
    world = meshed(3)
    begin(world, fault("cut", nodes=[0], direction="in"), 0)
    say(world, 0, 1, "help")
    world.run_for(SEND_TIMEOUT_S + CONNECT_TIMEOUT_S + 1.0)
    assert world.nodes[1].node.texts() == ["help"]
    assert [reason for _, _, reason in world.nodes[0].node.downs] == ["timeout"]


def test_partition_of_named_nodes_and_one_way() -> None:
    world = meshed(5)
    begin(world, fault("partition", nodes=[1, 2]), 1, 2)
    assert heard(world) == {(s, t) for s, t in everybody(5) if (s in (1, 2)) == (t in (1, 2))}
    begin(world, fault("partition", nodes=[1, 2], one_way=True), 1, 2)
    assert heard(world) == {(s, t) for s, t in everybody(5) if not (s not in (1, 2) and t in (1, 2))}, "replaced"
    world.heal()
    assert heard(world) == everybody(5)


def test_partition_by_shares_ends_by_itself_and_a_newer_one_is_left_alone() -> None:
    world = meshed(10)
    begin(world, fault("partition", shares=[0.7, 0.3], duration="2s"))
    assert len(heard(world)) == 7 * 6 + 3 * 2
    world.run_for(1.0)
    begin(world, fault("partition", shares=[1, 1], duration="2s"))
    world.run_for(1.5)
    assert len(heard(world)) == 2 * 5 * 4, "the end of the first is not the end of the second"
    world.run_for(1.0)
    assert heard(world) == everybody(10)


@given(st.integers(1, 40))
def test_majorities_ring_shows_everybody_a_majority_and_nobody_the_same(count: int) -> None:
    cut = majorities_ring(list(range(count))[::-1])
    views = [frozenset(b for b in range(count) if not cut(a, b)) for a in range(count)]
    assert all(a in view and len(view) > count / 2 for a, view in enumerate(views))
    assert all((a in views[b]) == (b in views[a]) for a in range(count) for b in range(count))
    if count >= 4:
        assert len(set(views)) == count
    assert not cut(0, count) and not cut(count, 0), "who came later is not cut off"


def test_majorities_ring_in_a_world() -> None:
    world = meshed(7)
    begin(world, fault("partition", mode="majorities_ring", duration="5s"))
    seen = heard(world)
    assert all(sum(s == node for s, _ in seen) == 4 for node in range(7))


def test_groups_may_leave_nodes_out() -> None:
    cut, one_way = (between_groups([[1, 2], [3]], is_one_way=flag) for flag in (False, True))
    assert cut(0, 1) and cut(1, 3) and not cut(1, 2) and not cut(0, 9)
    assert one_way(1, 3) and not one_way(3, 1) and one_way(0, 1)


# Impaired paths


def test_loss_hits_the_chosen_paths_for_the_time_given() -> None:
    world = meshed(3)
    begin(world, fault("impair", nodes=[1], direction="in", loss=0.5, duration="5s"), 1)
    for source, target in [(0, 1), (1, 0), (0, 2)] * 200:
        say(world, source, target)
    world.run_for(5.5)
    arrived = [len(place.node.messages) for place in world.nodes]
    assert arrived[0] == arrived[2] == 200 and 60 < arrived[1] < 140
    for _ in range(200):
        say(world, 0, 1)
    world.run_for(1.0)
    assert len(world.nodes[1].node.messages) == arrived[1] + 200, "it is over"


def test_impairments_add_up_as_independent_causes() -> None:
    both = Impairment(loss=0.5, clog=0.1, clog_longest_s=1.0).combined(Impairment(loss=0.5, duplication=0.2))
    assert both == Impairment(loss=0.75, duplication=0.2, clog=0.1, clog_longest_s=1.0)
    idle, late = Impairment(reorder_delay_s=9.0), Impairment(reordering=0.1, reorder_delay_s=0.1)
    assert idle.combined(late) == late.combined(idle) == late, "how long counts only for what happens"
    world = meshed(2, EXACT.model_copy(update={"loss": 0.5}))
    world.network.impair(Impairment(loss=0.5), Scope())
    for _ in range(1000):
        say(world, 0, 1)
    world.run_for(1.0)
    assert 180 < len(world.nodes[1].node.messages) < 320


def test_reordering_overtakes_where_messages_are_loose() -> None:
    world = meshed(2)
    begin(world, fault("impair", reordering=0.3, reorder_delay="500ms"))
    texts = [str(number) for number in range(200)]
    begun = world.now
    for text in texts:
        say(world, 0, 1, text)
    world.run_for(2.0)
    arrived = world.nodes[1].node.messages
    assert sorted(world.nodes[1].node.texts()) == sorted(texts) != world.nodes[1].node.texts()
    late = [time for time, _, _ in arrived if time > begun + LATENCY_S * 1.01]
    assert 30 < len(late) < 90 and max(late) <= begun + LATENCY_S + 0.5


def test_in_a_byte_stream_loss_copies_and_reordering_are_delay() -> None:
    """It is as in TCP: nothing is lost, doubled or overtaken; what comes behind has to wait."""
    world = meshed(2, STREAM)
    begin(world, fault("impair", loss=0.1, duplication=0.3, reordering=0.3, reorder_delay="500ms"))
    texts = [str(number) for number in range(200)]
    begun = world.now
    for text in texts:
        say(world, 0, 1, text)
    world.run_for(30.0)
    assert world.nodes[1].node.texts() == texts
    assert world.nodes[1].node.messages[-1][0] > begun + LATENCY_S + 0.2


def test_clogs_stop_a_path_and_keep_order() -> None:
    world = meshed(2)
    begin(world, fault("impair", clog=0.2, clog_longest="4s"))
    begun = world.now
    for number in range(2000):
        world.after(number * 0.5, lambda number=number: say(world, 0, 1, str(number)))  # type: ignore[misc]  # bound early
    world.run_for(1100.0)
    assert world.nodes[1].node.texts() == [str(number) for number in range(2000)]
    times = [time for time, _, _ in world.nodes[1].node.messages]
    delays = [time - (begun + 0.5 * number) for number, time in enumerate(times)]
    stopped = sum(delay > LATENCY_S * 1.01 for delay in delays) / len(delays)
    # stops of 2 s on average, 1 / 0.223 s apart: 2 / (2 + 4.48) of the time
    assert 0.2 < stopped < 0.42 and max(delays) <= 4.0 + LATENCY_S
    assert not world.nodes[0].node.downs


@pytest.mark.parametrize(("clog", "longest_s"), [(0.2, 4.0), (0.9, 2.0)])
def test_paths_may_be_stopped_when_first_asked_about(clog: float, longest_s: float) -> None:
    """Stops are there whether or not anybody looks: the share of stopped paths is that of stopped time."""
    network, impairment = trivial_world(60).network, Impairment(clog=clog, clog_longest_s=longest_s)
    pairs = list(itertools.permutations(network.ports, 2))
    network.engine.now = 1000.0
    stopped = sum(network.stopped_until(a, b, impairment) > network.engine.now for a, b in pairs) / len(pairs)
    gap_s = 1 / -math.log(1 - clog)
    assert stopped == pytest.approx(longest_s / 2 / (longest_s / 2 + gap_s), abs=0.04)


def test_heal_ends_clogs_of_both_kinds() -> None:
    world = meshed(2)
    world.network.clog(0, 1, 500.0)
    world.network.impair(Impairment(clog=0.999, clog_longest_s=500.0), Scope())
    say(world, 1, 0)
    world.run_for(1.0)
    assert not world.nodes[0].node.messages and world.network.is_disturbed
    handler = NotingHandler(world.nodes[1].driver)
    world.nodes[1].driver.open_stream(world.nodes[0].peer, handler)
    world.run_for(20.0)
    assert [reason for _, reason in handler.closings] == ["timeout"], "handshakes do not pass a clog"
    world.heal()
    assert not world.network.is_disturbed
    world.network.impair(Impairment(clog=1e-9, clog_longest_s=1e-3), Scope())
    say(world, 0, 1)
    world.run_for(1.0)
    assert len(world.nodes[1].node.messages) == 1
    handler = NotingHandler(world.nodes[1].driver)
    world.nodes[1].driver.open_stream(world.nodes[0].peer, handler)
    world.run_for(1.0)
    assert handler.opened_at is not None


@pytest.mark.parametrize("direction", ["in", "out"])
def test_handshakes_need_both_directions(direction: Literal["in", "out"]) -> None:
    world = trivial_world(40)
    world.network.impair(Impairment(loss=0.4), Scope(frozenset([0]), direction))
    found: list[float] = []
    for place in world.nodes[1:]:
        place.driver.dial(world.nodes[0].peer.host, world.nodes[0].peer.port, lambda answer: found.append(world.now))
    world.run_for(100.0)
    # Each dial goes along the bad direction twice, with its SYN or the answer and once more: 0.64 of them are held up.
    assert 15 < sum(waited > 1.01 * OPENING_S for waited in found) < 35 and len(found) == 39


def test_handshakes_lose_syns_and_give_up_in_time() -> None:
    world = trivial_world(40)
    world.network.impair(Impairment(loss=0.4), Scope(), duration_s=0.5)
    found: list[tuple[float, PeerRef | None]] = []
    begun, peer = world.now, world.nodes[0].peer
    for place in world.nodes[1:]:
        place.driver.dial(peer.host, peer.port, lambda answer: found.append((world.now - begun, answer)))
    world.run_for(100.0)
    at_once = [waited for waited, _ in found if waited == about(OPENING_S)]
    late = [waited - OPENING_S for waited, answer in found if answer is not None and waited > OPENING_S * 1.01]
    in_vain = [waited for waited, answer in found if answer is None]
    assert len(at_once) + len(late) + len(in_vain) == 39
    assert late and all(waited == about(round(waited / RETRANSMIT_S) * RETRANSMIT_S) for waited in late)
    assert max(late) >= CONNECT_RETRY_S, "a SYN waits for longer than what follows"
    assert len(at_once) > 2 and all(waited == CONNECT_TIMEOUT_S for waited in in_vain)


@pytest.mark.parametrize("clog_s", [2.0, 8.0])
def test_clog_holds_handshakes_up_and_may_outlast_them(clog_s: float) -> None:
    world = trivial_world(2)
    world.network.clog(1, 0, clog_s)
    begun, peer = world.now, world.nodes[1].peer
    found: list[PeerRef | None] = []
    world.nodes[0].driver.dial(peer.host, peer.port, found.append)
    handler = NotingHandler(world.nodes[0].driver)
    world.nodes[0].driver.open_stream(peer, handler)
    say(world, 0, 1, "first")
    world.run_for(60.0)
    if clog_s < CONNECT_TIMEOUT_S:
        assert found == [peer] and handler.opened_at == about(begun + clog_s + 2 * RTT_S)
        assert world.nodes[1].node.messages[0][0] == about(begun + clog_s + OPENING_S + LATENCY_S)
    else:
        assert found == [None] and handler.closings == [(about(begun + CONNECT_TIMEOUT_S), "timeout")]
        assert world.nodes[0].node.downs == [(begun + CONNECT_TIMEOUT_S, peer, "timeout")]


@pytest.mark.parametrize(
    "impairment",
    [
        Impairment(reordering=0.1, reorder_delay_s=0.05),
        Impairment(clog=0.9, clog_longest_s=0.2),
        Impairment(loss=0.1, duplication=0.2),
    ],
)
def test_streams_pay_for_what_paths_do_and_lose_nothing(impairment: Impairment) -> None:
    world = trivial_world(2, network=EXACT.model_copy(update={"piece_bytes": 1024}))
    handler = NotingHandler(world.nodes[0].driver)
    world.nodes[0].driver.open_stream(world.nodes[1].peer, handler)
    world.run_for(1.0)
    world.network.impair(impairment, Scope())
    there, sent = world.nodes[1].node.accepted[0], fork(1, "bytes").randbytes(300_000)
    behind = []
    for start in range(0, len(sent), 10_000):
        handler.open_stream.write(sent[start : start + 10_000])
        world.run_for(LATENCY_S * 1.5)
        behind.append(len(there.received) < start + 10_000)
        world.run_for(1.0)
    world.run_for(10.0)
    assert there.received == sent and there.padding_bytes == 0
    assert any(behind) and not all(behind)


def test_rate_of_a_link_is_for_each_pair_and_direction() -> None:
    world = meshed(3, EXACT.model_copy(update={"link_bytes_per_s": 10_000}))
    begun, size = world.now, 8 + 4 + 992  # frame header, msgpack array and string headers, text
    for source, target in [(0, 1), (0, 1), (0, 2), (1, 0)]:
        say(world, source, target, "a" * 992)
    world.run_for(5.0)
    times = [[time - begun for time, _, _ in place.node.messages] for place in world.nodes]
    one = LATENCY_S + size / 10_000
    assert times[1] == [about(one), about(one + size / 10_000)] and times[0] == times[2] == [about(one)]


@pytest.mark.parametrize(
    "rates",
    [(10_000, 20_000, 20_000), (20_000, 10_000, 20_000), (20_000, 20_000, 10_000), (20_000, 10_000, 10_000)],
)
def test_slowest_of_uplink_path_and_downlink_counts_once(rates: tuple[int, int, int]) -> None:
    up, path, down = rates
    changes = {"up_bytes_per_s": up, "link_bytes_per_s": path, "down_bytes_per_s": down}
    world = meshed(2, EXACT.model_copy(update=changes))
    begun, size = world.now, 8 + 4 + 992
    say(world, 0, 1, "a" * 992)
    world.run_for(5.0)
    assert world.nodes[1].node.messages[0][0] - begun == about(size / 10_000 + LATENCY_S)

    handler = NotingHandler(world.nodes[0].driver)
    world.nodes[0].driver.open_stream(world.nodes[1].peer, handler)
    world.run_for(1.0)
    begun, there = world.now, world.nodes[1].node.accepted[0]
    handler.open_stream.write_padding(size)
    world.run_for(5.0)
    assert there.last_at - begun == about(size / 10_000 + LATENCY_S)


@pytest.mark.parametrize("loss_mode", ["drop", "retransmit"])
def test_probabilities_next_to_0_and_1_are_no_trap(loss_mode: str) -> None:
    world = meshed(3, EXACT.model_copy(update={"loss_mode": loss_mode}))
    for probability in (1e-300, 1e-17, math.nextafter(1.0, 0.0)):
        hopeless = Impairment(probability, probability, probability, 0.1, probability, 1e-3)
        world.network.impair(hopeless, Scope())
        world.network.impair(hopeless, Scope())
        say(world, 0, 1)
        world.nodes[1].driver.open_stream(world.nodes[2].peer, NotingHandler(world.nodes[1].driver))
        world.run_for(1.0)
        world.heal()
    assert Impairment(loss=0.999999999).combined(Impairment(loss=0.999999999)).loss < 1.0
    world.run_for(1000.0)
    say(world, 0, 1, "whole again")
    world.run_for(1.0)
    assert world.nodes[1].node.texts()[-1] == "whole again"


# Clocks


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(-DRIFT_MAX, DRIFT_MAX)), max_size=8))
def test_monotonic_clock_never_goes_back_nor_far_astray(changes: list[tuple[float, float]]) -> None:
    clock, now, last = SimClock(), 0.0, 0.0
    for wait_s, drift in changes:
        now += wait_s
        assert last <= clock.monotonic(now)
        last = clock.monotonic(now)
        clock.set_drift(now, drift)
        assert clock.monotonic(now) == last
        assert abs(last - now) <= now * DRIFT_MAX * 1.0001


def test_drift_moves_time_and_timers_of_one_node_only() -> None:
    world = trivial_world(2)
    begin(world, fault("clock", drift=1e-4), 0)
    fired: list[float] = []
    for place in world.nodes:
        place.driver.call_later(1000.0, lambda: fired.append(world.now))
    world.run_for(2000.0)
    clocks = [place.driver.now() for place in world.nodes]
    assert clocks[1] == 2000.0 and 0 < abs(clocks[0] - 2000.0) <= 0.2
    off = next(time for time in fired if time != 1000.0)
    assert off == about(1000.0 / (1 + (clocks[0] - 2000.0) / 2000.0)), "at 1,000 s by its own clock"
    world.restart(world.nodes[0])
    world.run_for(1.0)
    assert world.nodes[0].driver.now() != 2001.0, "the machine's clock, not the process's"


def test_time_of_day_jumps_strobes_and_is_set_right_again() -> None:
    world = trivial_world(2)
    begin(world, fault("clock", offset="1d", strobe="200ms", strobe_period="10ms", duration="60s"), 0)
    driver = world.nodes[0].driver
    off = []
    for _ in range(20):
        world.run_for(0.005)
        off.append(driver.wall_time() - WALL_TIME_START_S - world.now)
    assert max(off) - min(off) == about(0.4) and 1 < abs(max(off)) <= 86_401
    assert driver.now() == world.now, "monotonic time does not care"
    assert world.nodes[1].driver.wall_time() == WALL_TIME_START_S + world.now
    world.run_for(60.0)
    assert driver.wall_time() == WALL_TIME_START_S + world.now


# Pauses


def test_pause_ends_by_itself_but_not_for_another_process() -> None:
    world = meshed(3)
    begin(world, fault("pause", duration="5s", spacing_s=1), 0, 1)
    assert [place.is_live for place in world.nodes] == [False, True, True]
    world.run_for(1.5)
    assert [place.is_live for place in world.nodes] == [False, False, True]
    world.restart(world.nodes[1])
    world.run_for(0.1)
    world.pause(world.nodes[1])
    world.run_for(10.0)
    assert [place.is_live for place in world.nodes] == [True, False, True], "node 1 was paused anew, for good"


# Idle links


def test_links_that_nobody_uses_are_closed() -> None:
    world = meshed(3)
    for _ in range(12):
        say(world, 0, 1)
        world.run_for(LINK_UNUSED_S / 8)
    assert {len(place.driver.links) for place in world.nodes[:2]} == {1} and not world.nodes[2].driver.links
    assert world.nodes[1].peer.id in world.nodes[0].driver.links
    world.run_for(LINK_UNUSED_S + LINKS_SWEEP_S)
    assert not any(place.driver.links for place in world.nodes)
    assert not any(place.node.downs for place in world.nodes), "nobody is told"
    assert world.pending == 0, "and nothing goes on in an idle world"
    say(world, 2, 0, "again")
    world.run_for(1.0)
    assert world.nodes[0].node.texts()[-1] == "again"


# In a scenario


def scenario(*actions: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Six nodes, and what happens once they are ready."""
    first = {"duration_s": "20s", "actions": [{"do": "wait_ready", "at_s": 5}]}
    return {"nodes": 6, "seed": 3, "phases": [first, {"duration_s": 30, "actions": list(actions)}], **keys}


STORM: tuple[dict[str, Any], ...] = (
    {"do": "impair", "count": 3, "loss": 0.1, "duplication": 0.1, "reordering": 0.2, "clog": 0.05, "duration": "10s"},
    {"do": "clock", "drift": 1e-4, "offset": "1h", "strobe": "200ms", "duration": "15s"},
    {"do": "cut", "count": 1, "direction": "in", "at_s": "2s", "duration": 3},
    {"do": "pause", "count": 1, "at_s": 6, "duration": "2s"},
    {"do": "partition", "mode": "majorities_ring", "at_s": 8, "duration": "4s"},
    {"do": "network", "clog": 0.01, "reordering": 0.01},
)


@pytest.mark.parametrize("mode", ["drop", "retransmit"])
def test_every_fault_at_once_is_one_run_a_seed(mode: str) -> None:
    tree = scenario(*STORM, network={"loss_mode": mode, "link_bytes_per_s": "1MiB"})
    first, second = run_scenario(parse_scenario(tree)), run_scenario(parse_scenario(tree))
    assert first.failure is None and first.trace_hash == second.trace_hash
    assert run_scenario(parse_scenario(tree), seed=4).trace_hash != first.trace_hash
    assert ("loss" in first.dropped) is (mode == "drop")


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ({"do": "cut", "source": 1}, "give source and target"),
        ({"do": "cut", "source": 1, "target": 2, "count": 3}, "give source and target"),
        ({"do": "impair", "loss": 1.0}, "less than 1"),
        ({"do": "impair", "los": 0.1}, 'did you mean "loss"'),
        ({"do": "clock", "drift": 0.1}, "at most 0.0001"),
        ({"do": "partition", "mode": "majorities_ring", "share": 0.5}, "about all nodes"),
        ({"do": "partition", "shares": [1, 2], "nodes": [1]}, "give shares, or one of"),
        ({"do": "pause", "duration": "soon"}, "expected a duration with its unit"),
    ],
)
def test_bad_fault_is_refused_by_name(action: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=r"phases\[1\]\.actions\[0\]") as caught:
        parse_scenario(scenario(action))
    assert expected in str(caught.value)


def test_cut_of_a_node_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="no node 17: there are 6"):
        run_scenario(parse_scenario(scenario({"do": "cut", "source": 1, "target": 17})))
