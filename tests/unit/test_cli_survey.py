"""Commands that look at the ring or leave it, from the command line down to a simulated ring of real nodes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from peerd.api import Plugin
from peerd.cli.main import main
from peerd.cli.peers import conclusions, folded
from peerd.cli.ring_drawing import dot, mermaid
from peerd.client import DaemonBusy
from peerd.daemon.admin import members
from peerd.daemon.admin.survey import ReachTests
from peerd.daemon.admin.view import AmbiguousNode
from peerd.errors import Unavailable
from peerd.ids import format_id
from peerd.models.admin import HistoryView, VerdictView
from peerd.overlay.survey.reach import Reachability
from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring as grown
from tests.support.sim_daemon import SimDaemon


class Slow(Plugin):
    """Hands over when it is told to."""

    name: ClassVar[str] = "slow"

    def drain(self, done: Callable[[], None]) -> None:
        """Call back later, or never."""
        self.done = done


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return grown(12, seed=11, settle_s=120.0)


@pytest.fixture
def daemon(simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> SimDaemon:
    fake = SimDaemon(simulation, simulation.nodes[0])
    fake.answer_commands(monkeypatch)
    return fake


def of(count: int, seed: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> SimDaemon:
    """A daemon on a ring of this test alone."""
    fake = SimDaemon((simulation := grown(count, seed=seed, settle_s=120.0, **options)), simulation.nodes[0])
    fake.answer_commands(monkeypatch)
    return fake


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Standard output of a command that ends with ``code``."""
    got = main([*arguments])
    captured = capsys.readouterr()
    assert got == code, (captured.out, captured.err)
    return captured.out


