"""Swaps that fail: refusals, limits, cancelling, stalls, resets, damaged bytes. Nothing is ever left held."""

from __future__ import annotations

from typing import NoReturn

import pytest
from hypothesis import given, strategies as st

from peerd.api import AcceptSwap, RefuseSwap, SizedBlob, SwapRequest, Value
from peerd.errors import Bug, ProtocolError, Unavailable
from peerd.swap.config import SwapConfig
from peerd.swap.session import STALL_DEADLINE_SHARE
from tests.support.stream_pair import Couple, Faults, MemoryNetwork, Report

CONFIG = SwapConfig(chunk_bytes=64, stall_timeout=3, deadline=20, close_timeout=2)
OFFER, ANSWER = bytes(range(200)), bytes(range(255, 100, -1))


def slow(
    *,
    offer: Value = OFFER,
    answer: Value | None = ANSWER,
    config: SwapConfig = CONFIG,
    answer_config: SwapConfig | None = None,
    faults: tuple[Faults, Faults] | None = None,
) -> Couple:
    """A couple whose bytes move a few at a time."""
    network = MemoryNetwork(lambda queued: 20, high_water_bytes=100, faults=faults)
    return Couple(offer, answer, config, answer_config, network)


def run_until_exchanging(couple: Couple) -> None:
    """Run until node 2 has accepted the swap."""
    while not any(session.is_active for session in couple.second.layer.sessions):
        assert couple.network.step()


# Refusals and limits


def test_the_plugin_refuses() -> None:
    couple = slow(answer=None)
    couple.swap()
    assert couple.run() == ("refused:not_now", "unasked")
    assert couple.second.events[0].outcome == "refused:not_now"


def test_who_is_refused_reads_why_whatever_it_has_sent_by_then() -> None:
    """Closing with unread bytes would be a reset: who refuses throws them away, for a while."""
    couple = slow(offer=bytes(5000), answer=None)
    couple.swap()
    couple.run()
    assert couple.here.outcome == "refused:not_now"
    (pair,) = couple.network.pairs
    assert pair.is_over


def test_who_is_refused_and_does_not_close_is_cut_off() -> None:
    couple = slow(offer=bytes(5000), answer=None, faults=(Faults(), Faults(freeze_at=10)))
    couple.swap()
    while not couple.second.events:
        assert couple.network.step()
    refused_at = couple.network.now_s
    (pair,) = couple.network.pairs
    couple.network.run(refused_at + CONFIG.close_timeout - 0.1)
    assert not pair.is_over
    couple.network.run(refused_at + CONFIG.close_timeout + 0.1)
    assert pair.is_over


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_peer_that_is_silent_for_longer_than_was_asked_is_given_up(is_prepared: bool) -> None:
    """The initiator's patience is short, the acceptor's as configured."""
    couple = slow(faults=(Faults(), Faults(freeze_at=60)))
    layer, peer, callbacks = couple.first.layer, couple.second.peer, couple.here.callbacks
    if is_prepared:
        prepared = layer.prepare("echo", peer, b"tag", callbacks, silence_s=0.5)
        couple.network.run(1.0)
        prepared.offer(OFFER)
    else:
        layer.swap("echo", peer, b"tag", OFFER, callbacks, silence_s=0.5)
    begun = couple.network.now_s
    couple.network.run()
    assert couple.here.outcome == "stalled" and couple.first.events[0].outcome == "stalled"
    assert couple.first.events[0].duration_s < begun + 0.7


@pytest.mark.parametrize("prepared_s", [0.0, 2.0])
def test_so_is_one_whose_connection_does_not_open_once_there_is_a_value_for_it(prepared_s: float) -> None:
    """A machine that is gone: a dial would take seconds to notice it."""
    couple = slow()
    couple.first.dial_s = 2.9
    layer, peer, callbacks = couple.first.layer, couple.second.peer, couple.here.callbacks
    if prepared_s:
        prepared = layer.prepare("echo", peer, b"tag", callbacks, silence_s=0.5)
        couple.network.call_at(prepared_s, lambda: prepared.offer(OFFER))
    else:
        layer.swap("echo", peer, b"tag", OFFER, callbacks, silence_s=0.5)
    couple.network.run()
    assert couple.here.outcome == "stalled" and couple.first.events[0].outcome == "stalled"
    assert couple.first.events[0].duration_s == pytest.approx(prepared_s + 0.5)
    couple.assert_idle()


