"""Transcripts of one node's part in a tree: what comes in, what goes out."""

from __future__ import annotations

from typing import cast

import pytest

from peerd.api import Envelope, GroupOutcome, Host, NeighbourChange, Verdict
from peerd.errors import Bug, Unavailable
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef, encode_body
from peerd.services.groups.config import GroupsConfig
from peerd.services.groups.members import group_key
from peerd.services.groups.messages import (
    DEPTH_MAX,
    GENERATION_MAX,
    Attached,
    Bequest,
    Departing,
    Detach,
    GroupMulticast,
    Invitation,
    Join,
    MulticastPosition,
    Publication,
    Publish,
    PublishOutcome,
    Redirect,
    Refresh,
    Refreshed,
    TreeState,
)
from peerd.services.groups.service import BoundGroups, GroupService
from peerd.services.groups.state import Group
from peerd.testing.host import FakeHost, peer
from tests.support.group_world import KEY, Speaker
from tests.support.groups import Saying

OWN, PARENT, OTHER, ROOT = peer(50), peer(40), peer(41), peer(30)
A, B, C = peer(101), peer(102), peer(103)
CONFIG = GroupsConfig(children_max=2, trees_max=2, memberships_max=2, held_max=2, outstanding_max=2)
AT_3 = MulticastPosition(1, ROOT.id, 3)


class Rig:
    """One service on a fake host; by default it is far from every key."""

    def __init__(self, config: GroupsConfig = CONFIG, *, is_root: bool = False) -> None:
        self.host = FakeHost(OWN.id)
        self.config = config
        self.host.neighbours = () if is_root else (PeerRef(KEY, "10.1.0.2", 1),)
        self.heard: list[tuple[int, PeerRef]] = []
        self.outcomes: list[GroupOutcome] = []
        self.boot()

    def boot(self) -> None:
        """A new instance of the service on the same host."""
        self.service = GroupService(self.config)
        self.host.plugin = self.service
        self.service.start(cast(Host, self.host))
        self.groups = BoundGroups(lambda: self.service, Speaker())

    def join(self, name: str = "g") -> None:
        """A member here."""
        self.groups.join(name, lambda message, origin: self.heard.append((cast(Saying, message).number, origin)))

    def get(self, message: Message, source: PeerRef) -> list[tuple[PeerRef, Message]]:
        """A message arrives; what is sent in answer."""
        self.service.handlers.messages[type(message)](message, source)
        return self.finish()

    def finish(self) -> list[tuple[PeerRef, Message]]:
        """Have the callbacks run, check the node, and take what it sent."""
        self.host.run_later()
        self.service.validate()
        return self.host.take_sent()

    def passing(self, message: Message, source: PeerRef) -> Verdict | PeerRef:
        """A routed message comes by on its way."""
        return self.service.forward(Envelope(KEY, source, message, ROOT, 1, source))

    def arrive(self, message: Message, source: PeerRef) -> list[tuple[PeerRef, Message]]:
        """A routed message arrives at its root, which is here."""
        self.service.deliver(KEY, message, source)
        return self.finish()

    def invite(self, joiner: PeerRef, position: MulticastPosition | None = None) -> list[tuple[PeerRef, Message]]:
        """A join arrives at its root, which is here, over other nodes; then the joiner asks itself."""
        assert self.arrive(join(joiner, position), C)[-1] == (joiner, Invitation(KEY))
        return self.get(Join(KEY, joiner, position, False, True), joiner)

    def attach(self, start: MulticastPosition | None = AT_3) -> None:
        """Hang below ``PARENT``, which hangs below the root."""
        self.get(Attached(KEY, (ROOT.id, PARENT.id), start), PARENT)

    def dropped(self, reason: str) -> int:
        """Return how many messages were dropped for that reason."""
        return self.host.counted["peerd_groups_dropped_total", reason]

    @property
    def part(self) -> Group:
        """The node's part in the tree."""
        return self.service.trees.groups[KEY]