def ask(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """Run a command, and return its JSON."""
    return json.loads(run(capsys, *arguments, "-o", "json", code=code))


def test_ring_is_drawn_whole(daemon: SimDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "ring")
    assert "12 nodes, consistent" in text and "faulty" not in text
    for place in daemon.simulation.nodes:
        assert re.search(rf"^{format_id(place.id)} +{place.peer.address} +ready +11 ", text, re.MULTILINE)


def test_ring_as_json_has_this_nodes_view_and_everybody(daemon: SimDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["ring", "-o", "json"], ["ring", "--format", "json"]):
        found = json.loads(run(capsys, *arguments))
        assert found["id"] == format_id(daemon.place.id) and len(found["smaller"]) == 8
        assert [node["id"] for node in found["nodes"]] == sorted(
            format_id(place.id) for place in daemon.simulation.nodes
        )
        assert found["outcome"] == "consistent" and found["cycles"] == [12]


def test_ring_of_one_daemon(daemon: SimDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert "leaf set complete" in run(capsys, "ring", "--local")
    assert "nodes" not in ask(capsys, "ring", "--local")


def test_ring_as_graphs(daemon: SimDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = sorted(daemon.simulation.nodes, key=lambda place: place.id)[:2]
    text = run(capsys, "ring", "--format", "dot")
    assert text.startswith("digraph ring {") and text.rstrip().endswith("}")
    assert f'"{format_id(first.id)}" -> "{format_id(second.id)}";' in text and text.count("->") == 12
    text = run(capsys, "ring", "--format", "mermaid")
    assert text.startswith("flowchart LR\n") and f"n{format_id(first.id)} --> n{format_id(second.id)}" in text


def test_what_a_node_calls_itself_cannot_break_out_of_a_graph() -> None:
    from peerd.models.admin import RingNode

    node = RingNode(
        id="a" * 32,
        address='x"];evil:1',
        is_ready=True,
        may_serve=False,
        is_leaving=False,
        leaf_set_members=0,
        successor=None,
        ring_size=1.0,
        partition_suspected=False,
    )
    assert 'x?]?evil:1"' in dot([node]) and "color=red" in dot([node])
    assert "stroke:red" in mermaid([node]) and 'x"' not in mermaid([node])


@pytest.mark.parametrize(
    "words", [["--local", "--check"], ["--local", "--format", "dot"], ["--check", "--format", "dot"]]
)
def test_ring_options_that_contradict(daemon: SimDaemon, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["ring", *words]) == 2
    assert "--format" in capsys.readouterr().err


def test_check_of_a_consistent_ring(daemon: SimDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "ring", "--check").startswith("12 nodes, consistent: one cycle, 12 nodes answered in ")
    found = ask(capsys, "ring", "--check")
    assert found["outcome"] == "consistent" and found["problems"] == found["unanswered"] == []


def test_check_with_a_dead_node_is_partial_until_it_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = of(12, 13, monkeypatch)
    dead = daemon.simulation.nodes[5]
    daemon.simulation.silence(dead)
    text = run(capsys, "ring", "--check", code=3)
    assert f"no answer: {dead.peer} does not answer, and is listed by" in text and "doctor reach" in text
    daemon.simulation.run_for(125.0)
    text = run(capsys, "ring", "--check", code=3)
    assert "11 nodes, 1 missing" in text
    whole_id = format_id(dead.id)
    assert f"missing: {whole_id} ({dead.peer.address}): lost 2 min" in text and f"peerd forget {whole_id[:8]}" in text
    assert "11 nodes of 12 expected" in run(capsys, "status")
    assert f"missing {whole_id[:8]} ({dead.peer.address}): lost 2 min" in run(capsys, "status")
    assert "11 of 12 expected members, 1 missing" in run(capsys, "healthcheck", "-o", "json")
    assert run(capsys, "healthcheck") == "ready\n"
    forgotten = run(capsys, "forget", dead.peer.address)
    assert forgotten.startswith(f"forgotten: {whole_id} ({dead.peer.address}), lost 2 min")
    assert "11 nodes, consistent" in run(capsys, "ring", "--check")
    assert "none is missing" in run(capsys, "status")
    assert all(not place.node.overlay.missing_members() for place in daemon.simulation.live_nodes())
    assert "no node is missing" in run(capsys, "forget", "--all-missing")


def test_a_command_takes_the_same_virtual_time_on_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who has asked is looked up in a thread of its own; for that long the ring would have gone on for half a minute,
    where other work took the processor."""
    asked: list[threading.Thread] = []

    def user_name(user_id: int) -> str:
        asked.append(threading.current_thread())
        return str(user_id)

    monkeypatch.setattr("peerd.daemon.http.admission.user_name", user_name)
    monkeypatch.setattr("peerd.daemon.http.admission._names", {})
    of(12, 13, monkeypatch)
    assert "no node is missing" in run(capsys, "forget", "--all-missing")
    assert asked == [threading.main_thread()]


def test_all_commands_agree_on_when_a_member_was_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever asks is no neighbour of the dead one, so it had heard it last long before that died."""
    daemon = of(9, 18, monkeypatch)
    dead = _far_leaf(daemon)
    daemon.simulation.run_for(300.0)
    died_at = daemon.simulation.now
    daemon.simulation.kill(dead)
    daemon.simulation.run_until(lambda: bool(daemon.node.overlay.missing_members()), limit_s=60.0)
    noticed_at = daemon.simulation.now
    daemon.simulation.run_for(40.0)
    told = ask(capsys, "status")["missing_members"][0]
    assert told["id"] == format_id(dead.id) and told["lost_s"] == pytest.approx(40.0, abs=1.0)
    assert noticed_at < died_at + 30.0
    [missing] = ask(capsys, "ring", "--check", code=3)["missing"]
    assert missing["lost_s"] == pytest.approx(told["lost_s"], abs=2.0), "it took a little to ask all"
    for command in (["status"], ["ring", "--local"], ["peers"], ["forget", dead.peer.address]):
        [shown] = re.findall(r"lost (\d+) s ago", run(capsys, *command))
        assert int(shown) == pytest.approx(daemon.simulation.now - noticed_at, abs=1.0), command


def _far_leaf(daemon: SimDaemon) -> Place:
    """The leaf of a daemon that is farthest from it on the ring."""
    far = daemon.node.overlay.leaf_set().larger[len(daemon.simulation.nodes) // 2 - 1]
    return next(node for node in daemon.simulation.nodes if node.id == far.id)


def test_forget_says_why_it_does_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = of(9, 16, monkeypatch)
    dead = daemon.simulation.nodes[5]
    daemon.simulation.kill(dead)
    daemon.simulation.run_until(lambda: bool(daemon.node.overlay.missing_members()), limit_s=60.0)
    member = format_id(daemon.node.overlay.leaf_set().larger[0].id)
    for text, why in (
        (member, "is not missing"),
        (format_id(daemon.node.peer.id), "is not missing"),
        (format_id(dead.id)[:3], "at least 4 digits"),
        ("12345678", "is known here"),
        ("10.9.9.9:1", "is known here"),
    ):
        assert main(["forget", text]) == 1
        assert why in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(members, "PREFIX_DIGITS_MIN", 0)
        with pytest.raises(AmbiguousNode, match="give more digits"):
            members.find_missing(daemon, "", {})  # every id begins with it
    assert main(["forget", ""]) == 2
    assert main(["forget"]) == main(["forget", member, "--all-missing"]) == 2
    capsys.readouterr()
    assert len(daemon.node.overlay.missing_members()) == 1
    assert "not known here; told the ring" in run(capsys, "forget", "ab" * 16)
    assert ask(capsys, "forget", format_id(dead.id)[:4])["nodes"][0]["id"] == format_id(dead.id)
    assert not daemon.node.overlay.missing_members()


def test_the_smaller_side_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = of(3, 17, monkeypatch)
    for place in daemon.simulation.nodes:
        if place.id != daemon.place.id:
            daemon.simulation.pause(place)
    daemon.simulation.run_until(lambda: len(daemon.node.overlay.missing_members()) == 2, limit_s=120.0)
    assert "1 node, 2 missing" in run(capsys, "ring", "--check", code=3)
    assert "smaller side of a partition" in run(capsys, "status")
    assert "1 of 3 expected members, 2 missing: this side is the smaller part" in run(
        capsys, "healthcheck", "-o", "json"
    )
    assert "2 missing" in run(capsys, "ring", "--local")
    assert ask(capsys, "status")["is_minority"] is True


def test_check_finds_a_leaf_set_that_is_not_mutual(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = of(12, 14, monkeypatch)
    forgetful, forgotten = daemon.simulation.nodes[3], daemon.simulation.nodes[8]
    state = forgetful.node.overlay.state
    state.leaves.remove(forgotten.id)
    text = run(capsys, "ring", "--check", code=1)
    assert f"wrong: {forgotten.peer} lists {forgetful.peer}, which does not list it" in text


def test_reach(daemon: SimDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "doctor", "reach")
    assert "132 tested, 0 failed" in text and "each tested all others" in text and "FAILS" not in text
    found = ask(capsys, "doctor", "reach", "--targets", "3")
    assert found["outcome"] == "all" and found["pairs_tested"] == 36 and found["targets_each"] == 3
    assert 0 < found["rtt_median_s"] <= found["rtt_max_s"]


def test_reach_names_the_broken_pair(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = of(8, 15, monkeypatch)
    one, other = daemon.simulation.nodes[2], daemon.simulation.nodes[6]
    daemon.simulation.network.cut(one.index, other.index)
    daemon.simulation.network.cut(other.index, one.index)
    text = run(capsys, "doctor", "reach", code=1)
    assert text.count("FAILS") == 2 and "2 failed" in text and "node.advertise" in text
    found = ask(capsys, "doctor", "reach", code=1)
    pairs = {(pair["source"], pair["target"]) for pair in found["failed"]}
    assert pairs == {(format_id(one.id), format_id(other.id)), (format_id(other.id), format_id(one.id))}


def test_reach_with_a_dead_node_is_partial(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = of(6, 16, monkeypatch)
    daemon.simulation.silence(daemon.simulation.nodes[4])
    found = ask(capsys, "doctor", "reach", code=3)
    assert [node["id"] for node in found["dead"]] == [format_id(daemon.simulation.nodes[4].id)]
    assert found["failed"] == [] and found["outcome"] == "partial"


def test_rtt_between_two_nodes_by_every_kind_of_name(daemon: SimDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = daemon.simulation.nodes[3], daemon.simulation.nodes[7]
    for first, second in (
        (format_id(one.id), format_id(other.id)),
        (format_id(one.id)[:8].upper(), other.peer.address),
        (one.peer.address, format_id(other.id)[:6]),
    ):
        found = ask(capsys, "rtt", first, second)
        assert (found["source"]["id"], found["target"]["id"]) == (format_id(one.id), format_id(other.id))
        assert found["is_reached"] and found["predicted_s"] > 0 and 0 <= found["prediction_error"] < 1.5
        true_s = daemon.simulation.network.rtt_s(one.port, other.port)
        assert found["measured_s"] == pytest.approx(true_s, rel=0.5)


def test_rtt_from_this_node(daemon: SimDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "rtt", format_id(daemon.simulation.nodes[5].id)[:10])
    assert format_id(daemon.place.id) in text and re.search(r"predicted +[\d.]+ .*\+- \d+ %", text)
    assert re.search(r"measured +[\d.]+ ms", text)
    assert len(run(capsys, "rtt").splitlines()) == 12
    assert len(ask(capsys, "rtt")["peers"]) == 11


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["zz"], "is no node: give the first digits of an id"),
        (["0" * 31 + "1"], "is known: give the first digits"),
        (["", "x"], "at least 1 character"),
        (["nonsense:port"], "is no address: expected host:port"),
    ],
)
def test_rtt_of_nobody(daemon: SimDaemon, capsys: pytest.CaptureFixture[str], words: list[str], answer: str) -> None:
    assert main(["rtt", *words]) == 1
    assert answer in capsys.readouterr().err


def test_rtt_of_an_ambiguous_prefix_and_of_one_node(daemon: SimDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [format_id(place.id) for place in daemon.simulation.nodes]
    digit = next(first for first in "0123456789abcdef" if sum(text.startswith(first) for text in ids) > 1)
    assert main(["rtt", digit]) == 1
    assert "give more digits" in capsys.readouterr().err
    assert main(["rtt", ids[0]]) == 1
    assert "name two nodes" in capsys.readouterr().err


def test_rtt_to_a_dead_node_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = of(6, 17, monkeypatch)
    dead, other = daemon.simulation.nodes[4], daemon.simulation.nodes[2]
    daemon.simulation.silence(dead)
    text = run(capsys, "rtt", other.peer.address, dead.peer.address, code=1)
    assert "did not answer" in text and "doctor reach" in text
    assert "not measured" in run(capsys, "rtt", dead.peer.address, other.peer.address, code=3)


def test_rtt_names_a_missing_node_as_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = of(6, 17, monkeypatch)
    dead = daemon.simulation.nodes[4]
    daemon.simulation.silence(dead)
    daemon.simulation.run_for(120.0)
    assert main(["rtt", format_id(dead.id)[:8]]) == 1
    assert f"{format_id(dead.id)} at {dead.peer.address} is missing" in capsys.readouterr().err


def test_route_compares_the_way_with_the_direct_one(daemon: SimDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    target = daemon.simulation.nodes[9]
    text = run(capsys, "route", format_id(target.id))
    assert f"{format_id(target.id)} at {target.peer.address}" in text and "1 hop, " in text
    assert "measured" in text and "predicted" in text and "so far" in text
    found = ask(capsys, "route", format_id(target.id))
    assert found["direct"]["is_reached"] and found["total_rtt_s"] == pytest.approx(found["hops"][0]["rtt_s"])
    found = ask(capsys, "route", format_id(daemon.place.id))
    assert found["hops"] == [] and found["direct"] is None


def test_history_of_a_peer_that_died(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = of(8, 18, monkeypatch)
    dead = max(daemon.simulation.nodes[1:], key=lambda place: place.id)
    assert "nobody that was asked has suspected it" in run(capsys, "peers", "--history", dead.peer.address)
    daemon.simulation.silence(dead)
    daemon.simulation.run_for(120.0)
    text = run(capsys, "peers", "--history", format_id(dead.id)[:8])
    assert "suspected" in text and "removed" in text
    everybody = run(capsys, "peers", "--history")
    assert format_id(dead.id) in everybody and "removed" in everybody
    found = ask(capsys, "peers", "--history", format_id(dead.id))
    assert found["state"] == "departed" and [each["verdict"] for each in found["verdicts"]][-1] == "removed"
    around = ask(capsys, "peers", "--history", format_id(dead.id), "--around")
    assert len(around["asked"]) == 6 and around["silent"] == []
    assert {each["observer"] for each in around["verdicts"]} >= {each["observer"] for each in found["verdicts"]}
    assert len(around["verdicts"]) > len(found["verdicts"])
    assert around["verdicts"] == sorted(around["verdicts"], key=lambda each: str(each["at"]))
    assert main(["peers", "--around"]) == 2
    capsys.readouterr()
    table = run(capsys, "peers")
    assert re.search(rf"^{format_id(dead.id)} .* missing .* expected, lost .* ago", table, re.MULTILINE)
    assert table.count(format_id(dead.id)) == 1
    assert ask(capsys, "peers")["departed"][0]["has_left"] is False
    run(capsys, "forget", format_id(dead.id))
    table = run(capsys, "peers")
    assert re.search(rf"^{format_id(dead.id)} .* departed .* silent, removed .* ago", table, re.MULTILINE)
    assert main(["peers", "--history", "zz"]) == 1
    assert "is known" in capsys.readouterr().err


def test_status_names_what_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = of(20, 19, monkeypatch)
    assert "ready: in the ring" in run(capsys, "status") and "PARTITION" not in run(capsys, "status")
    daemon.simulation.partition(daemon.simulation.nodes[:4], daemon.simulation.nodes[4:])
    daemon.simulation.run_until(lambda: not daemon.node.overlay.state.may_serve, limit_s=120.0)
    assert ask(capsys, "status")["lease_held"] is False
    assert "degraded: in the ring" in run(capsys, "status")
    daemon.simulation.run_until(lambda: daemon.node.overlay.state.mass_loss.is_suspected, limit_s=300.0)
    text = run(capsys, "status")
    assert re.search(r"PARTITION SUSPECTED: \d+ nodes", text)


# Draining


def test_drain_hands_over_leaves_and_stays(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = of(8, 20, monkeypatch)
    text = run(capsys, "drain")
    assert text.startswith("drained in ") and "stays up" in text and daemon.stop_reasons == []
    assert main(["healthcheck"]) == 1
    assert "drained: out of the ring" in capsys.readouterr().err
    assert "drained: out of the ring" in run(capsys, "status")
    assert main(["ring", "--check"]) == 69
    assert "has left the ring; ask another one" in capsys.readouterr().err
    others = SimDaemon(daemon.simulation, daemon.simulation.nodes[3])
    others.answer_commands(monkeypatch)
    daemon.simulation.run_for(5.0)
    assert "7 nodes, consistent" in run(capsys, "ring", "--check")
    assert ask(capsys, "drain", "--stop")["unfinished"] == []
    assert others.stop_reasons == ["drained"]


def test_a_plugin_that_does_not_hand_over_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = of(5, 21, monkeypatch, plugins=lambda index: (Slow(),))
    text = run(capsys, "drain", "--timeout", "30s", code=3)
    assert "not handed over within 30s: slow" in text
    assert not daemon.node.is_ready and daemon.node.is_stopped


@pytest.mark.parametrize("timeout", ["soon", "-3s"])
def test_a_bad_timeout(daemon: SimDaemon, capsys: pytest.CaptureFixture[str], timeout: str) -> None:
    assert main(["drain", "--timeout", timeout]) == 2
    assert "--timeout" in capsys.readouterr().err
    assert not daemon.node.is_stopped


async def test_readiness_while_draining() -> None:
    simulation = grown(5, seed=22, plugins=lambda index: (Slow(),))
    place: Place = simulation.nodes[1]
    daemon = SimDaemon(simulation, place)
    async with daemon.client() as client:
        ended: list[tuple[str, ...]] = []
        place.node.drain(60.0, ended.append)
        place.node.drain(5.0, ended.append)
        simulation.run_for(1.0)
        health = await client.ready()
        assert health.status == "failing"
        assert [check.detail for check in health.checks if not check.ok] == ["draining: waiting for slow, records"]
        assert (await client.status()).state == "draining" and (await client.status()).draining[0] == "slow"
        assert place.node.overlay.is_ready, "it is in the ring until everything is handed over"
        slow = place.node.plugins["slow"]
        assert isinstance(slow, Slow)
        slow.done()
        slow.done()
        simulation.run_for(1.0)
        assert ended == [(), ()] and place.node.is_stopped
        with pytest.raises(DaemonBusy, match="has left the ring"):
            async for _ in client.reach():
                pass


@pytest.mark.parametrize("command", [["ring"], ["ring", "--check"], ["doctor", "reach"], ["rtt", "1"], ["drain"]])
def test_without_a_daemon_each_says_what_to_do(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert main([*command, "--socket", "/nowhere/admin.sock"]) == 69
    assert "start one with `peerd run`" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["ring"], ["peers"], ["route"], ["rtt"], ["drain"], ["doctor", "reach"]], ids=" ".join
)
def test_help_has_an_example(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert f"peerd {' '.join(command)}" in run(capsys, *command, "--help").partition("Example")[2]


async def test_one_reachability_test_at_a_time_and_whoever_hangs_up_ends_it() -> None:
    simulation = grown(5, seed=23, settle_s=60.0)
    daemon = SimDaemon(simulation, simulation.nodes[0])
    tests = ReachTests(daemon)
    async with daemon.client():
        first = tests.start(64)
        await anext(first)
        with pytest.raises(Unavailable, match="is under way"):
            tests.start(64)
        await first.aclose()
        assert isinstance([item async for item in tests.start(64)][-1], Reachability)
        assert isinstance([item async for item in tests.start(64)][-1], Reachability)


def test_conclusions_name_a_starved_accuser_and_count_refutations() -> None:
    def verdict(kind: str, observer: str, lag_s: float = 0.0, accuser: str | None = None) -> VerdictView:
        return VerdictView(
            at=1.0, verdict=kind, evidence="silent", silence_s=20.0, lag_s=lag_s, accuser=accuser, observer=observer
        )

    starved, other, unknown = "a" * 32, "b" * 32, "c" * 32
    told = [
        verdict("suspected", starved, 3.0),
        verdict("removed", starved, 4.5),
        verdict("accused", other, 9.0, starved),
        verdict("accused", other, 0.0, unknown),
        verdict("cleared", other),
    ]
    repeated = [*told[2:4], *told[2:4], verdict("removed", other), *told[2:4]]
    assert [(each.accuser, times) for each, times in folded(repeated)] == [
        (starved, 2),
        (unknown, 2),
        (None, 1),
        (starved, 1),
        (unknown, 1),
    ]
    found = HistoryView(id="d" * 32, address=None, state="member", verdicts=told, silent=["e" * 32])
    assert conclusions(found) == [
        "aaaaaaaa was itself up to 4.5 s late when it accused: look at that machine first",
        "refuted 1 time: it was alive after all",
        "others accused it: cccccccc; --around, or `peerd peers --history` there, says why",
        "asked in vain: eeeeeeee",
    ]