def test_nobody_is_given_up_whose_value_is_here_while_ours_is_long_on_its_way() -> None:
    """An uplink that is slower than all buffers: what waits in them is not seen to move."""
    network = MemoryNetwork(lambda queued: 20, high_water_bytes=1 << 20)
    couple = Couple(bytes(20_000), b"short", CONFIG, network=network)
    couple.first.layer.swap("echo", couple.second.peer, b"tag", bytes(20_000), couple.here.callbacks, silence_s=0.2)
    couple.network.run()
    assert couple.here.received == [b"short"] and couple.here.done == [b"short"]
    assert couple.first.events[0].duration_s > 0.9


def test_an_acceptor_may_be_impatient_as_well() -> None:
    couple = slow(faults=(Faults(freeze_at=100), Faults()))
    couple.second.respond = lambda plugin, request: AcceptSwap(ANSWER, couple.there.callbacks, silence_s=0.5)
    couple.swap()
    couple.network.run()
    assert couple.there.outcome == "stalled" and couple.second.events[0].duration_s < 0.7


def test_a_reason_that_is_no_label_is_made_one() -> None:
    couple = slow()
    couple.second.respond = lambda plugin, request: RefuseSwap("Not Now, sorry! " * 9)
    couple.swap()
    couple.run()
    assert couple.here.outcome.startswith("refused:not_now__sorry__not_now")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"value_bytes_max": 199}, "too_large"),
        ({"memory_bytes_max": 199, "spill_bytes": 199, "spilled_bytes_max": 199, "value_bytes_max": 199}, "too_large"),
        ({"spill_bytes": 0, "memory_bytes_max": 1, "spilled_bytes_max": 200, "value_bytes_max": 200}, None),
    ],
)
def test_what_the_acceptor_cannot_hold_is_refused_before_it_is_asked_or_allocated(
    fields: dict[str, int], reason: str | None
) -> None:
    couple = slow(answer=b"", answer_config=CONFIG.model_copy(update=fields))
    couple.swap()
    if reason is None:
        assert couple.run() == ("done", "done")
        return
    assert couple.run() == (f"refused:{reason}", "unasked")
    assert couple.second.allocations == []


def test_an_answer_that_the_initiator_cannot_hold_ends_it_on_both_sides() -> None:
    couple = slow(offer=b"x", config=CONFIG.model_copy(update={"value_bytes_max": 100}), answer_config=CONFIG)
    couple.swap()
    assert couple.run() == ("too_large", "peer_cancelled:too_large")
    assert couple.first.allocations == []


def test_a_value_too_large_to_send_fails_later_not_at_once() -> None:
    couple = slow(config=CONFIG.model_copy(update={"value_bytes_max": 150}))
    couple.swap()
    assert couple.here.failed == []
    assert couple.run() == ("too_large", "unasked")
    assert couple.network.pairs == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (bytes(500), "too_large"),
        (SizedBlob(b"x", 5), "padding"),
        (memoryview(bytes(100))[::2], "not_contiguous"),
    ],
)
def test_an_answer_that_may_not_be_sent_fails_on_both_sides(value: Value, reason: str) -> None:
    couple = slow(answer=value, config=CONFIG.model_copy(update={"value_bytes_max": 300}))
    couple.swap()
    assert couple.run() == (f"refused:{reason}", f"refused:{reason}")


def test_too_many_outbound_swaps_are_busy_and_the_slot_comes_back() -> None:
    couple = slow(config=CONFIG.model_copy(update={"outbound_sessions_max": 1}))
    couple.swap()
    excess = Report()
    handle = couple.first.layer.swap("echo", couple.second.peer, b"", b"", excess.callbacks)
    assert excess.failed == []
    assert couple.run() == ("done", "done")
    assert excess.outcome == "busy"
    handle.cancel()
    again = Report()
    couple.first.layer.swap("echo", couple.second.peer, b"", b"", again.callbacks)
    couple.second.respond = lambda plugin, request: AcceptSwap(b"", Report().callbacks)
    couple.network.run()
    assert again.outcome == "done"


@pytest.mark.parametrize("field", ["inbound_sessions_max", "inbound_peer_sessions_max"])
def test_too_many_inbound_swaps_are_refused(field: str) -> None:
    couple = slow(answer_config=CONFIG.model_copy(update={field: 1}))
    excess = Report()
    couple.swap()
    run_until_exchanging(couple)
    couple.first.layer.swap("echo", couple.second.peer, b"", b"", excess.callbacks)
    assert couple.run() == ("done", "done")
    assert excess.outcome == "refused:busy"


