"""Removed peers: disbelieved, looked for, vouched for by others, and lost in numbers."""

from __future__ import annotations

from hypothesis import given, strategies as st

from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.overlay.departed import DEPARTED_MAX, DepartedPeers, MassLoss
from peerd.overlay.history import NOTES_MAX, PEERS_MAX, History
from peerd.overlay.vouching import VOUCHED_MAX, Vouch, Vouches


def peer(number: int) -> PeerRef:
    return PeerRef(NodeId(number), "10.0.0.1", 1)


def departed_of(*numbers: int, now: float = 0.0, has_left: bool = False) -> DepartedPeers:
    departed = DepartedPeers(disbelief_s=60.0, memory_s=1000.0, pause_s=10.0)
    for number in numbers:
        departed.add(peer(number), now, was_member=True, has_left=has_left)
    return departed


def anybody(node_id: NodeId) -> bool:
    return True


def test_hearsay_is_disbelieved_for_a_while() -> None:
    departed = departed_of(1, 2)
    assert departed.is_disbelieved(NodeId(1), 59.0)
    assert not departed.is_disbelieved(NodeId(1), 60.0)
    assert departed.recent(10.0, 60.0, 1) == (NodeId(2),)
    assert departed.recent(61.0, 60.0, 5) == ()


def test_one_is_looked_for_at_a_time_and_ever_less_often() -> None:
    departed = departed_of(1)
    probed = [
        second
        for second in range(400)
        if departed.next_to_probe(float(second), anybody, is_mass_loss=False) is not None
    ]
    assert probed == [60, 180]


def test_table_entries_and_those_who_said_goodbye_are_not_looked_for() -> None:
    departed = departed_of(1, has_left=True)
    departed.add(peer(2), 0.0, was_member=False, has_left=False)
    assert departed.next_to_probe(500.0, anybody, is_mass_loss=False) is None
    assert departed.next_to_probe(500.0, anybody, is_mass_loss=True) == peer(2)


def test_after_a_mass_loss_everybody_has_a_turn_and_members_to_be_come_first() -> None:
    departed = departed_of(1, 2, 3, 4)
    wanted = {NodeId(3), NodeId(4)}
    found = [departed.next_to_probe(1.0, wanted.__contains__, is_mass_loss=True) for _ in range(2)]
    assert found == [peer(3), peer(4)]


def test_one_that_speaks_is_answered_at_once_and_then_with_pauses() -> None:
    departed = departed_of(1)
    assert not departed.may_answer(NodeId(9), 0.0)
    times = [second for second in range(300) if departed.may_answer(NodeId(1), float(second))]
    assert times == [0, 10, 30, 70, 130, 190, 250]


def test_the_list_is_bounded_and_forgets() -> None:
    departed = departed_of(*range(1, DEPARTED_MAX + 50))
    assert len(departed) == DEPARTED_MAX
    assert NodeId(1) not in departed
    assert departed.next_to_probe(2000.0, anybody, is_mass_loss=True) is None
    assert len(departed) == 0


def test_found_silent_again_it_keeps_the_time_of_its_removal() -> None:
    departed = departed_of(1)
    departed.add(peer(1), 100.0, was_member=False, has_left=False)
    entry = departed.get(NodeId(1))
    assert entry is not None
    assert (entry.removed_at, entry.since, entry.was_member) == (0.0, 100.0, True)


def test_a_partition_is_suspected_when_a_quarter_is_lost_at_once() -> None:
    losses = MassLoss(window_s=30.0, share=0.25, least=4)
    assert [losses.lost(NodeId(number), number * 1.0, 40 - number) for number in range(1, 10)] == [False] * 9
    assert losses.lost(NodeId(10), 10.0, 30)
    assert (losses.is_suspected, losses.missing) == (True, 10)
    assert [losses.found(NodeId(number)) for number in range(1, 6)] == [False] * 4 + [True]
    assert not losses.is_suspected