def member() -> Rig:
    """An attached member."""
    rig = Rig()
    rig.join()
    rig.attach()
    rig.host.take_sent()
    rig.host.routed.clear()
    return rig


def join(joiner: PeerRef, position: MulticastPosition | None = None, *, insists: bool = False) -> Join:
    """A join of the group."""
    return Join(KEY, joiner, position, insists)


def multicast(sequence: int, number: int = 0, generation: int = 1) -> GroupMulticast:
    """The ``sequence``-th multicast of the root."""
    body = encode_body(Saying(number or sequence))
    publication = Publication(C, 7, number or sequence, Saying.TYPE_ID, body)
    return GroupMulticast(KEY, MulticastPosition(generation, ROOT.id, sequence), publication)


def test_a_member_joins_through_the_root_and_follows_who_takes_it() -> None:
    rig = Rig()
    rig.join()
    assert rig.host.routed == [(KEY, join(OWN))]
    assert rig.get(Attached(KEY, (ROOT.id, PARENT.id), AT_3), PARENT) == []
    assert (rig.part.path, rig.part.position) == ((ROOT.id, PARENT.id, OWN.id), AT_3)
    assert ("join", KEY) not in rig.host.timers


def test_joins_are_repeated_ever_more_rarely_and_insist() -> None:
    rig = Rig()
    rig.join()
    waits: list[float] = []
    for _ in range(6):
        due = rig.host.timers["join", KEY]
        waits.append(due - rig.host.time_s)
        rig.host.fire("join", KEY)
    assert [cast(Join, message).insists for _, message in rig.host.routed] == [False] * 2 + [True] * 5
    assert all(0.8 * wait <= each <= 1.2 * wait for each, wait in zip(waits, (2, 4, 8, 16, 30, 30), strict=True))


def test_no_join_leaves_a_node_that_is_not_in_the_ring() -> None:
    rig = Rig()
    rig.host.is_complete = False
    rig.join()
    rig.host.fire("join", KEY)
    assert rig.host.routed == []
    rig.host.is_complete = True
    rig.host.fire("join", KEY)
    assert rig.host.routed == [(KEY, join(OWN))]


def test_a_node_on_the_way_becomes_part_of_the_tree() -> None:
    rig = Rig()
    assert rig.passing(join(A, AT_3), A) is Verdict.STOP
    assert rig.passing(join(B), B) is Verdict.STOP
    assert rig.host.routed == [(KEY, join(OWN, AT_3))]  # with its child's position: it needs what the child needs
    assert rig.finish() == []  # they wait
    sent = rig.get(Attached(KEY, (ROOT.id,), AT_3), ROOT)
    assert sent == [(A, Attached(KEY, (ROOT.id, OWN.id), AT_3)), (B, Attached(KEY, (ROOT.id, OWN.id), AT_3))]


def test_a_join_that_insists_passes_nodes_that_wait_themselves() -> None:
    rig = Rig()
    assert rig.passing(join(A, insists=True), A) is Verdict.PASS
    rig.passing(join(A), A)
    assert rig.passing(join(B, insists=True), B) is Verdict.PASS
    rig.attach()
    assert rig.passing(join(B, insists=True), B) is Verdict.STOP


def test_only_so_many_trees_are_carried_for_others() -> None:
    rig = Rig()
    for number in (1, 2):
        assert rig.passing(Join(NodeId(number), A, None, False), A) is Verdict.STOP
    assert rig.passing(Join(NodeId(3), A, None, False), A) is Verdict.PASS
    rig.join()
    assert len(rig.service.trees.groups) == 3


def test_a_full_node_names_its_children() -> None:
    rig = member()
    for child in (A, B):
        assert rig.passing(join(child), child) is Verdict.STOP
    rig.finish()
    assert rig.passing(join(C), C) is Verdict.STOP
    [(target, redirect)] = rig.finish()
    assert target == C and isinstance(redirect, Redirect)
    assert sorted(redirect.candidates, key=lambda each: each.id) == [A, B]