def test_receive_memory_is_shared_by_all_swaps() -> None:
    limits = {"memory_bytes_max": 250, "spill_bytes": 250, "value_bytes_max": 250}
    couple = slow(answer_config=CONFIG.model_copy(update=limits))
    excess = Report()
    couple.swap()
    run_until_exchanging(couple)
    couple.first.layer.swap("echo", couple.second.peer, b"", OFFER, excess.callbacks)
    assert couple.run() == ("done", "done")
    assert excess.outcome == "refused:busy"


def test_connections_without_an_offer_are_limited() -> None:
    couple = slow(config=CONFIG.model_copy(update={"pending_offers_max": 1}))
    reports = [Report(), Report()]
    for report in reports:
        couple.first.layer.swap("echo", couple.second.peer, b"", b"", report.callbacks)
    couple.network.run()
    couple.assert_idle()
    assert reports[1].outcome == "peer_down"
    assert couple.second.events[0].outcome == "busy"


@pytest.mark.parametrize("error", [Unavailable("disk full"), OSError(28, "No space left"), MemoryError()])
def test_no_room_for_the_buffer(error: BaseException) -> None:
    couple = slow()
    couple.second.allocation_error = error
    couple.swap()
    assert couple.run() == ("refused:no_space", "refused:no_space")
    couple = slow()
    couple.first.allocation_error = error
    couple.swap()
    assert couple.run() == ("no_space", "peer_cancelled:no_space")


def test_what_no_caller_may_ask() -> None:
    couple = slow()
    with pytest.raises(Bug, match="own node"):
        couple.first.layer.swap("echo", couple.first.peer, b"", b"", couple.here.callbacks)
    with pytest.raises(Bug, match="tag of 65 bytes"):
        couple.swap(tag=bytes(65))
    couple.assert_idle()


# Ends that somebody wants


def steps_of_a_swap() -> int:
    """Return how many events a whole swap has."""
    couple, count = slow(), 0
    couple.swap()
    while couple.network.step():
        count += 1
    return count


STEPS = steps_of_a_swap()


@pytest.mark.parametrize("acceptor_too", [False, True])
def test_cancel_at_every_step(acceptor_too: bool) -> None:
    outcomes = set()
    for steps in range(STEPS):
        couple = slow()
        handle = couple.swap()
        for _ in range(steps):
            couple.network.step()
        was_over = bool(couple.here.failed or couple.here.done)
        handle.cancel()
        if acceptor_too:
            couple.second.layer.disable_plugin("nobody")
        assert was_over or not couple.here.failed, "called back before cancel returned"
        handle.cancel()
        here, there = couple.run()
        assert here in ("cancelled", "done")
        assert there in ("unasked", "peer_cancelled:cancelled", "peer_down", "done")
        assert there != "done" or couple.there.done == [OFFER]
        outcomes.add((here, there))
    assert {("cancelled", "unasked"), ("cancelled", "peer_cancelled:cancelled"), ("done", "done")} <= outcomes


