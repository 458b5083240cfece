"""One piece on its way to its leaf: transcripts of what it wants done."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from peerd.messages import PeerRef
from peerd.testing.host import peer
from protocols.pubsub.messages import PieceStatus, SubObject
from protocols.pubsub.subscribing.installation import (
    CAREFUL_AFTER,
    END_TRIES_MAX,
    KEPT_WAIT_S,
    NEVER,
    REFUSALS_MAX,
    RENEWALS_PER_LEASE,
    RETRY_S_MAX,
    Find,
    InstallAction,
    Installation,
    InstallReport,
    News,
    SendEnd,
    SendInsert,
    SendProbe,
    Stage,
)
from protocols.pubsub.tree.cells import cell_at, children, level, parent

LOW, HIGH = 5 << 28, 6 << 28
LEASE_S = 1800.0
LEAF, OTHER, LIAR = peer(10), peer(11), peer(12)
CELL = cell_at(LOW, HIGH, 6)


class Piece:
    """A piece and a clock."""

    def __init__(self, lease_s: float = LEASE_S, levels: tuple[int, ...] = (4,)) -> None:
        versions = count(2)
        self.now = 100.0
        self.core = Installation(
            SubObject(peer(1), 77, 0, 1, 1, LOW, HIGH, "price > 5", since_ms=3),
            lease_s=lease_s,
            retry_s=2.0,
            rng=Random(1),
            next_levels=lambda attempt: levels if attempt == 1 else (4,),
            next_version=lambda: next(versions),
        )

    def begin(self) -> list[InstallAction]:
        return self.core.begin(self.now)

    def due(self) -> list[InstallAction]:
        """Wait for what is due."""
        assert self.core.due_at < NEVER
        self.now = max(self.now, self.core.due_at)
        return self.core.due(self.now)

    def established(
        self, owner: PeerRef = LEAF, cell: int = CELL, is_new: bool = True, version: int | None = None
    ) -> tuple[bool, list[InstallAction]]:
        version = self.core.sub.version if version is None else version
        return self.core.established(self.now, owner, cell, version, is_new)

    def kept(self, status: PieceStatus = PieceStatus.REPLICATED, source: PeerRef = LEAF) -> list[InstallAction]:
        return self.core.kept(self.now, source, self.core.sub.version, status, "too many")

    def answered(self, status: PieceStatus, cell: int = CELL, is_new: bool = False) -> list[InstallAction]:
        return self.core.insert_answered(self.now, status, cell, is_new, "too many")

    def installed(self) -> Piece:
        self.begin()
        self.established()
        self.kept()
        return self


def test_a_piece_is_probed_for_established_and_replicated() -> None:
    piece = Piece()
    assert piece.begin() == [SendProbe(cell_at(LOW, HIGH, 4), is_careful=False)]
    assert piece.established() == (True, [InstallReport(News.RECEIVED)])
    assert piece.kept() == [InstallReport(News.REPLICATED)]
    assert piece.kept() == []
    assert piece.core.due_at - piece.now == pytest.approx(LEASE_S / RENEWALS_PER_LEASE, rel=0.2)


def test_a_leaf_that_asks_for_the_piece_itself_gets_it_over_its_own_link() -> None:
    piece = Piece()
    piece.begin()
    asked = piece.core.kept(piece.now, LEAF, piece.core.sub.version, PieceStatus.ELSEWHERE, "", CELL)
    assert asked == [SendInsert(LEAF, CELL)]
    assert piece.answered(PieceStatus.KEPT, is_new=True) == [InstallReport(News.RECEIVED)]
    assert piece.kept() == [InstallReport(News.REPLICATED)]


def test_a_leaf_that_asks_for_the_piece_and_does_not_take_it_is_no_leaf_of_it() -> None:
    piece = Piece()
    piece.begin()
    piece.core.kept(piece.now, LEAF, piece.core.sub.version, PieceStatus.ELSEWHERE, "", CELL)
    [probe] = piece.core.insert_silent(piece.now)
    assert isinstance(probe, SendProbe) and piece.core.place is None
    wrong = piece.core.kept(piece.now, LEAF, piece.core.sub.version, PieceStatus.ELSEWHERE, "", CELL ^ 1)
    assert wrong == [], "its point does not lie there"
    assert piece.established()[1] == [InstallReport(News.RECEIVED)]


def test_probes_are_repeated_ever_more_slowly_and_become_careful() -> None:
    piece = Piece()
    piece.begin()
    pauses, careful = [], []
    for _ in range(7):
        pauses.append(piece.core.due_at - piece.now)
        [probe] = piece.due()
        assert isinstance(probe, SendProbe)
        careful.append(probe.is_careful)
    assert careful == [False] * (CAREFUL_AFTER - 1) + [True] * (8 - CAREFUL_AFTER)
    assert pauses[0] < pauses[1] < pauses[2] < pauses[3]
    assert max(pauses) <= RETRY_S_MAX


def test_the_longest_pause_is_a_third_of_a_lease_that_is_short() -> None:
    piece = Piece(lease_s=30.0)
    piece.begin()
    for _ in range(10):
        assert piece.core.due_at - piece.now <= 30.0 / RENEWALS_PER_LEASE
        piece.due()


def test_a_leaf_that_only_lets_it_be_known_is_believed_that_it_has_the_piece_and_nothing_more() -> None:
    piece = Piece()
    piece.begin()
    due_at = piece.core.due_at
    assert piece.core.arrived(piece.core.sub.version, CELL) == [InstallReport(News.RECEIVED)]
    assert piece.core.arrived(piece.core.sub.version, CELL) == []
    assert (piece.core.stage, piece.core.place, piece.core.due_at) == (Stage.WANTED, None, due_at)
    assert piece.established() == (True, []), "it has been told already"
    assert piece.core.stage is Stage.HELD and piece.core.place is not None


def test_where_the_leaf_is_not_heard_of_again_the_piece_is_tried_again() -> None:
    piece = Piece()
    piece.begin()
    piece.core.arrived(piece.core.sub.version, CELL)
    assert piece.due() == [SendProbe(cell_at(LOW, HIGH, 4), is_careful=False)]


def test_a_note_about_another_version_or_cell_or_from_nowhere_says_nothing() -> None:
    piece = Piece()
    piece.begin()
    assert piece.core.arrived(piece.core.sub.version + 1, CELL) == []
    assert piece.core.arrived(piece.core.sub.version, CELL ^ 1) == []
    installed = Piece().installed()
    assert installed.core.arrived(installed.core.sub.version, CELL) == []


def test_only_the_first_try_goes_to_several_levels_and_only_its_first_probe_is_sent_on() -> None:
    piece = Piece(levels=(3, 4))
    first = cell_at(LOW, HIGH, 3), cell_at(LOW, HIGH, 4)
    assert piece.begin() == [
        SendProbe(first[0], is_careful=False),
        SendProbe(first[1], is_careful=False, only_leaf=True),
    ]
    assert piece.due() == [SendProbe(first[1], is_careful=False)]
    assert piece.due() == [SendProbe(first[1], is_careful=True)]


def test_what_was_published_before_is_asked_for_only_until_a_leaf_has_heard_it() -> None:
    piece = Piece()
    piece.begin()
    assert piece.core.sub.since_ms == 3
    piece.established()
    assert piece.core.sub.since_ms == 0


def test_a_cell_that_the_point_does_not_lie_in_is_no_leaf_of_it() -> None:
    piece = Piece()
    piece.begin()
    assert piece.established(cell=CELL ^ 1) == (False, [])
    assert piece.core.stage is Stage.WANTED


def test_renewals_go_to_the_leaf_and_once_a_lease_by_a_probe() -> None:
    piece = Piece().installed()
    versions = [piece.core.sub.version]
    for _ in range(RENEWALS_PER_LEASE - 1):
        assert piece.due() == [SendInsert(LEAF, CELL)]
        assert piece.answered(PieceStatus.KEPT) == []
        versions.append(piece.core.sub.version)
    assert piece.due() == [SendProbe(cell_at(LOW, HIGH, 4), is_careful=False)]
    assert versions == sorted(set(versions))
    assert piece.established(is_new=False) == (True, [])
    assert piece.core.stage is Stage.REPLICATED
    assert piece.due() == [SendInsert(LEAF, CELL)]


def test_what_the_leaf_had_lost_is_told_with_the_time_since_it_was_last_heard() -> None:
    piece = Piece().installed()
    before = piece.now
    piece.due()
    assert piece.answered(PieceStatus.KEPT, is_new=True) == [InstallReport(News.FOUND_AGAIN, gap_s=piece.now - before)]


def test_a_probe_that_finds_the_piece_lost_tells_the_gap_as_well() -> None:
    piece = Piece().installed()
    before = piece.now
    piece.due()
    assert piece.core.insert_silent(piece.now) == [SendProbe(CELL, is_careful=False)]
    assert piece.established(OTHER) == (True, [InstallReport(News.FOUND_AGAIN, gap_s=piece.now - before)])


def test_a_leaf_that_does_not_answer_is_looked_for_at_its_own_cell_first() -> None:
    piece = Piece().installed()
    assert piece.due() == [SendInsert(LEAF, CELL)]
    assert piece.core.insert_silent(piece.now) == [SendProbe(CELL, is_careful=False)]
    assert piece.established(OTHER, is_new=False) == (True, [])
    assert piece.due() == [SendInsert(OTHER, CELL)]


def test_a_node_that_is_not_the_leaf_says_where_to_look() -> None:
    piece = Piece().installed()
    piece.due()
    child = children(CELL)[cell_at(LOW, HIGH, 7) & 1]
    assert piece.answered(PieceStatus.ELSEWHERE, child) == [SendProbe(child, is_careful=False)]


def test_a_place_that_cannot_be_right_is_not_looked_at() -> None:
    piece = Piece().installed()
    piece.due()
    assert piece.answered(PieceStatus.ELSEWHERE, CELL ^ 1) == [SendProbe(cell_at(LOW, HIGH, 4), is_careful=False)]


def test_nodes_that_send_each_other_s_way_are_asked_ever_less_often() -> None:
    piece = Piece().installed()
    piece.due()
    actions = piece.answered(PieceStatus.ELSEWHERE, parent(CELL))
    sent = 0
    for _ in range(100):
        sent += sum(isinstance(action, SendProbe) for action in actions)
        actions = piece.kept(PieceStatus.ELSEWHERE)
    assert sent <= CAREFUL_AFTER + 1


def test_the_child_of_a_leaf_that_was_split_becomes_the_place() -> None:
    piece = Piece().installed()
    child = cell_at(LOW, HIGH, 7)
    assert piece.established(OTHER, child) == (True, [])
    assert piece.core.place is not None
    assert (piece.core.place.owner, piece.core.place.cell) == (OTHER, child)
    assert piece.core.stage is Stage.REPLICATED
    assert piece.due() == [SendInsert(OTHER, child)]


def test_a_copy_of_an_older_version_in_a_leaf_that_was_split_off_does_not_answer_the_probe_that_renews_it() -> None:
    piece = Piece().installed()
    older, child = piece.core.sub.version, cell_at(LOW, HIGH, 7)
    piece.due()
    assert piece.core.insert_silent(piece.now) == [SendProbe(CELL, is_careful=False)]
    due_at = piece.core.due_at
    assert piece.established(OTHER, child, is_new=False, version=older) == (True, [])
    assert piece.core.place is not None
    assert (piece.core.place.owner, piece.core.place.cell) == (OTHER, child)
    assert piece.core.due_at == due_at, "the copy lapses when it would have done before, so the probe is repeated"
    assert isinstance(piece.due()[0], SendProbe)


def test_a_cell_above_the_leaf_is_not_believed_without_being_asked() -> None:
    piece = Piece().installed()
    assert piece.established(LIAR, parent(CELL)) == (True, [])
    assert piece.due() == [SendInsert(LEAF, CELL)]


def test_only_the_leaf_says_that_the_piece_is_kept() -> None:
    piece = Piece()
    piece.begin()
    piece.established()
    assert piece.kept(source=LIAR) == []
    assert piece.kept(PieceStatus.GONE, source=LIAR) == []
    assert piece.core.stage is Stage.HELD


def test_a_leaf_that_says_nothing_of_copies_is_asked_and_then_looked_for() -> None:
    piece = Piece()
    piece.begin()
    piece.established()
    assert piece.core.due_at - piece.now <= KEPT_WAIT_S
    assert piece.due() == [SendInsert(LEAF, CELL)]
    assert piece.answered(PieceStatus.KEPT) == []
    assert piece.due() == [SendInsert(LEAF, CELL)]
    assert piece.answered(PieceStatus.KEPT) == []
    [action] = piece.due()
    assert isinstance(action, SendProbe)


def test_a_refusal_counts_once_a_try_and_is_believed_after_several() -> None:
    piece = Piece()
    piece.begin()
    for _ in range(REFUSALS_MAX - 1):
        assert piece.kept(PieceStatus.QUOTA) == []
        assert piece.kept(PieceStatus.QUOTA, source=LIAR) == []
        [action] = piece.due()
        assert isinstance(action, SendProbe)
    assert piece.kept(PieceStatus.QUOTA) == [InstallReport(News.REFUSED, "too many")]
    assert piece.core.is_over
    assert piece.core.due_at == NEVER


def test_a_piece_that_was_installed_once_is_not_given_up_when_refused() -> None:
    piece = Piece().installed()
    for _ in range(10 * REFUSALS_MAX):
        piece.due()
        assert piece.kept(PieceStatus.REFUSED) == []
        assert not piece.core.is_over
        assert piece.core.due_at < NEVER


def test_a_piece_ends_at_its_leaf() -> None:
    piece = Piece().installed()
    assert piece.core.end(piece.now) == [SendEnd(LEAF, CELL)]
    assert piece.core.end(piece.now) == []
    assert piece.established() == (False, [])
    assert piece.core.end_answered(piece.now, PieceStatus.KEPT, CELL) == [InstallReport(News.ENDED)]
    assert piece.core.is_over


def test_a_piece_that_no_leaf_has_told_of_is_over_at_once() -> None:
    piece = Piece()
    piece.begin()
    assert piece.core.end(piece.now) == [InstallReport(News.ENDED)]
    assert piece.established() == (False, [])


def test_the_end_follows_the_leaf_to_where_it_is_now() -> None:
    piece = Piece().installed()
    piece.core.end(piece.now)
    child = cell_at(LOW, HIGH, 7)
    assert piece.core.end_answered(piece.now, PieceStatus.ELSEWHERE, child) == [Find(child)]
    assert piece.core.found(piece.now, child, OTHER) == [SendEnd(OTHER, child)]
    assert piece.core.end_answered(piece.now, PieceStatus.GONE, child) == [InstallReport(News.ENDED)]


def test_the_end_goes_down_where_the_leaf_was_split() -> None:
    piece = Piece().installed()
    piece.core.end(piece.now)
    assert piece.core.end_answered(piece.now, PieceStatus.ELSEWHERE, CELL) == [Find(CELL)]  # it may have another root
    assert piece.core.found(piece.now, CELL, OTHER) == [SendEnd(OTHER, CELL)]
    below = cell_at(LOW, HIGH, 7)
    assert piece.core.end_answered(piece.now, PieceStatus.ELSEWHERE, CELL) == [Find(below)]
    assert piece.core.found(piece.now, below, OTHER) == [SendEnd(OTHER, below)]


def test_an_end_that_nobody_answers_is_left_to_the_lease() -> None:
    piece = Piece().installed()
    piece.core.end(piece.now)
    tries = 0
    while not piece.core.is_over:
        actions = piece.due()
        tries += 1
        assert tries <= END_TRIES_MAX
    assert actions == [InstallReport(News.ENDED)]


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Whatever leaves, liars and time may do to a piece."""
    cells = st.integers(0, 12).map(lambda depth: cell_at(LOW, HIGH, depth))
    wrong = st.integers(1, 1 << 12)
    one = st.one_of(
        st.tuples(st.just("due"), st.none()),
        st.tuples(st.just("established"), st.tuples(st.sampled_from([LEAF, OTHER]), cells | wrong, st.booleans())),
        st.tuples(st.just("kept"), st.tuples(st.sampled_from([LEAF, OTHER]), st.sampled_from(PieceStatus))),
        st.tuples(st.just("answered"), st.tuples(st.sampled_from(PieceStatus), cells | wrong, st.booleans())),
        st.tuples(st.just("silent"), st.none()),
        st.tuples(st.just("end"), st.none()),
        st.tuples(st.just("end_answered"), st.tuples(st.sampled_from(PieceStatus), cells | wrong)),
    )
    return draw(st.lists(one, max_size=30))