def test_hints_are_followed_one_by_one_then_the_root_is_asked_again() -> None:
    rig = Rig()
    rig.join()
    rig.host.routed.clear()
    assert rig.get(Redirect(KEY, (A, OWN, B)), PARENT) == [(A, join(OWN))]
    assert rig.get(Redirect(KEY, ()), A) == [(B, join(OWN))]
    assert rig.get(Redirect(KEY, ()), B) == []
    rig.host.fire("join", KEY)
    assert rig.host.routed == [(KEY, join(OWN))]


def test_hints_without_end_are_not_followed() -> None:
    rig = Rig()
    rig.join()
    asked = sum(len(rig.get(Redirect(KEY, (A,)), B)) for _ in range(100))
    assert asked == 32


def test_an_ancestor_is_not_taken_as_a_child() -> None:
    rig = member()
    assert rig.passing(join(ROOT), ROOT) is Verdict.PASS
    assert rig.get(join(PARENT), PARENT) == [(PARENT, Redirect(KEY, ()))]


def test_no_child_is_taken_below_the_greatest_depth() -> None:
    rig = Rig()
    rig.join()
    path = tuple(NodeId(1000 + number) for number in range(DEPTH_MAX - 1))
    rig.get(Attached(KEY, path, None), PeerRef(path[-1], "10.1.0.3", 1))
    assert rig.passing(join(A), A) is Verdict.PASS
    too_deep = (NodeId(999), *path)
    assert rig.get(Attached(KEY, too_deep, None), PeerRef(path[-1], "10.1.0.3", 1))[0][1] == Detach(KEY)
    assert rig.dropped("loop") == 1


def test_a_loop_is_seen_and_broken() -> None:
    rig = member()
    rig.passing(join(A), A)
    rig.finish()
    sent = rig.get(Attached(KEY, (A.id, OWN.id, PARENT.id), None), PARENT)
    assert sent == [(PARENT, Detach(KEY)), (A, Attached(KEY, (), AT_3))]  # the subtree knows that it is cut off
    assert rig.host.routed == [(KEY, join(OWN, AT_3))]
    assert rig.part.parent is None and rig.dropped("loop") == 1


def test_a_node_cut_off_takes_nobody() -> None:
    rig = member()
    rig.get(Attached(KEY, (), None), PARENT)
    assert rig.part.parent == PARENT and not rig.part.is_attached
    assert rig.passing(join(A), A) is Verdict.PASS
    assert rig.get(join(A), A) == [(A, Redirect(KEY, ()))]


def test_a_parent_without_a_way_to_the_root_is_left_in_the_end() -> None:
    rig = member()
    rig.get(Attached(KEY, (), None), PARENT)
    for _ in range(4):
        rig.host.fire("tick")
        rig.host.requests.clear()
    assert rig.host.routed == [(KEY, join(OWN, AT_3))]
    assert rig.get(Attached(KEY, (ROOT.id, OTHER.id), AT_3), OTHER) == [(PARENT, Detach(KEY))]
    assert rig.part.parent == OTHER


def test_multicasts_go_to_the_member_and_down_once_each() -> None:
    rig = member()
    rig.passing(join(A), A)
    rig.finish()
    assert rig.get(multicast(4), PARENT) == [(A, multicast(4))]
    assert rig.get(multicast(4), PARENT) == []
    assert rig.get(multicast(5, number=4), PARENT) == []  # the same, numbered by the root once more
    assert rig.heard == [(4, C)] and rig.dropped("duplicate") == 2


