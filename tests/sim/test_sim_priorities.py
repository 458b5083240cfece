"""Send queues of the simulator: what leaves first when a link is busy, and what a fault does to what waits."""

from __future__ import annotations

import pytest

from peerd.api import Priority, SendRefusal
from peerd.limits import KIB, MIB, WRITE_HIGH_WATER_BYTES
from peerd.linking.settings import LinkSettings
from peerd.messages import Message, message
from peerd.sim.network import NetworkConfig
from peerd.wire.codec import encode
from tests.support.trivial_world import EXACT, LATENCY_S, NotingHandler, TrivialWorld, trivial_world

RATE = 1 * MIB
UPLINK = NetworkConfig(up_bytes_per_s=RATE, down_bytes_per_s=None, jitter=0.0)
PATH = EXACT.model_copy(update={"link_bytes_per_s": float(RATE)})
FRAME_BYTES = 32 * KIB
AT_ONCE = WRITE_HIGH_WATER_BYTES // FRAME_BYTES


@message(0x7F12, bytes_max=64 * 1024)
class Load(Message):
    """A message that is large enough to fill a link."""

    number: int
    data: bytes = b""


def linked(network: NetworkConfig, count: int = 2, links: LinkSettings | None = None) -> TrivialWorld:
    """Node 0 has a link to each of the others."""
    world = trivial_world(count, network=network, links=links)
    for place in world.nodes[1:]:
        world.nodes[0].node.send(place.peer, Load(0))
    world.run_for(1.0)
    for place in world.nodes:
        place.node.messages.clear()
    return world


def load(world: TrivialWorld, number: int, priority: Priority, target: int = 1, size: int = FRAME_BYTES) -> None:
    """Send one frame from node 0."""
    world.nodes[0].driver.send(world.nodes[target].peer, encode(Load(number, bytes(size))), priority)


def numbers(world: TrivialWorld, target: int = 1) -> list[int]:
    """What a node got, in order."""
    return [message.number for _, _, message in world.nodes[target].node.messages if isinstance(message, Load)]


@pytest.mark.parametrize("network", [UPLINK, PATH], ids=["uplink", "path"])
def test_what_waits_leaves_by_priority_and_in_order(network: NetworkConfig) -> None:
    world = linked(network)
    for number in range(30):
        load(world, number, Priority.BACKGROUND)
    for number in range(100, 103):
        load(world, number, Priority.NORMAL)
    load(world, 200, Priority.URGENT, size=10)
    begun = world.now
    world.run_for(10.0)
    got = numbers(world)
    waited = got[got.index(200) :]
    assert got.index(200) <= AT_ONCE + 4, "behind no more than a socket takes, and one piece"
    assert waited[:4] == [200, 100, 101, 102]
    assert [number for number in got if number < 100] == list(range(30))
    took_s = world.nodes[1].node.messages[-1][0] - begun
    assert took_s == pytest.approx(33 * FRAME_BYTES / RATE, rel=0.02), "and the link is never idle meanwhile"


def test_what_comes_later_waits_behind_what_waits_already() -> None:
    world = linked(UPLINK)
    for number in range(30):
        world.after(0.01 * number, lambda number=number: load(world, number, Priority.NORMAL))  # type: ignore[misc]  # bound early
    world.run_for(10.0)
    assert numbers(world) == list(range(30))


def test_a_full_queue_drops_background_first_and_counts_it() -> None:
    world = linked(UPLINK, links=LinkSettings(send_queue_bytes_max=10 * FRAME_BYTES))
    for number in range(30):
        load(world, number, Priority.BACKGROUND)
    for number in range(100, 105):
        load(world, number, Priority.NORMAL)
    world.run_for(10.0)
    got = numbers(world)
    assert [number for number in got if number >= 100] == list(range(100, 105))
    assert len(got) + world.network.dropped["queue_full"] == 35 and len(got) < 30


