"""Helpers of a hot leaf: what each has, who may serve when, and who has whose events."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given, strategies as st

from peerd.lib.leases import DRIFT_MAX, at_most
from peerd.messages import PeerRef
from peerd.testing.host import peer
from protocols.pubsub.messages import SUBS_MAX, SubObject
from protocols.pubsub.names import SubscriptionKey
from protocols.pubsub.publishing.leaf_cache import NAMED_MAX, LeafCache
from protocols.pubsub.tree.cells import WHOLE
from protocols.pubsub.tree.copying import BATCH_BYTES_MAX, SUB_BYTES
from protocols.pubsub.tree.loans import LEASE_S, OFFER_S, Loans, SendPieces, TakeBack, sharer_of
from protocols.pubsub.tree.messages import HELPERS_MAX, PIECES_LENT_MAX, PieceName
from protocols.pubsub.tree.piece import Piece
from tests.support.pubsub_tree import TREE

HELPER, OTHER = peer(11), peer(12)
ROOT_S = at_most(LEASE_S)
"""How long a helper may serve after an answer, by the root's clock."""


def sub(number: int, filter_text: str = "x") -> SubObject:
    return SubObject(peer(7), number, 0, 1, TREE.attribute, 5, 5, filter_text)


def pieces(*numbers: int) -> dict[SubscriptionKey, Piece]:
    return {sub(number).key: Piece(sub(number), 1000.0) for number in numbers}


def lent(*numbers: int) -> Loans:
    """A leaf with these pieces whose helper serves from 0 s on."""
    loans = Loans()
    loans.add(HELPER, 2, 0.0)
    loans.taken(2, tuple(map(sub, numbers)))
    assert loans.may_serve(HELPER.id, 2, 0, pieces(*numbers), 0.0)
    return loans


def test_a_helper_may_serve_when_it_has_all_pieces() -> None:
    loans, held = Loans(), pieces(1, 2)
    loans.add(HELPER, 2, 0.0)
    assert loans.may_serve(HELPER.id, 2, 0, held, 0.0) is None
    (action,) = loans.due(held, 0.0)
    assert action == SendPieces(HELPER, 2, True, (sub(1), sub(2)), ())
    assert list(loans.due(held, 0.0)) == [], "they are under way"
    loans.taken(2, (sub(1),))
    assert loans.may_serve(HELPER.id, 2, 0, held, 1.0) is None
    assert list(loans.due(held, 1.0)) == [SendPieces(HELPER, 2, False, (sub(2),), ())]
    loans.taken(2, (sub(2),))
    assert loans.may_serve(HELPER.id, 2, 30, held, 2.0) is True
    assert loans.helpers(2.0) == (HELPER,) and loans.load() == 30
    assert loans.helpers(2.0 + ROOT_S) == ()


@pytest.mark.parametrize(("helper", "number"), [(OTHER, 2), (HELPER, 3)])
def test_nobody_else_may(helper: PeerRef, number: int) -> None:
    assert lent(1).may_serve(helper.id, number, 0, pieces(1), 1.0) is False


def test_a_new_piece_waits_until_every_helper_has_it_or_may_not_serve_any_more() -> None:
    loans = lent(1)
    assert not loans.lacks(sub(1), 1.0)
    assert loans.lacks(sub(2), 1.0)
    assert list(loans.due(pieces(1), 1.0)) == [SendPieces(HELPER, 2, False, (sub(2),), ())]
    assert loans.lacks(sub(2), 1.0), "it may not have arrived"
    loans.silent(2)
    assert loans.lacks(sub(2), ROOT_S - 0.1)
    assert not loans.lacks(sub(2), ROOT_S), "it does not serve now"
    loans.taken(2, (sub(2),))
    assert not loans.lacks(sub(2), 1.0)