def test_a_new_child_gets_what_it_missed() -> None:
    rig = member()
    for sequence in (4, 5, 6):
        rig.get(multicast(sequence), PARENT)
    rig.passing(join(A, MulticastPosition(1, ROOT.id, 4)), A)
    path = (ROOT.id, PARENT.id, OWN.id)
    assert rig.finish() == [
        (A, Attached(KEY, path, MulticastPosition(1, ROOT.id, 4))),
        (A, multicast(5)),
        (A, multicast(6)),
    ]
    rig.passing(join(B), B)  # it was never a member: nothing of the past
    assert rig.finish() == [(B, Attached(KEY, path, MulticastPosition(1, ROOT.id, 6)))]


def test_a_gap_is_asked_for_before_anything_later_is_heard() -> None:
    rig = member()
    assert rig.get(multicast(6), PARENT) == [(PARENT, join(OWN, AT_3, insists=True))]
    assert rig.get(multicast(7), PARENT) == []  # asked already
    rig.attach()
    for sequence in (4, 5, 6, 7):
        rig.get(multicast(sequence), PARENT)
    assert [number for number, _ in rig.heard] == [4, 5, 6, 7]
    assert rig.host.counted["peerd_groups_missed_total", ""] == 0


def test_what_the_parent_has_not_itself_is_given_up_after_a_few_questions() -> None:
    """The parent's log has a gap, or mixes two reigns, so it would give the same answer for ever."""
    rig = member()
    questions = 0
    for _ in range(10):
        asked = [message for _, message in rig.get(multicast(6), PARENT) if isinstance(message, Join)]
        questions += len(asked)
        if not asked:
            break
        rig.attach()
    assert questions == 4 and [number for number, _ in rig.heard] == [6]
    assert rig.host.counted["peerd_groups_missed_total", ""] == 2


def test_what_the_parent_no_longer_has_is_counted() -> None:
    rig = member()
    rig.attach(MulticastPosition(1, ROOT.id, 9))
    rig.get(multicast(10), PARENT)
    assert [number for number, _ in rig.heard] == [10]
    assert rig.host.counted["peerd_groups_missed_total", ""] == 6


def test_without_replay_a_gap_is_only_counted() -> None:
    rig = Rig(GroupsConfig(replay_messages=0))
    rig.join()
    rig.attach()
    assert rig.get(multicast(6), PARENT) == []
    assert [number for number, _ in rig.heard] == [6]
    assert rig.host.counted["peerd_groups_missed_total", ""] == 2


def test_a_lost_tail_is_asked_for_after_two_refreshes() -> None:
    rig = member()
    path = (ROOT.id, PARENT.id)
    for _ in range(2):
        rig.host.requests.clear()
        rig.host.time_s += 5
        rig.host.fire("tick")
        [request] = rig.host.requests
        assert isinstance(request.message, Refresh) and request.message.groups == (KEY,)
        request.on_reply(Refreshed((TreeState(KEY, True, path, MulticastPosition(1, ROOT.id, 5)),)), PARENT)
    assert rig.finish() == [(PARENT, join(OWN, AT_3, insists=True))]


def test_a_silent_parent_is_given_up_and_the_subtree_told() -> None:
    rig = member()
    rig.passing(join(A), A)
    rig.finish()
    rig.host.time_s += 5
    rig.host.fire("tick")
    for _ in range(2):
        [request] = rig.host.requests
        assert request.peer == PARENT
        rig.host.requests.clear()
        rig.host.time_s += 2
        request.on_timeout()
    assert rig.host.requests == []
    assert rig.finish() == [(A, Attached(KEY, (), AT_3))]
    assert rig.host.routed == [(KEY, join(OWN, AT_3))]


def test_a_multicast_is_as_good_as_an_answer() -> None:
    rig = member()
    rig.host.time_s += 5
    rig.host.fire("tick")
    [request] = rig.host.requests
    rig.host.requests.clear()
    rig.host.time_s += 2
    rig.get(multicast(4), PARENT)
    request.on_timeout()
    assert rig.host.requests == [] and rig.part.parent == PARENT


