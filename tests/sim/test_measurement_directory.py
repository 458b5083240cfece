"""Which nodes there are, in a simulated ring: what it costs to hear that nothing has changed, or that something has."""

from __future__ import annotations

from peerd.messages import PeerRef
from protocols.measurement.directory import COPIES, FRESH_S, SHARDS, shard_of
from protocols.measurement.messages import NodesQuestion
from tests.support.measurement_ring import Ring


class Asked:
    """A ring, and how many questions one node asks each time to know which nodes there are."""

    def __init__(self) -> None:
        self.ring = Ring(12)
        self.asker = self.ring.plugin()

    def refresh(self, silent: PeerRef | None = None) -> int:
        """How many it sends, once what it knows is old. One root may stop just before."""
        done: list[bool] = []
        self.ring.simulation.run_for(FRESH_S + 1.0)
        for place in self.ring.places:
            if silent is not None and place.id == silent.id:
                self.ring.simulation.pause(place)
        before = self.ring.sent.counts[NodesQuestion]
        self.asker.directory.refreshed(lambda: done.append(True))
        self.ring.simulation.run_until(lambda: bool(done), limit_s=10.0)
        return self.ring.sent.counts[NodesQuestion] - before


def test_one_copy_of_the_descriptions_is_asked_in_turn_and_both_where_anything_has_changed() -> None:
    asked = Asked()
    both = asked.refresh()
    roots = {shard.root.id for shard in asked.asker.directory._shards if shard.root is not None}
    own = sum(shard.root == asked.asker.host.peer for shard in asked.asker.directory._shards)
    assert both == COPIES * SHARDS - own and len(roots) > 2
    while asked.refresh() == both:  # nodes learn where they are in the latency space, and say so
        pass
    calm = [asked.refresh() for _ in range(4)]
    assert calm[0] + calm[1] == calm[2] + calm[3] == both and max(calm) < both, "each copy in its turn"
    changed = asked.ring.plugin(5)
    changed.sampled({"new": 1.0}, changed.host.now())
    found = asked.refresh()
    names = {entry.id: entry.measurements for entry in asked.asker.directory.known()}
    assert "new" in names[changed.host.id] and found == both
    assert asked.refresh() < both


def test_a_root_that_does_not_answer_hides_nobody() -> None:
    asked = Asked()
    asked.refresh()
    directory, me = asked.asker.directory, asked.asker.host.peer
    roots = [shard.root for shard in directory._shards]
    turn = (directory._turn + 1) % COPIES
    for changed in map(asked.ring.plugin, range(1, 12)):
        silent, other = (roots[shard_of(changed.host.id, copy)] for copy in (turn, 1 - turn))
        if silent is not None and silent not in (other, me, changed.host.peer):
            break  # the one that is asked next has what has changed, and will not say it
    else:
        raise AssertionError("no such root in this ring")
    changed.sampled({"new": 1.0}, changed.host.now())
    asked.refresh(silent)
    names = {entry.id: entry.measurements for entry in directory.known()}
    assert directory._shards[shard_of(changed.host.id, turn)].problem, "it was asked"
    assert names.keys() == {place.id for place in asked.ring.places} and "new" in names[changed.host.id]