def test_what_is_over_is_taken_from_helpers_and_so_is_what_nobody_has_vouched_for() -> None:
    loans = lent(1, 2)
    assert list(loans.due(pieces(1), 1.0)) == [SendPieces(HELPER, 2, False, (), (PieceName(*sub(2).key),))]
    loans.taken(2, ())
    loans.lacks(sub(3), 1.0)
    (action,) = loans.due(pieces(1), 1.0)
    assert isinstance(action, SendPieces)
    loans.taken(2, action.subs)
    assert list(loans.due(pieces(1), OFFER_S)) == []
    assert list(loans.due(pieces(1), 1.0 + OFFER_S)) == [SendPieces(HELPER, 2, False, (), (PieceName(*sub(3).key),))]


def test_an_ending_loan_is_over_when_the_helper_says_so_or_its_time_is() -> None:
    loans = lent(1)
    loans.is_ending = True
    assert list(loans.due(pieces(1), 1.0)) == [TakeBack(HELPER, 2)]
    assert loans.may_serve(HELPER.id, 2, 0, pieces(1), 1.0) is False
    assert not loans.are_over(ROOT_S - 0.1) and loans.are_over(ROOT_S)
    loans.refused(2)
    assert loans.are_over(1.0)


def test_a_helper_that_does_not_ask_is_let_go() -> None:
    loans = lent(1)
    loans.add(OTHER, 4, 0.0)
    loans.tidy(ROOT_S - 0.1)
    assert loans.of.keys() == {HELPER.id, OTHER.id}
    loans.tidy(ROOT_S)
    assert loans.of.keys() == {OTHER.id}, "it has had nothing yet"
    loans.tidy(OFFER_S)
    assert not loans.of


