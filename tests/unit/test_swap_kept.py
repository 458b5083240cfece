"""Connections that stay for the next swaps with the same peer."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings, strategies as st

from peerd.api import AcceptSwap, PreparedSwap, SwapCallbacks, SwapDecision, SwapHandle, SwapRequest
from peerd.errors import ProtocolError
from peerd.swap.config import SwapConfig
from peerd.swap.kept import AGE_S_MAX, KEPT_MAX, PARTNERS_MAX, REPEATED_S, SLACK_S, TOGETHER_MAX
from peerd.swap.messages import SwapCancelled, SwapVerified
from peerd.swap.session import FIRST_WINDOW_BYTES, UNUSED_S_MAX
from peerd.wire.codec import encode
from peerd.wire.frames import frame_bytes
from tests.support.examples import examples
from tests.support.stream_pair import LATENCY_S, Couple, MemoryNetwork, MemoryNode, Report

CONFIG = SwapConfig(chunk_bytes=1024)


def couple(offered: bytes = b"ours" * 2000, given: bytes = b"theirs" * 1000) -> Couple:
    return Couple(offered, given, CONFIG)


def swap(nodes: Couple) -> str:
    """One more swap; the outcome here."""
    nodes.here, nodes.there = Report(), Report()
    nodes.swap()
    nodes.network.run(nodes.network.now_s + 1.0)
    if nodes.here.outcome == "done":
        assert (nodes.here.done, nodes.there.done) == ([nodes.answer_value], [nodes.offer_value])
    return nodes.here.outcome


def kept(nodes: Couple) -> tuple[int, int]:
    return len(nodes.first.layer.kept), len(nodes.second.layer.kept)


def repeated() -> Couple:
    """Two that have swapped twice, and keep the second connection."""
    nodes = couple()
    assert (swap(nodes), kept(nodes)) == ("done", (0, 0)), "who swaps once keeps nothing"
    assert (swap(nodes), kept(nodes)) == ("done", (1, 1))
    assert len(nodes.network.pairs) == 2
    return nodes


def test_the_third_swap_with_a_peer_opens_no_connection_and_is_there_sooner() -> None:
    nodes = repeated()
    for _ in range(3):
        assert swap(nodes) == "done"
    assert len(nodes.network.pairs) == 2
    assert [event.opened_s for event in nodes.first.events] == pytest.approx([LATENCY_S, LATENCY_S, 0.0, 0.0, 0.0])
    took = [event.duration_s for event in nodes.first.events]
    assert took[1] - took[2] == pytest.approx(LATENCY_S)
    nodes.network.run()
    nodes.assert_idle()
    assert kept(nodes) == (0, 0)


def test_a_connection_is_closed_by_who_has_opened_it_after_a_while() -> None:
    nodes = repeated()
    pair = nodes.network.pairs[-1]
    begun_s = nodes.network.now_s
    nodes.network.run(begun_s + REPEATED_S - 2.0)
    assert not pair.is_over and kept(nodes) == (1, 1)
    nodes.network.run(begun_s + REPEATED_S + 1.0)
    assert pair.is_over and kept(nodes) == (0, 0)
    assert (swap(nodes), len(nodes.network.pairs)) == ("done", 3)
    nodes.network.call_at(nodes.network.now_s + REPEATED_S + 1.0, lambda: None)
    nodes.network.run()
    assert swap(nodes) == "done"
    assert kept(nodes) == (0, 0), "swaps with longer pauses keep nothing"


def test_an_old_connection_is_kept_no_longer() -> None:
    """So a peer whose certificate has ended, or who is another one by now, has to show again who it is."""
    nodes = repeated()
    since_s = nodes.network.now_s
    while nodes.network.now_s - since_s <= AGE_S_MAX:
        assert len(nodes.network.pairs) == 2
        nodes.network.call_at(nodes.network.now_s + REPEATED_S / 2, lambda: None)
        nodes.network.run(nodes.network.now_s + REPEATED_S / 2)
        assert swap(nodes) == "done"
    assert nodes.network.pairs[-1].is_over and kept(nodes) == (0, 0)
    assert (swap(nodes), len(nodes.network.pairs), kept(nodes)) == ("done", 3, (1, 1))


def test_who_has_accepted_it_closes_it_too_if_the_other_side_is_silent() -> None:
    nodes = repeated()
    nodes.first.layer.kept.take(nodes.second.peer)  # and says nothing
    nodes.network.run(nodes.network.now_s + REPEATED_S + SLACK_S + 1.0)
    assert nodes.network.pairs[-1].is_over and kept(nodes) == (0, 0)


@pytest.mark.parametrize("late_s", [0.0, 0.5 * LATENCY_S, 1.5 * LATENCY_S])
def test_an_offer_that_meets_the_end_of_its_connection_is_made_again_on_another_one(late_s: float) -> None:
    """The first window may be gone; nothing was answered, so nothing was accepted that the plugin knows to be done."""
    nodes = repeated()
    nodes.here, nodes.there = Report(), Report()
    nodes.swap()
    nodes.network.call_at(nodes.network.now_s + late_s, nodes.network.pairs[-1].dialler.abort)
    nodes.network.run(nodes.network.now_s + 1.0)
    assert (nodes.here.outcome, nodes.here.done) == ("done", [nodes.answer_value])
    assert len(nodes.network.pairs) == 3


def test_a_connection_that_ends_after_its_answer_ends_the_swap() -> None:
    nodes = repeated()
    nodes.here, nodes.there = Report(), Report()
    accepted: list[None] = []
    callbacks = SwapCallbacks(
        nodes.here.callbacks.done, nodes.here.failed.append, accepted=lambda: accepted.append(None)
    )
    nodes.first.layer.swap("echo", nodes.second.peer, b"tag", nodes.offer_value, callbacks)
    while not accepted:
        assert nodes.network.step()
    nodes.network.pairs[-1].dialler.abort()
    nodes.network.run(nodes.network.now_s + 1.0)
    assert (nodes.here.outcome, len(nodes.network.pairs)) == ("peer_down", 2)


def test_a_dead_peer_costs_one_try_more_and_then_the_swap() -> None:
    nodes = repeated()
    nodes.first.is_dial_failing = True
    nodes.here = Report()
    nodes.swap()
    nodes.network.pairs[-1].acceptor.abort()
    nodes.network.run(nodes.network.now_s + 1.0)
    assert nodes.here.outcome == "peer_down"


def test_what_was_prepared_in_vain_is_kept_again() -> None:
    nodes = repeated()
    nodes.here = Report()
    nodes.prepare(b"tag")
    assert kept(nodes) == (0, 1)
    nodes.network.run(nodes.network.now_s + UNUSED_S_MAX)
    assert (nodes.here.failed, kept(nodes)) == (["unused"], (1, 1))
    assert (swap(nodes), len(nodes.network.pairs)) == ("done", 2)


def test_a_prepared_swap_on_a_kept_connection_goes_at_once() -> None:
    nodes = repeated()
    nodes.here, nodes.there = Report(), Report()
    nodes.prepare(b"tag").offer(nodes.offer_value)
    nodes.network.run(nodes.network.now_s + 1.0)
    assert (nodes.here.outcome, nodes.there.outcome, len(nodes.network.pairs)) == ("done", "done", 2)


def test_what_fails_keeps_nothing() -> None:
    nodes = repeated()
    nodes.answer_value = None
    assert (swap(nodes), kept(nodes)) == ("refused:not_now", (0, 0))


def test_few_are_kept_and_the_one_goes_that_was_not_used_for_longest() -> None:
    network = MemoryNetwork()
    one = network.add(1, CONFIG)
    others = [accepting(network.add(2 + number, CONFIG)) for number in range(KEPT_MAX + 2)]
    for _ in range(2):
        for other in others:
            one.layer.swap("echo", other.peer, b"tag", b"ours", Report().callbacks)
            network.run(network.now_s + 0.5)
    assert len(one.layer.kept) == KEPT_MAX
    assert [len(other.layer.kept) for other in others] == [0, 0, *[1] * KEPT_MAX]
    for other in others:
        for _ in range(2):
            other.layer.swap("echo", accepting(one).peer, b"tag", b"ours", Report().callbacks)
            network.run(network.now_s + 0.5)
    assert len(one.layer.kept) == 2 * KEPT_MAX, "and as many that it has accepted"


def test_kept_connections_give_way_to_sessions() -> None:
    network = MemoryNetwork()
    one = network.add(1, CONFIG)
    others = [accepting(network.add(2 + number, CONFIG)) for number in range(KEPT_MAX)]
    for _ in range(2):
        for other in others:
            one.layer.swap("echo", other.peer, b"tag", b"ours", Report().callbacks)
            other.layer.swap("echo", accepting(one).peer, b"tag", b"theirs", Report().callbacks)
            network.run(network.now_s + 0.5)
    assert len(one.layer.kept) == 2 * KEPT_MAX
    for waiting in range(1, TOGETHER_MAX):
        one.layer.accept(others[waiting % len(others)].peer)
        assert len(one.layer.sessions) == waiting
        assert len(one.layer.kept) == min(2 * KEPT_MAX, TOGETHER_MAX - waiting)


def test_partners_are_forgotten() -> None:
    network = MemoryNetwork()
    one, two = network.add(1, CONFIG), network.add(2, CONFIG)
    peers = [two.peer, *(network.add(3 + number, CONFIG).peer for number in range(PARTNERS_MAX))]
    assert not any(map(one.layer.kept.begun, peers))
    assert one.layer.kept.begun(peers[-1])
    assert not one.layer.kept.begun(two.peer)
    one.layer.kept.validate()


def test_a_node_that_stops_closes_what_it_keeps_and_keeps_nothing_more() -> None:
    nodes = repeated()
    nodes.swap()
    nodes.first.layer.stop()
    nodes.network.run(nodes.network.now_s + 1.0)
    nodes.assert_idle()
    assert kept(nodes) == (0, 0)
    nodes = repeated()
    nodes.second.layer.stop()
    nodes.network.run(nodes.network.now_s + 1.0)
    assert kept(nodes) == (0, 0)
    assert swap(nodes) == "peer_down", "as it was without a kept connection"


@pytest.mark.parametrize("end", ["dialler", "acceptor"])
def test_who_gives_a_swap_up_whose_other_side_is_done_is_not_blamed(end: str) -> None:
    """The last word of the other side has not come yet when one loses patience, or its plugin has no use for it."""
    nodes = repeated()
    getattr(nodes.network.pairs[-1], end).write(frame_bytes(encode(SwapCancelled("stalled"))))
    nodes.network.run(nodes.network.now_s + 0.1)
    assert (nodes.first.blamed, nodes.second.blamed) == ([], [])
    assert (kept(nodes), nodes.network.pairs[-1].is_over) == ((0, 0), True)


@pytest.mark.parametrize("is_initiator", [True, False])
@pytest.mark.parametrize("sizes", [(10, 10), (10, 3 * FIRST_WINDOW_BYTES), (3 * FIRST_WINDOW_BYTES, 10)])
def test_whenever_one_side_gives_up_nobody_is_blamed(sizes: tuple[int, int], is_initiator: bool) -> None:
    """Another step later in each run: that of the swap, and of one that follows at once."""
    for steps in count():
        nodes = Couple(b"o" * 20, b"t" * 20, SwapConfig())
        assert (swap(nodes), swap(nodes), kept(nodes)) == ("done", "done", (1, 1))
        nodes.offer_value, nodes.answer_value = b"o" * sizes[0], b"t" * sizes[1]
        nodes.here, nodes.there = Report(), Report()
        nodes.swap()
        for _ in range(steps):
            nodes.network.step()
        sessions = (nodes.first if is_initiator else nodes.second).layer.sessions
        for session in sessions:
            session.cancel()
        was_over = bool(nodes.here.done and nodes.there.done)
        nodes.here, nodes.there = Report(), Report()
        nodes.swap()
        nodes.network.run(nodes.network.now_s + 1.0)
        assert nodes.here.done[-1:] == [nodes.answer_value]
        assert (nodes.first.blamed, nodes.second.blamed) == ([], []), f"after {steps} steps"
        if was_over:
            return


def test_what_is_given_up_as_the_next_offer_is_on_its_way_ends_the_swap_before_and_not_the_next_one() -> None:
    nodes = repeated()
    nodes.here, nodes.there = Report(), Report()
    nodes.network.pairs[-1].acceptor.write(frame_bytes(encode(SwapCancelled("stalled"))))
    nodes.swap()
    nodes.network.run(nodes.network.now_s + 1.0)
    assert (nodes.here.outcome, nodes.here.done, len(nodes.network.pairs)) == ("done", [nodes.answer_value], 3)


def test_padding_on_a_kept_connection_is_against_the_protocol() -> None:
    nodes = repeated()
    for end in (nodes.network.pairs[-1].dialler, nodes.network.pairs[-1].acceptor):
        with pytest.raises(ProtocolError, match="padding"):
            end.handler.padding_received(1)
    assert kept(nodes) == (0, 0)


def test_what_begins_on_a_kept_connection_is_judged_as_on_a_new_one() -> None:
    nodes = repeated()
    nodes.network.pairs[-1].dialler.write(b"x" * 25)
    nodes.network.run(nodes.network.now_s + 0.1)
    assert (nodes.first.blamed, kept(nodes)[1]) == (["bad_magic"], 0)
    nodes = repeated()
    nodes.network.pairs[-1].dialler.write(frame_bytes(encode(SwapVerified())))
    nodes.network.run(nodes.network.now_s + 0.1)
    assert (nodes.first.blamed, nodes.second.layer.sessions) == (["unexpected_message"], ())
    nodes = repeated()
    nodes.network.pairs[-1].dialler.write(frame_bytes(encode(SwapCancelled("x")))[:3])
    nodes.network.run(nodes.network.now_s + REPEATED_S + SLACK_S + 1.0)
    assert (nodes.first.blamed, kept(nodes), nodes.network.pairs[-1].is_over) == ([], (0, 0), True), "in its time"


def accepting(node: MemoryNode, value: bytes = b"theirs") -> MemoryNode:
    """Have a node accept everything."""

    def respond(plugin: str, request: SwapRequest) -> SwapDecision:
        return AcceptSwap(value, Report().callbacks)

    node.respond = respond
    return node


steps = st.lists(
    st.tuples(
        st.sampled_from(("swap", "fetch", "prepare", "offer", "cut", "cancel")),
        st.integers(0, 2),
        st.integers(0, 2),
        st.sampled_from((0, 1, 5000)),
        st.sampled_from((0.0, *(LATENCY_S * n / 2 for n in range(1, 9)), 0.1, 2.0, REPEATED_S)),
    ),
    max_size=12,
)


@settings(max_examples=examples(200))
@given(steps, st.randoms(use_true_random=False))
def test_whatever_is_swapped_in_whatever_order_each_ends_once_with_the_values_that_were_given(
    plan: list[tuple[str, int, int, int, float]], random: object
) -> None:
    network = MemoryNetwork(lambda queued: random.randint(1, queued))  # type: ignore[attr-defined]  # Hypothesis' own
    numbers = count()
    nodes = [accepting(network.add(1 + number, CONFIG), b"of %d" % number * 300) for number in range(3)]
    reports: list[tuple[Report, bytes]] = []
    prepared: list[PreparedSwap] = []
    begun: list[SwapHandle] = []
    has_cut = False
    for what, one, other, size, pause_s in plan:
        report, value = Report(), b"%d" % next(numbers) * size
        here, there = nodes[one].layer, nodes[other].peer
        if what == "cut" and network.pairs:
            network.pairs[-1].dialler.abort()
            has_cut = True
        elif what == "cancel" and begun:
            begun.pop().cancel()
            has_cut = True
        elif what == "offer" and prepared:
            prepared.pop().offer(value)
        elif one != other and what in ("swap", "fetch", "prepare"):
            reports.append((report, b"of %d" % other * 300))
            if what == "swap":
                begun.append(here.swap("echo", there, b"tag", value, report.callbacks))
            elif what == "fetch":
                begun.append(here.fetch("echo", there, b"tag", report.callbacks))
            else:
                prepared.append(here.prepare("echo", there, b"tag", report.callbacks))
        network.run(network.now_s + pause_s)
    network.run()
    for report, theirs in reports:
        assert report.outcome == "done" or has_cut or report.outcome == "unused"
        assert report.done in ([], [theirs])
    for node in nodes:
        assert not node.layer.sessions and not len(node.layer.kept)
        assert not node.blamed, "all are honest"
    assert all(pair.is_over for pair in network.pairs)
