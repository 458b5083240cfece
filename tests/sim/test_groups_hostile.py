"""What a member says of others to a group's tree: a place in it is asked for and kept by each node itself."""

from __future__ import annotations

from peerd.services.groups.config import GroupsConfig
from peerd.services.groups.members import group_key
from peerd.services.groups.messages import Join
from tests.support.groups import chat_ring, chatter, tree_offences, trees


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