def test_a_parent_that_has_forgotten_its_child_is_no_parent() -> None:
    rig = member()
    rig.host.time_s += 5
    rig.host.fire("tick")
    rig.host.requests[0].on_reply(Refreshed((TreeState(KEY, False, (), None),)), PARENT)
    assert rig.part.parent is None and rig.part.is_joining


def test_children_that_do_not_ask_are_dropped() -> None:
    rig = Rig()
    rig.passing(join(A), A)
    rig.attach()
    rig.finish()
    question = Refresh((KEY, NodeId(1)), 0.02)
    rig.host.time_s += 20
    assert rig.service._refresher.asked(question, A) == Refreshed(
        (TreeState(KEY, True, (ROOT.id, PARENT.id, OWN.id), AT_3), TreeState(NodeId(1), False, (), None))
    )
    rig.host.time_s += 31
    rig.host.fire("tick")
    assert rig.finish() == [(PARENT, Detach(KEY))]
    assert not rig.service.trees.groups and rig.dropped("child_lease") == 1


def test_an_orphan_whose_last_child_lapses_looks_for_nobody() -> None:
    rig = Rig()
    rig.passing(join(A), A)
    rig.attach()
    rig.get(Attached(KEY, (), None), PARENT)
    rig.host.time_s += 31
    rig.host.fire("tick")
    assert rig.finish() == [(PARENT, Detach(KEY))]
    assert not rig.service.trees.groups and ("join", KEY) not in rig.host.timers


def test_who_needs_no_tree_leaves_it() -> None:
    rig = member()
    rig.passing(join(A), A)
    rig.finish()
    rig.groups.leave("g")
    assert rig.finish() == []  # it has a child
    assert rig.get(Detach(KEY), A) == [(PARENT, Detach(KEY))]
    assert not rig.service.trees.groups
    rig.groups.leave("g")


def test_leaving_the_ring_hands_the_children_to_the_parent() -> None:
    rig = member()
    rig.passing(join(A), A)
    rig.finish()
    rig.service.stop()
    assert rig.host.take_sent() == [(A, Redirect(KEY, (PARENT,))), (PARENT, Detach(KEY))]
    child = member()
    assert child.get(Redirect(KEY, (ROOT,)), PARENT) == [(ROOT, join(OWN, AT_3))]


def test_draining_keeps_the_children_until_they_have_gone() -> None:
    rig, ended = member(), list[bool]()
    rig.passing(join(A), A)
    rig.finish()
    rig.service.drain(lambda: ended.append(True))
    rig.host.fire("drain")
    assert (
        rig.finish() == [(PeerRef(KEY, "10.1.0.2", 1), Departing()), (A, Redirect(KEY, (PARENT,), keeps=True))]
        and not ended
    )
    assert rig.get(multicast(4), PARENT) == [(A, multicast(4))]
    assert rig.passing(join(B), B) is Verdict.PASS, "no more children"
    rig.host.fire("drain")
    assert rig.finish() == [(A, Redirect(KEY, (PARENT,), keeps=True))], "told again"
    rig.get(Detach(KEY), A)
    rig.host.fire("drain")
    assert ended == [True] and "drain" not in {name for name, _ in rig.host.timers}


def test_a_child_stays_with_a_parent_that_drains_until_it_is_taken() -> None:
    rig = member()
    assert rig.get(Redirect(KEY, (ROOT,), keeps=True), PARENT) == [(ROOT, join(OWN, AT_3))]
    assert rig.part.is_child_of(PARENT) and rig.part.path
    assert rig.get(Attached(KEY, (C.id, ROOT.id, PARENT.id), AT_3), PARENT) == []
    assert rig.part.is_joining, "news of the old parent does not end the search"
    assert rig.get(Attached(KEY, (ROOT.id,), AT_3), ROOT) == [(PARENT, Detach(KEY))]
    assert rig.part.is_child_of(ROOT) and not rig.part.is_joining


