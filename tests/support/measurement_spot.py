"""One node of T with a parent and two children: what it says to a question, as a transcript."""

from __future__ import annotations

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.testing.host import FakeHost, peer
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.messages import CacheAsk, CacheEntry, CacheUpdate, StandingPromises
from protocols.measurement.guarantee.words import BoundClaim, Measurement, Sample, Want
from protocols.measurement.placing.messages import AlongRead, ReadAlong, Subtree
from protocols.measurement.placing.tree import ROOT_KEY
from protocols.measurement.plugin import MeasurementQueries

ME, READER = 5, 7
LEFT, RIGHT = 11, 12
"""Children, each with an owner below it."""
LEFT_OWNER, RIGHT_OWNER, STRANGER = 21, 22, 99
PARENT = PeerRef(ROOT_KEY, "10.1.0.2", 1)
"""Nobody is nearer to the key of T."""


def cpu(owner: int) -> Measurement:
    """A value of a node."""
    return Measurement(NodeId(owner), "cpu")


def claim(value: float = 1.0, half_width: float = 0.5) -> BoundClaim:
    """A value, and bounds around it."""
    return BoundClaim(value, value, Interval(value - half_width, value + half_width), Sample(1, 1))


def measuring(placing: str = "tree") -> MeasurementQueries:
    """The plugin, without anything that it measures; values are not signed (tests/unit/test_measurement_signed.py)."""
    settings = {"system": False, "placing": placing, "signed": False}
    return MeasurementQueries(MeasurementConfig.model_validate(settings), [])


class Spot:
    """One node of T, with a parent unless it is the root, and children."""

    def __init__(self, *, is_root: bool = False, me: int = ME, placing: str = "tree") -> None:
        self.plugin = measuring(placing)
        self.host = FakeHost(me)
        self.host.time_s = 100.0
        self.host.neighbours = () if is_root else (PARENT,)
        self.host.plugin = self.plugin
        self.plugin.start(self.host)
        self.host.fire("subtree")
        assert self.plugin.tree.parent() == (None if is_root else PARENT)
        for child, owner in ((LEFT, LEFT_OWNER), (RIGHT, RIGHT_OWNER)):
            self.host.deliver(Subtree((NodeId(child), NodeId(owner))), peer(child))
        self.host.take_sent()

    def deliver(self, question: Message, source: PeerRef) -> tuple[dict[NodeId, set[int]], list[AlongRead]]:
        """Where a question goes on, with the owners that each branch is about; and the answers to the reader."""
        self.host.deliver(question, source)
        branches: dict[NodeId, set[int]] = {}
        answers: list[AlongRead] = []
        for to, message in self.host.take_sent():
            if isinstance(message, ReadAlong):
                assert message.path[-1] == self.host.id and to.id not in message.path and to.id not in branches
                branches[to.id] = {int(want.measurement.owner) for want in message.wants}
            elif isinstance(message, AlongRead):
                assert to == peer(READER)
                answers.append(message)
        return branches, answers

    def sample(self, value: float) -> None:
        """The node measures."""
        self.plugin.sampled({"cpu": value}, self.host.time_s)

    def hold(self, measurement: Measurement, half_width: float) -> None:
        """It holds a value that its owner has told it just now."""
        owner = peer(measurement.owner)
        self.plugin._know(owner)
        want = [Want(measurement, half_width)]
        self.plugin._carry_out(self.plugin.caching.want(want, owner.id, self.host.time_s))
        [number] = [message.number for _, message in self.host.take_sent() if isinstance(message, CacheAsk)]
        boot, standing = self.plugin.caching.boot, StandingPromises((1,), (0,))
        entry = CacheEntry(1, 0, False, claim(1.0, half_width), measurement)
        self.host.deliver(CacheUpdate(1, boot, number, 0, (entry,), standing), owner)
        assert measurement in self.plugin.caching.holder.held
        self.host.take_sent()
