"""Offers that the acceptor's plugin puts off: the value may be there before the swap is agreed to."""

from __future__ import annotations

from itertools import cycle

import pytest
from hypothesis import given, strategies as st

from peerd.api import AcceptSwap, HoldSwap, RefuseSwap, SwapDecision, SwapRequest
from peerd.errors import ProtocolError
from peerd.swap.config import SwapConfig
from peerd.swap.ports import SwapState
from peerd.swap.session import FIRST_WINDOW_BYTES
from tests.support.stream_pair import LATENCY_S, Couple, Faults, MemoryNetwork

CONFIG = SwapConfig(chunk_bytes=64, stall_timeout=30, deadline=40, close_timeout=2)
OFFER, ANSWER = bytes(range(200)), bytes(range(255, 100, -1))


def held(offer: bytes = OFFER, config: SwapConfig = CONFIG, network: MemoryNetwork | None = None) -> Couple:
    """A couple whose swap waits for node 2's plugin, with all there that may come before."""
    couple = Couple(offer, ANSWER, config, network=network)
    couple.holds = True
    couple.swap()
    couple.network.run(1.0)
    assert len(couple.held) == 1
    return couple


def decide(couple: Couple) -> None:
    """Node 2 knows now what it answers."""
    couple.holds = False
    [request] = couple.held
    assert request.ask_again()


def test_a_value_that_came_while_the_offer_was_held_is_given_to_the_plugin_when_it_accepts() -> None:
    couple = held()
    [session] = couple.second.layer.sessions
    assert session.state is SwapState.HELD and couple.there.received == []
    assert couple.second.layer.budget.memory_bytes == len(OFFER)
    decide(couple)
    assert couple.there.received == []  # callbacks come after the call that has caused them
    assert couple.run() == ("done", "done")
    assert (couple.here.done, couple.there.done) == ([ANSWER], [OFFER])
    assert couple.there.received == [OFFER]


@given(
    offer=st.binary(max_size=700),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=8),
    latencies=st.integers(0, 60),
    asked=st.integers(1, 3),
)
def test_it_does_not_matter_how_much_has_come_when_it_is_decided(
    offer: bytes, sizes: list[int], latencies: int, asked: int
) -> None:
    taken = cycle(sizes)
    network = MemoryNetwork(lambda queued: next(taken), high_water_bytes=128)
    couple = Couple(offer, ANSWER, CONFIG, network=network)
    couple.holds = True
    couple.swap()
    while not couple.held:
        assert network.step()
    network.run(network.now_s + latencies * LATENCY_S)
    for count in range(asked):
        couple.holds = count < asked - 1
        assert couple.held[-1].ask_again()
        while couple.holds and len(couple.held) < count + 2:
            assert network.step()
    assert couple.run() == ("done", "done")
    assert (couple.here.done, couple.there.done) == ([ANSWER], [offer])


def test_of_a_value_larger_than_the_first_window_the_rest_comes_when_it_is_accepted() -> None:
    offer = bytes(FIRST_WINDOW_BYTES + 1000)
    couple = held(offer, SwapConfig(chunk_bytes=256 * 1024))
    [session] = couple.second.layer.sessions
    assert session._received_bytes == FIRST_WINDOW_BYTES
    decide(couple)
    assert couple.run() == ("done", "done")
    assert couple.there.done == [offer]


def test_it_may_be_refused_later() -> None:
    couple = held()
    couple.answer_value = None
    decide(couple)
    couple.network.run()
    couple.assert_idle()
    assert couple.here.outcome == "refused:not_now"
    assert not couple.held[0].ask_again()


def test_an_offer_that_nobody_decides_about_is_refused() -> None:
    couple = held(config=SwapConfig(chunk_bytes=64, stall_timeout=5, deadline=12))
    couple.network.run(4.9)
    assert couple.second.layer.sessions[0].state is SwapState.HELD
    couple.network.run()
    couple.assert_idle()
    assert couple.here.outcome == "stalled"  # at who offers; the plugin that holds has the whole deadline
    assert couple.second.events[0].outcome == "peer_cancelled:stalled"
    assert not couple.held[0].ask_again()