def test_an_heir_joins_the_root_that_leaves_and_then_is_the_root() -> None:
    rig, leaver = Rig(), PeerRef(KEY, "10.1.0.2", 1)  # closest to the key, and its only neighbour
    at = MulticastPosition(1, leaver.id, 5)
    assert rig.get(Bequest(KEY, at, False), leaver) == [(leaver, join(OWN, MulticastPosition(0, OWN.id, 0)))]
    rig.get(Attached(KEY, (leaver.id,), at), leaver)
    assert rig.get(Bequest(KEY, at, True), leaver) == [
        (leaver, Detach(KEY)),
        (leaver, Attached(KEY, (OWN.id,), MulticastPosition(2, OWN.id, 0))),
    ]
    rig.service.neighbours_changed(NeighbourChange((), ()))
    assert rig.part.is_root, "the old root is no better one, though it is closer"
    rig.get(Publish(KEY, Publication(C, 7, 9, Saying.TYPE_ID, encode_body(Saying(9)))), leaver)
    assert rig.part.position == MulticastPosition(2, OWN.id, 1)


def test_a_root_numbers_in_a_generation_after_all_it_has_heard_of() -> None:
    rig = Rig(is_root=True)
    attached = Attached(KEY, (OWN.id,), MulticastPosition(5, OWN.id, 0))
    assert rig.invite(A, MulticastPosition(4, ROOT.id, 9)) == [(A, attached)]
    rig.arrive(Publish(KEY, multicast(1).publication), C)
    sent = rig.invite(B, MulticastPosition(6, ROOT.id, 1))
    assert (A, Attached(KEY, (OWN.id,), MulticastPosition(7, OWN.id, 0))) in sent
    rig.invite(B, MulticastPosition(GENERATION_MAX, ROOT.id, 1))
    assert rig.part.position == MulticastPosition(GENERATION_MAX, OWN.id, 0)


def test_a_root_that_is_no_longer_closest_joins_the_one_that_is() -> None:
    rig = Rig(is_root=True)
    rig.invite(A)
    closer = PeerRef(KEY, "10.1.0.2", 1)
    rig.host.neighbours = (closer,)
    rig.service.neighbours_changed(NeighbourChange((closer,), ()))
    own = MulticastPosition(1, OWN.id, 0)
    assert rig.host.routed == [(KEY, join(OWN, own))]
    assert rig.part.path == (OWN.id,) and not rig.part.is_root  # its subtree holds together meanwhile
    start = MulticastPosition(2, closer.id, 0)
    assert rig.get(Attached(KEY, (closer.id,), start), closer) == [(A, Attached(KEY, (closer.id, OWN.id), start))]


def test_what_arrives_where_a_closer_node_is_known_goes_on_there() -> None:
    rig = Rig()
    publish = Publish(KEY, multicast(1).publication)
    assert rig.arrive(publish, C) == []
    assert rig.host.routed == [(KEY, publish)]


def test_a_publish_waits_a_moment_for_its_tree() -> None:
    rig = Rig(is_root=True)
    publish = Publish(KEY, multicast(1).publication)
    assert rig.arrive(publish, C) == rig.arrive(publish, C) == []
    assert len([name for name, _ in rig.host.timers if name == "hold"]) == 1
    sent = rig.invite(A)
    assert [type(message).__name__ for _, message in sent] == ["Attached", "GroupMulticast", "PublishOutcome"]
    assert sent[-1] == (C, PublishOutcome(1, is_taken=True))


def test_a_publish_without_a_group_is_refused() -> None:
    rig = Rig(is_root=True)
    rig.arrive(Publish(KEY, multicast(1).publication), C)
    rig.arrive(Publish(KEY, multicast(2).publication), C)
    assert rig.arrive(Publish(KEY, multicast(3).publication), C) == [(C, PublishOutcome(3, is_taken=False))]
    rig.host.fire("hold", 1)
    assert rig.host.time_s == 1.0
    assert rig.finish() == [(C, PublishOutcome(1, is_taken=False))]


