"""What a member says of others to a group's tree: a place in it is asked for and kept by each node itself."""

from __future__ import annotations

from peerd import limits
from peerd.api import GroupOutcome
from peerd.ids import NodeId, key_of
from peerd.messages import PeerRef, encode_body
from peerd.services.groups.config import GroupsConfig
from peerd.services.groups.members import group_key
from peerd.services.groups.messages import Anycast, Bequest, Departing, Join, Publication, Publish
from peerd.sim.simulation import Place, Simulation
from tests.support.groups import Saying, chat_ring, chatter, tree_offences, trees


def test_a_join_in_the_name_of_another_makes_it_a_member_of_nothing() -> None:
    simulation = chat_ring(20, seed=1)
    members, liar, victim = simulation.nodes[:5], simulation.nodes[6], simulation.nodes[7]
    for place in members:
        chatter(place).join("news")
    simulation.run_for(5.0)
    group_id = group_key("chatter", "news")
    for _ in range(10):
        liar.node.hosts["groups"].route(group_id, Join(group_id, victim.peer, None, False))
    simulation.run_for(2 * GroupsConfig().join_timeout)
    chatter(members[0]).say("news", 1)
    simulation.run_for(5.0)
    assert "news" not in chatter(victim).heard
    assert victim.id not in trees(simulation, "news")
    assert tree_offences(simulation, "news", members) == []
    for place in members:
        assert chatter(place).heard["news"] == [(members[0].id, 1)]


def group_of(simulation: Simulation, count: int) -> tuple[list[Place], NodeId, Place]:
    """Members that have joined, the group's key, and a node that is neither one of them nor the root."""
    members, group_id = simulation.nodes[:count], group_key("chatter", "news")
    for place in members:
        chatter(place).join("news")
    simulation.run_for(5.0)
    root = simulation.oracle().root(group_id)
    return members, group_id, next(place for place in simulation.nodes[count:] if place.id != root)


def test_an_inheritance_that_a_member_makes_up_makes_no_root() -> None:
    simulation = chat_ring(12, seed=2)
    members, group_id, liar = group_of(simulation, 6)
    chatter(members[0]).say("news", 1)
    simulation.run_for(2.0)
    root = simulation.oracle().root(group_id)
    last = trees(simulation, "news")[root].position
    assert last is not None and last.sequence == 1
    for place in simulation.nodes:
        if place is not liar:
            for message in (Departing(), Bequest(group_id, last, False), Bequest(group_id, last, True)):
                liar.node.hosts["groups"].send(place.peer, message)
    simulation.run_for(1.0)
    assert [node_id for node_id, part in trees(simulation, "news").items() if part.is_root] == [root]
    chatter(members[1]).say("news", 2)
    simulation.run_for(5.0)
    assert tree_offences(simulation, "news", members) == []
    for place in members:
        assert chatter(place).numbers("news") == [1, 2]


def test_members_that_somebody_invents_take_no_place() -> None:
    simulation = chat_ring(12, seed=3, services={"groups": GroupsConfig(children_max=2, trees_max=8)})
    members, group_id, liar = group_of(simulation, 6)
    newcomer = next(place for place in simulation.nodes[6:] if place is not liar)
    for number in range(200):
        nobody = PeerRef(key_of(f"nobody {number}"), "10.9.9.9", 7420)
        group = group_id if number % 2 else key_of(f"invented group {number}")
        liar.node.hosts["groups"].route(group, Join(group, nobody, None, False))
    simulation.run_for(1.0)
    assert all(len(place.node.groups.trees.groups) <= 1 for place in simulation.nodes), "no tree of nobody's"
    chatter(newcomer).join("news")
    simulation.run_for(5.0)
    chatter(members[0]).say("news", 1)
    simulation.run_for(2.0)
    assert tree_offences(simulation, "news", [*members, newcomer]) == []
    assert chatter(newcomer).numbers("news") == [1]


def test_two_that_multicast_as_fast_as_they_may_have_no_parent_accused() -> None:
    simulation = chat_ring(6, seed=4)
    simulation.misbehaviour_is_failure = False
    members, group_id, liar = group_of(simulation, 3)
    root = simulation.oracle().root(group_id)
    assert members[1].id != root
    liars = [place for place in simulation.nodes if place.id != root and place not in members][:2]
    assert liar in liars and len(liars) == 2
    each = limits.PEER_MESSAGES_BURST - 1000
    for place in liars:
        for number in range(each):
            body = encode_body(Saying(number))
            publication = Publication(
                members[1].peer, place.driver.boot_epoch, 1_000_000 + number, Saying.TYPE_ID, body
            )
            place.node.hosts["groups"].route(group_id, Publish(group_id, publication))
    simulation.run_for(10.0)
    honest = {place.peer for place in simulation.nodes if place not in liars}
    assert [each for each in simulation.misbehaviours if {each[1], each[2]} <= honest] == []
    heard = [len(chatter(place).heard["news"]) for place in members if place.id != root]
    assert all(1000 < count < 2 * each for count in heard), "the rest is dropped"
    chatter(members[0]).say("news", 1)
    simulation.run_for(10.0)
    assert all((members[0].id, 1) in chatter(place).heard["news"] for place in members)


def test_two_that_ask_a_group_as_fast_as_they_may_have_nobody_of_its_tree_accused() -> None:
    """Each anycast goes to every member and back, because nobody accepts."""
    simulation = chat_ring(6, seed=4)
    simulation.misbehaviour_is_failure = False
    members, group_id, _ = group_of(simulation, 3)
    root = simulation.oracle().root(group_id)
    liars = [place for place in simulation.nodes if place.id != root and place not in members][:2]
    each = limits.PEER_MESSAGES_BURST - 1000
    for place in liars:
        for number in range(each):
            body = encode_body(Saying(number))
            anycast = Anycast(group_id, members[1].peer, 1_000_000 + number, Saying.TYPE_ID, body, (), 0)
            place.node.hosts["groups"].send(members[2].peer, anycast)
    simulation.run_for(10.0)
    honest = {place.peer for place in simulation.nodes if place not in liars}
    assert [each for each in simulation.misbehaviours if {each[1], each[2]} <= honest] == []
    asked = [len(chatter(place).asked) for place in members]
    assert max(asked) > 1000, "they were heard, as far as their rate allows"
    found = chatter(members[0])
    found.outcomes.clear()
    chatter(members[1]).accepts = True
    found.find("news", 2)
    simulation.run_for(10.0)
    assert found.outcomes == [(GroupOutcome.ACCEPTED, members[1].peer)]