def test_bulk_does_not_starve_control_messages() -> None:
    world = linked(UPLINK)
    handlers = [NotingHandler(world.nodes[0].driver) for _ in range(8)]
    for handler in handlers:
        world.nodes[0].driver.open_stream(world.nodes[1].peer, handler)
    world.run_for(1.0)
    for handler in handlers:
        handler.open_stream.write_padding(4 * MIB)
    world.run_for(1.0)
    begun = world.now
    for number in range(3):
        load(world, number, Priority.NORMAL, size=100)
    world.run_for(5.0)
    pieces_s = 8 * world.network.config.piece_bytes / RATE
    assert numbers(world) == [0, 1, 2]
    assert world.nodes[1].node.messages[-1][0] - begun < 2.5 * pieces_s, "a turn or two, not behind all of it"


@pytest.mark.parametrize("mode", ["drop", "retransmit"])
def test_a_cut_while_frames_wait(mode: str) -> None:
    world = linked(UPLINK.model_copy(update={"loss_mode": mode}))
    for number in range(40):
        load(world, number, Priority.NORMAL)
    world.run_for(0.5)
    world.partition([world.nodes[0]])
    world.run_for(5.0)
    at_the_cut = len(numbers(world))
    assert 10 < at_the_cut < 35
    world.heal()
    load(world, 40, Priority.NORMAL)
    world.run_for(10.0)
    if mode == "drop":
        assert numbers(world) == [*range(at_the_cut), 40]
        assert world.network.dropped["cut"] == 40 - at_the_cut
    else:
        assert numbers(world) == list(range(41)) and world.network.dropped == {}
    assert not world.network.stalled


def test_the_window_of_a_link_does_not_slow_a_long_fast_path() -> None:
    rate = 50e6
    world = linked(NetworkConfig(up_bytes_per_s=rate, jitter=0.0))
    begun, count = world.now, 100
    for number in range(count):
        load(world, number, Priority.NORMAL)
    world.run_for(1.0)
    assert numbers(world) == list(range(count))
    took_s = world.nodes[1].node.messages[-1][0] - begun
    assert took_s == pytest.approx(count * FRAME_BYTES / rate + LATENCY_S, rel=0.05)


def test_what_a_peer_does_not_read_waits_here_and_leaves_by_priority_when_it_goes_on() -> None:
    world = linked(NetworkConfig(jitter=0.0))
    driver, peer = world.nodes[0].driver, world.nodes[1].peer
    world.pause(world.nodes[1])
    for number in range(100):
        load(world, number, Priority.BACKGROUND)
    world.run_for(60.0)
    waiting = driver.queued_bytes(peer)
    assert 0 < waiting < 100 * FRAME_BYTES, "the kernels hold some of it, and the link lives"
    for number in range(100, 110):
        load(world, number, Priority.URGENT)
    assert driver.queued_bytes(peer) > waiting + 10 * FRAME_BYTES
    world.resume(world.nodes[1])
    world.run_for(5.0)
    got = numbers(world)
    assert [number for number in got if number < 100] == list(range(100))
    assert [number for number in got if number >= 100] == list(range(100, 110))
    assert got.index(109) < 99 and driver.queued_bytes(peer) == 0
    assert world.network.dropped == {} and not world.network.stalled


@pytest.mark.parametrize("mode", ["drop", "retransmit"])
def test_a_peer_that_dies_while_frames_wait_for_it_to_read_is_found_out(mode: str) -> None:
    world = linked(NetworkConfig(jitter=0.0, loss_mode=mode))
    world.pause(world.nodes[1])
    for number in range(120):
        load(world, number, Priority.NORMAL)
    world.run_for(5.0)
    assert world.nodes[0].driver.queued_bytes(world.nodes[1].peer) > 0 and world.nodes[0].node.downs == []
    world.silence(world.nodes[1])
    world.run_for(60.0)
    assert [reason for _, _, reason in world.nodes[0].node.downs] == ["timeout"]
    assert world.nodes[0].driver.queued_bytes(world.nodes[1].peer) == 0 and not world.network.stalled
    refused = [(peer, reason) for peer, _, reason in world.nodes[0].node.refused]
    assert set(refused) == {(world.nodes[1].peer, SendRefusal.PEER_DOWN)}