def test_slow_losses_are_no_partition_and_old_suspicions_end() -> None:
    losses = MassLoss(window_s=30.0, share=0.25, least=4)
    assert not any(losses.lost(NodeId(number), number * 10.0, 40) for number in range(1, 100))
    assert [losses.lost(NodeId(number), 2000.0, 8) for number in (1, 2, 3, 4)] == [False, False, False, True]
    assert not losses.expired(3000.0, 1500.0)
    assert losses.expired(3500.0, 1500.0)
    assert not losses.is_suspected


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30), st.floats(0.0, 5.0)), max_size=200))
def test_mass_loss_never_misses_more_than_it_lost(steps: list[tuple[bool, int, float]]) -> None:
    losses, now, gone = MassLoss(window_s=30.0, share=0.25, least=4), 0.0, set[int]()
    for is_lost, number, pause_s in steps:
        now += pause_s
        if is_lost:
            losses.lost(NodeId(number), now, 12)
            gone.add(number)
        else:
            losses.found(NodeId(number))
            gone.discard(number)
        assert losses.missing <= len(gone)


def test_a_vouched_peer_owns_its_keys_until_the_vouch_lapses() -> None:
    departed = departed_of(50)
    vouches = Vouches(departed, delay_s=8.0, memory_s=60.0)
    voucher, own = peer(70), NodeId(40)
    vouches.heard(voucher, [peer(50)], 5.0)
    assert not len(vouches), "too soon after the removal: the neighbour may not know yet"
    vouches.heard(voucher, [peer(50), peer(60)], 10.0)
    assert vouches.owner_beyond(NodeId(49), own, 20.0) == Vouch(voucher, 10.0)
    assert vouches.owner_beyond(NodeId(41), own, 20.0) is None
    assert vouches.vouchers() == (voucher,)
    assert vouches.owner_beyond(NodeId(49), own, 71.0) is None


def test_vouches_end_with_the_voucher_with_its_word_or_with_the_return() -> None:
    departed = departed_of(50, 51)
    vouches = Vouches(departed, delay_s=0.0, memory_s=60.0)
    vouches.heard(peer(70), [peer(50), peer(51)], 1.0)
    vouches.heard(peer(70), [peer(51)], 2.0)
    assert len(vouches) == 1
    vouches.forget(NodeId(70))
    assert len(vouches) == 0
    vouches.heard(peer(70), [peer(50)], 3.0)
    departed.pop(NodeId(50))
    assert vouches.owner_beyond(NodeId(50), NodeId(40), 3.0) is None
    goodbye = Vouches(departed_of(50, has_left=True), delay_s=0.0, memory_s=60.0)
    goodbye.heard(peer(70), [peer(50)], 1.0)
    assert len(goodbye) == 0


def test_vouches_are_bounded() -> None:
    vouches = Vouches(departed_of(*range(1, 200)), delay_s=0.0, memory_s=60.0)
    vouches.heard(peer(500), [peer(number) for number in range(1, 200)], 1.0)
    assert len(vouches) == VOUCHED_MAX


def test_history_keeps_the_latest_notes_of_the_latest_peers() -> None:
    history = History(lambda: 7.0)
    history.lag_s = 0.25
    for number in range(PEERS_MAX + 1):
        history.note(NodeId(number), "suspected", "silent", 16.0)
    assert history.of(NodeId(0)) == ()
    for _ in range(NOTES_MAX + 5):
        history.note(NodeId(1), "accused", "reported", 3.0, NodeId(9))
    assert len(history.of(NodeId(1))) == NOTES_MAX
    note = history.of(NodeId(1))[-1]
    assert (note.wall_s, note.verdict, note.evidence, note.accuser, note.lag_s) == (7.0, "accused", "reported", 9, 0.25)
    assert history.peers()[-1] == NodeId(1)


def test_names_behind_which_nobody_answered_are_not_looked_for_and_push_out_no_peer() -> None:
    departed = DepartedPeers(10.0, 3600.0, 1.0)
    departed.add(peer(1), 0.0, was_member=True, has_left=False)
    for number in range(2, 2 * DEPARTED_MAX):
        departed.add(peer(number), 1.0, was_member=False, has_left=False, was_known=False)
    assert len(departed) == DEPARTED_MAX
    assert departed.is_disbelieved(NodeId(2 * DEPARTED_MAX - 1), 2.0)
    for now in (2.0, 3.0, 4.0):
        assert departed.next_to_probe(now, lambda node_id: True, is_mass_loss=True) == peer(1)