def test_after_the_loss_of_a_neighbour_trees_are_given_more_time() -> None:
    rig = Rig(is_root=True)
    rig.service.neighbours_changed(NeighbourChange((), (ROOT,)))
    rig.arrive(Publish(KEY, multicast(1).publication), C)
    assert rig.host.timers["hold", 1] == CONFIG.repair_s > 10


def test_what_waits_goes_on_when_a_closer_node_comes() -> None:
    rig = Rig(is_root=True)
    publish = Publish(KEY, multicast(1).publication)
    rig.arrive(publish, C)
    closer = PeerRef(KEY, "10.1.0.2", 1)
    rig.host.neighbours = (closer,)
    rig.service.neighbours_changed(NeighbourChange((closer,), ()))
    assert rig.host.routed == [(KEY, publish)] and not rig.host.timers


def test_an_origin_repeats_and_then_says_that_it_does_not_know() -> None:
    rig = Rig()
    rig.groups.multicast("g", Saying(1), rig.outcomes.append)
    for _ in range(CONFIG.publish_attempts):
        rig.host.fire("publish", 1)
    [(_, first), *others] = rig.host.routed
    assert len(others) == CONFIG.publish_attempts - 1 and all(message == first for _, message in others)
    assert rig.outcomes == [GroupOutcome.UNKNOWN]


@pytest.mark.parametrize(("is_taken", "outcome"), [(True, GroupOutcome.TAKEN), (False, GroupOutcome.NO_SUCH_GROUP)])
def test_an_origin_is_told_once(is_taken: bool, outcome: GroupOutcome) -> None:
    rig = Rig()
    rig.groups.multicast("g", Saying(1), rig.outcomes.append)
    [(_, publish)] = rig.host.routed
    assert isinstance(publish, Publish)
    nonce = publish.nonce
    rig.get(PublishOutcome(1, is_taken, nonce ^ 1), ROOT)
    rig.get(PublishOutcome(1, is_taken), C)
    assert rig.outcomes == [] and rig.dropped("unasked") == 2, "they have not seen the question"
    for _ in range(2):
        rig.get(PublishOutcome(1, is_taken, nonce), ROOT)
    assert rig.outcomes == [outcome] and ("publish", 1) not in rig.host.timers


def test_limits_and_misuse_are_refused_with_a_reason() -> None:
    rig = Rig()
    rig.join("a")
    rig.groups.create("b")
    with pytest.raises(Unavailable, match="memberships_max"):
        rig.groups.create("c")
    rig.join("b")
    rig.groups.multicast("g", Saying(1))
    rig.groups.anycast("g", Saying(1), lambda outcome, peer: None)
    with pytest.raises(Unavailable, match="2 multicasts"):
        rig.groups.multicast("g", Saying(2))
    with pytest.raises(Bug, match="over the cap of 8192"):
        rig.groups.anycast("g", Saying(1, b"x" * 9000), lambda outcome, peer: None)
    with pytest.raises(Bug, match="not among its messages"):
        rig.groups.multicast("g", Detach(KEY))


def test_bodies_of_the_wrong_type_or_shape_reach_no_member() -> None:
    rig = member()
    for number, (type_id, body) in enumerate([(Detach.TYPE_ID, b""), (0x7FFF, b""), (Saying.TYPE_ID, b"\xc1")]):
        at = MulticastPosition(1, ROOT.id, 4 + number)
        rig.get(GroupMulticast(KEY, at, Publication(C, 7, number, type_id, body)), PARENT)
    assert (rig.heard, rig.dropped("unknown_type"), rig.dropped("malformed")) == ([], 2, 1)
    rig.get(GroupMulticast(KEY, MulticastPosition(1, ROOT.id, 0), multicast(9).publication), PARENT)
    assert rig.heard == [] and rig.dropped("malformed") == 2


def test_two_plugins_never_meet_in_one_group() -> None:
    assert len({group_key(*pair) for pair in (("a", "b"), ("ab", ""), ("", "ab"), ("b", "a"))}) == 4