@pytest.mark.parametrize("steps", [1, STEPS // 2])
def test_stop_ends_everything_and_tells_the_peer(steps: int) -> None:
    couple = slow()
    couple.swap()
    for _ in range(steps):
        couple.network.step()
    couple.first.layer.stop()
    here, there = couple.run()
    assert here == "stopped"
    assert there in ("unasked", "peer_cancelled:stopped")
    late = Report()
    couple.first.layer.fetch("echo", couple.second.peer, b"", late.callbacks)
    couple.network.run()
    assert late.outcome == "stopped"


def test_a_stopped_node_accepts_nothing() -> None:
    couple = slow()
    couple.second.layer.stop()
    couple.swap()
    assert couple.run() == ("peer_down", "unasked")


def test_a_disabled_plugin_is_not_called_back() -> None:
    couple = slow()
    couple.swap()
    run_until_exchanging(couple)
    couple.second.layer.disable_plugin("other")
    couple.second.layer.disable_plugin("echo")
    couple.network.run()
    couple.assert_idle()
    assert couple.here.outcome == "peer_cancelled:plugin_stopped"
    assert (couple.there.done, couple.there.failed) == ([], [])


def test_a_plugin_disabled_while_it_is_asked() -> None:
    couple = slow()

    def respond(plugin: str, request: SwapRequest) -> RefuseSwap:
        couple.second.layer.disable_plugin(plugin)
        return RefuseSwap("failed")

    couple.second.respond = respond
    couple.swap()
    assert couple.run() == ("peer_down", "unasked")


def test_cancel_inside_progress_is_the_last_word() -> None:
    couple = slow(config=CONFIG.model_copy(update={"progress_bytes": 1}))
    calls = []

    def on_progress(_: object) -> None:
        calls.append(1)
        handle.cancel()

    callbacks = couple.here.callbacks
    handle = couple.first.layer.swap(
        "echo", couple.second.peer, b"", OFFER, type(callbacks)(callbacks.done, callbacks.failed, on_progress)
    )
    assert couple.run() == ("cancelled", "peer_cancelled:cancelled")
    assert calls == [1]


def test_a_plugin_that_blames_the_peer() -> None:
    def blame(*_: object) -> NoReturn:
        raise ProtocolError("nonsense", "not a partial")

    couple = slow()
    couple.second.respond = blame
    couple.swap()
    assert couple.run() == ("peer_down", "unasked")
    assert couple.first.blamed == ["blamed"]
    couple = slow()
    callbacks = couple.there.callbacks
    accept = AcceptSwap(b"", type(callbacks)(blame, callbacks.failed))
    couple.second.respond = lambda plugin, request: accept
    couple.swap()
    assert couple.run() == ("done", "unasked")
    assert couple.first.blamed == ["nonsense: not a partial"]


# Ends that nobody wants


def test_the_peer_cannot_be_reached() -> None:
    couple = slow()
    couple.first.is_dial_failing = True
    couple.swap()
    assert couple.run() == ("peer_down", "unasked")


def test_a_driver_that_never_answers_is_a_stall_and_a_late_stream_is_cut() -> None:
    couple = slow()
    couple.first.is_dial_failing = True
    couple.swap()
    session = couple.first.layer.sessions[0]
    couple.network.call_at(0.0005, lambda: None)
    couple.network.step()
    session.fail("stalled")
    couple.first._connect(couple.second.peer, session)
    assert couple.run() == ("stalled", "unasked")


@pytest.mark.parametrize("side", [0, 1])
def test_a_reset_at_every_byte(side: int) -> None:
    seen = set()
    for offset in range(600):
        faults = (Faults(), Faults())
        faults[side].cut_at = offset
        couple = slow(faults=faults)
        couple.swap()
        here, there = couple.run()
        assert here in ("done", "peer_down")
        assert there in ("done", "peer_down", "unasked")
        assert couple.here.done in ([], [ANSWER])
        assert couple.there.done in ([], [OFFER])
        seen.add((here, there))
        if (here, there) == ("done", "done") and offset > 500:
            break
    else:
        raise AssertionError("no offset was past the end")
    assert {("peer_down", "unasked"), ("peer_down", "peer_down"), ("done", "done")} - seen <= {("peer_down", "unasked")}


@pytest.mark.parametrize("side", [0, 1])
def test_silence_from_any_byte_on_is_a_stall(side: int) -> None:
    for offset in range(0, 360, 7):
        faults = (Faults(), Faults())
        faults[side].freeze_at = offset
        couple = slow(faults=faults)
        couple.swap()
        here, there = couple.run()
        assert {here, there} <= {"done", "stalled", "peer_down", "peer_cancelled:stalled", "unasked"}
        assert (here, there) != ("done", "done") or offset > 234
        assert couple.network.now_s < CONFIG.stall_timeout + CONFIG.offer_timeout + CONFIG.close_timeout + 1


@pytest.mark.parametrize("side", [0, 1])
def test_a_silent_peer_costs_half_of_the_deadline_at_most(side: int) -> None:
    """The stall time-out is longer than the deadline here; bytes before the silence do not count towards it."""
    patient = CONFIG.model_copy(update={"stall_timeout": 30.0})
    for offset in range(60, 234, 7):
        faults = (Faults(), Faults())
        faults[side].freeze_at = offset
        couple = slow(faults=faults, config=patient, answer_config=patient)
        couple.swap()
        here, _ = couple.run()
        assert here in ("stalled", "peer_cancelled:stalled", "peer_down"), offset
        assert couple.network.now_s < CONFIG.deadline * STALL_DEADLINE_SHARE + patient.close_timeout + 1


@pytest.mark.parametrize("side", [0, 1])
def test_a_flipped_bit_never_reaches_a_plugin(side: int) -> None:
    config = CONFIG.model_copy(update={"deadline": 4.0})
    outcomes = set()
    for offset in range(300):
        faults = (Faults(), Faults())
        faults[side].flip_at = offset
        couple = slow(config=config, faults=faults)
        couple.swap()
        here, there = couple.run()
        assert couple.here.done in ([], [ANSWER])
        assert couple.there.done in ([], [OFFER])
        outcomes.add((here, there)[1 - side])
    assert "digest" in outcomes
    assert any(outcome.startswith("protocol:") for outcome in outcomes)


def test_a_value_that_changes_while_it_is_sent_is_noticed() -> None:
    value = bytearray(OFFER)
    couple = slow(offer=value, answer=b"")
    couple.swap()
    for _ in range(14):
        couple.network.step()
    assert couple.there.done == []
    value[60:] = bytes(140)
    assert couple.run() == ("peer_cancelled:digest", "digest")


def test_the_deadline_counts_from_the_start_and_may_be_the_callers() -> None:
    couple = slow(offer=bytes(100_000))
    couple.swap(deadline_s=2.5)
    here, there = couple.run()
    assert (here, there) == ("deadline", "peer_cancelled:deadline")
    assert couple.first.events[0].duration_s == pytest.approx(2.5)


def test_the_acceptor_has_a_deadline_too() -> None:
    couple = slow(offer=bytes(100_000))
    couple.second.respond = lambda plugin, request: AcceptSwap(b"", couple.there.callbacks, deadline_s=1.0)
    couple.swap()
    couple.network.run()
    couple.assert_idle()
    assert (couple.here.outcome, couple.there.outcome) == ("peer_cancelled:deadline", "deadline")


def test_a_slow_peer_is_not_a_stalled_one() -> None:
    network = MemoryNetwork(lambda queued: 1, high_water_bytes=64)
    couple = Couple(bytes(3000), bytes(3000), CONFIG.model_copy(update={"stall_timeout": 0.3}), network=network)
    couple.swap()
    assert couple.run() == ("done", "done")
    assert network.now_s > 10 * 0.3


# Any mixture


@given(
    data=st.data(),
    swaps=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 400), st.integers(0, 400)), min_size=1, max_size=6),
)
def test_whatever_happens_everything_is_given_back(data: st.DataObject, swaps: list[tuple[int, int, int]]) -> None:
    limits = {"outbound_sessions_max": 3, "inbound_sessions_max": 2, "memory_bytes_max": 700, "spill_bytes": 400}
    config = CONFIG.model_copy(update=limits)
    network = MemoryNetwork(lambda queued: data.draw(st.integers(1, 400)), high_water_bytes=100)
    nodes = [network.add(1, config), network.add(2, config)]
    reports: list[tuple[Report, bytes]] = []

    def respond(plugin: str, request: SwapRequest) -> AcceptSwap | RefuseSwap:
        if data.draw(st.integers(0, 9)) == 0:
            return RefuseSwap("not_now")
        report = Report()
        reports.append((report, bytes([request.tag[0]]) * request.size_bytes))
        return AcceptSwap(bytes([request.tag[0] + 100]) * request.tag[1], report.callbacks)

    handles = []
    for number, (source, offer_bytes, answer_bytes) in enumerate(swaps):
        nodes[source].respond = nodes[1 - source].respond = respond
        report = Report()
        size = answer_bytes % 256
        reports.append((report, bytes([number + 100]) * size))
        offer = bytes([number]) * offer_bytes
        tag = bytes([number, size])
        handles.append(nodes[source].layer.swap("echo", nodes[1 - source].peer, tag, offer, report.callbacks))
    while network.step():
        fault = data.draw(st.integers(0, 60))
        if fault == 0:
            data.draw(st.sampled_from(handles)).cancel()
        elif fault == 1 and network.pairs:
            data.draw(st.sampled_from(network.pairs)).end_later("reset")
        elif fault == 2 and network.pairs:
            data.draw(st.sampled_from(network.pairs)).dialler.faults.freeze_at = 0
    for node in nodes:
        assert node.layer.sessions == ()
        assert node.layer.budget.memory_bytes == node.layer.budget.spilled_bytes == 0
    for report, expected in reports:
        assert report.outcome != "done" or report.done == [expected]