@pytest.mark.parametrize(("may_wait", "outcome"), [(False, "stalled"), (True, "refused:late")])
def test_a_peer_that_may_put_its_answer_off_may_be_silent_until_it_answers(may_wait: bool, outcome: str) -> None:
    config = SwapConfig(chunk_bytes=64, stall_timeout=30, deadline=8)
    couple = Couple(OFFER, ANSWER, config)
    couple.holds = True
    prepared = couple.first.layer.prepare("echo", couple.second.peer, b"tag", couple.here.callbacks, 40.0, 2.0)
    prepared.offer(OFFER, may_wait=may_wait)
    couple.network.run()
    couple.assert_idle()
    assert couple.here.outcome == outcome


def test_who_offers_may_take_it_back_before_it_is_decided() -> None:
    couple = Couple(OFFER, ANSWER, CONFIG)
    couple.holds = True
    handle = couple.swap()
    couple.network.run(1.0)
    handle.cancel()
    couple.network.run()
    couple.assert_idle()
    assert couple.here.outcome == "cancelled"
    assert couple.second.events[0].outcome == "peer_cancelled:cancelled"
    assert not couple.held[0].ask_again()


def test_an_offer_that_is_taken_back_between_the_question_and_the_decision_is_not_decided() -> None:
    couple = Couple(OFFER, ANSWER, CONFIG)
    couple.holds = True
    couple.swap()
    couple.network.run(1.0)
    decide(couple)
    couple.second.layer.stop()
    couple.network.run()
    couple.assert_idle()
    assert couple.requests == [] and couple.here.outcome == "peer_cancelled:stopped"


def test_a_fetch_may_be_held() -> None:
    couple = Couple(b"", ANSWER, CONFIG)
    couple.holds = True
    couple.fetch()
    couple.network.run(1.0)
    decide(couple)
    assert couple.run() == ("done", "done")
    assert couple.here.done == [ANSWER]


def test_held_offers_take_the_places_of_swaps() -> None:
    """So no peer can have more of them than of swaps under way."""
    couple = Couple(OFFER, ANSWER, SwapConfig(chunk_bytes=64, inbound_peer_sessions_max=2))
    couple.holds = True
    for _ in range(3):
        couple.swap()
    couple.network.run(1.0)
    assert len(couple.held) == 2 and couple.here.failed == ["refused:busy"]


def test_a_damaged_value_is_known_while_the_offer_is_held() -> None:
    couple = Couple(OFFER, ANSWER, CONFIG, network=MemoryNetwork(faults=(Faults(flip_at=150), Faults())))
    couple.holds = True
    couple.swap()
    couple.network.run(1.0)
    couple.assert_idle()
    assert couple.here.outcome == "peer_cancelled:digest" and not couple.held[0].ask_again()


def test_a_plugin_that_blames_the_peer_when_it_is_asked_again_ends_the_swap() -> None:
    couple = Couple(OFFER, ANSWER, CONFIG)
    asked: list[SwapRequest] = []

    def respond(plugin: str, request: SwapRequest) -> SwapDecision:
        if asked:
            raise ProtocolError("invented", "no such value")
        asked.append(request)
        return HoldSwap()

    couple.second.respond = respond
    couple.swap()
    couple.network.run(1.0)
    assert asked[0].ask_again()
    couple.network.run()
    couple.assert_idle()
    assert couple.second.events[0].outcome == "protocol:blamed"


@pytest.mark.parametrize("answer", [AcceptSwap, RefuseSwap])
def test_a_request_that_was_decided_at_once_cannot_be_asked_again(answer: type[AcceptSwap] | type[RefuseSwap]) -> None:
    couple = Couple(OFFER, ANSWER, CONFIG)
    seen: list[SwapRequest] = []

    def respond(plugin: str, request: SwapRequest) -> SwapDecision:
        seen.append(request)
        return RefuseSwap("no") if answer is RefuseSwap else AcceptSwap(ANSWER, couple.there.callbacks)

    couple.second.respond = respond
    couple.swap()
    couple.network.run()
    couple.assert_idle()
    assert not seen[0].ask_again()
    assert len(seen) == 1