@given(steps())
def test_whatever_happens_a_piece_never_rests_without_a_leaf_and_is_reported_once(
    happening: list[tuple[str, Any]],
) -> None:
    piece = Piece()
    actions = piece.begin()
    for what, how in happening:
        if what == "due" and piece.core.due_at < NEVER:
            actions += piece.due()
        elif what == "established":
            actions += piece.established(*how)[1]
        elif what == "kept":
            actions += piece.kept(how[1], how[0])
        elif what == "answered":
            actions += piece.answered(*how)
        elif what == "silent":
            actions += piece.core.insert_silent(piece.now)
        elif what == "end":
            actions += piece.core.end(piece.now)
        elif what == "end_answered":
            actions += piece.core.end_answered(piece.now, *how)
        place = piece.core.place
        assert place is None or cell_at(LOW, HIGH, level(place.cell)) == place.cell
        # It is over, or something is due, or a request is under way that ends by itself.
        is_asking = actions and isinstance(actions[-1], SendInsert)
        assert piece.core.is_over or piece.core.due_at < NEVER or is_asking
    reports = [action.news for action in actions if isinstance(action, InstallReport)]
    for news in (News.RECEIVED, News.REPLICATED, News.REFUSED, News.ENDED):
        assert reports.count(news) <= 1
    assert not (News.REPLICATED in reports and News.RECEIVED not in reports)