def test_too_many_pieces_end_it_and_a_message_has_so_many_at_most() -> None:
    loans = Loans()
    loans.add(HELPER, 2, 0.0)
    (action,) = loans.due(pieces(*range(PIECES_LENT_MAX)), 0.0)
    assert isinstance(action, SendPieces) and len(action.subs) == min(SUBS_MAX, BATCH_BYTES_MAX // (SUB_BYTES + 1))
    loans.silent(2)
    long = {sub(1).key: Piece(sub(1, "x" * 8000), 9.0)} | {sub(n).key: Piece(sub(n, "y" * 8000), 9.0) for n in range(9)}
    (action,) = loans.due(long, 0.0)
    assert isinstance(action, SendPieces) and len(action.subs) == 3
    loans.silent(2)
    assert list(loans.due(pieces(*range(PIECES_LENT_MAX + 1)), 0.0)) == [TakeBack(HELPER, 2)]


FAST = 1 + DRIFT_MAX
Step = tuple[str, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("piece"), st.integers(1, 6)),
        st.tuples(st.just("wait"), st.integers(1, 40)),
        st.tuples(st.sampled_from(["deliver", "lose", "ask", "due", "end", "give back"]), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_whoever_serves_has_every_piece_that_somebody_relies_on(steps: list[Step]) -> None:
    """However late its messages are, and whichever are lost: both sides go by their own times of asking, and clocks
    that differ as much as they may: the root's is fast, the helper's slow."""
    root, helper = Loans(), dict[SubscriptionKey, None]()
    root.add(HELPER, 2, 0.0)
    now, until, has_it = 0.0, 0.0, False
    relied: dict[SubscriptionKey, Piece] = {}
    lines: deque[SendPieces | float] = deque()
    for what, count in steps:
        if what == "piece" and not root.lacks(sub(count), now * FAST):
            relied[sub(count).key] = Piece(sub(count), 1e9)
        elif what == "wait":
            now += count / 10
        elif what == "ask":
            lines.append(now)
        elif what == "due":
            lines.extend(action for action in root.due(relied, now * FAST) if isinstance(action, SendPieces))
        elif what == "end":
            root.is_ending = True
        elif what == "give back":
            until, has_it = 0.0, False
            helper.clear()
        elif lines and what in ("deliver", "lose"):
            message = lines.popleft()
            if isinstance(message, float):
                if root.may_serve(HELPER.id, 2, 0, relied, now * FAST) and what == "deliver" and has_it:
                    until = max(until, message + LEASE_S / (1 - DRIFT_MAX))
            elif what == "deliver" and not (message.begins or has_it):
                root.refused(2)
            elif what == "deliver":
                has_it = True
                helper.update((each.key, None) for each in message.subs)
                root.taken(2, message.subs)
            else:
                root.silent(2)
        assert now >= until or helper.keys() >= relied.keys()


def test_publishers_are_dealt_out_evenly_and_stay_where_they_were_when_one_more_helps() -> None:
    sharers = [peer(number << 100) for number in range(1, 2 + HELPERS_MAX)]
    publishers = [peer(number).id for number in range(9000)]
    before = {publisher: sharer_of(publisher, sharers[:-1]) for publisher in publishers}
    after = {publisher: sharer_of(publisher, sharers) for publisher in publishers}
    assert all(count in range(850, 1150) for count in Counter(after.values()).values()) and len(sharers) == 9
    assert all(after[publisher] in (before[publisher], sharers[-1]) for publisher in publishers)


# At a publisher

ROOT = peer(10)


def cache() -> LeafCache:
    """A publisher that remembers one leaf."""
    made = LeafCache(10, 600.0)
    made.answered(TREE, WHOLE, ROOT, 0.0)
    return made


def test_the_root_names_a_helper_and_that_one_another_and_both_may_answer() -> None:
    made = cache()
    made.helped(TREE, WHOLE, HELPER, ROOT.id, 1.0)
    assert made.helper(TREE, WHOLE) == HELPER and made.owner(TREE, WHOLE) == ROOT
    made.helped(TREE, WHOLE, OTHER, HELPER.id, 2.0)
    assert made.helper(TREE, WHOLE) == OTHER
    assert made.is_helper(TREE, WHOLE, HELPER.id), "its answers may have been on their way"
    made.helped(TREE, WHOLE, ROOT, OTHER.id, 3.0)
    assert made.helper(TREE, WHOLE) is None
    made.validate()


def test_nobody_else_names_one() -> None:
    made = cache()
    made.helped(TREE, WHOLE, HELPER, OTHER.id, 1.0)
    made.helped(TREE, WHOLE << 1, HELPER, ROOT.id, 1.0)
    assert made.helper(TREE, WHOLE) is None and made.helper(TREE, WHOLE << 1) is None
    assert not made.is_helper(TREE, WHOLE, HELPER.id)


def test_a_helper_whose_events_the_root_answers_helps_no_longer() -> None:
    made = cache()
    made.helped(TREE, WHOLE, HELPER, ROOT.id, 1.0)
    made.root_answered(TREE, WHOLE, sent_at=0.9)
    assert made.helper(TREE, WHOLE) == HELPER, "that was sent before"
    made.root_answered(TREE, WHOLE, sent_at=1.0)
    assert made.helper(TREE, WHOLE) is None


def test_another_root_a_dead_one_or_a_dead_helper_end_it() -> None:
    made = cache()
    made.helped(TREE, WHOLE, HELPER, ROOT.id, 1.0)
    made.answered(TREE, WHOLE, ROOT, 2.0)
    assert made.helper(TREE, WHOLE) == HELPER
    made.answered(TREE, WHOLE, OTHER, 3.0)
    assert made.helper(TREE, WHOLE) is None
    made.helped(TREE, WHOLE, HELPER, OTHER.id, 4.0)
    made.forget_owner(HELPER.id)
    assert made.owner(TREE, WHOLE) is None
    made.validate()


def test_only_some_are_remembered() -> None:
    made = cache()
    for number in range(3 * NAMED_MAX):
        made.helped(TREE, WHOLE, peer(100 + number), ROOT.id, 1.0)
    assert sum(made.is_helper(TREE, WHOLE, peer(100 + number).id) for number in range(3 * NAMED_MAX)) == NAMED_MAX
