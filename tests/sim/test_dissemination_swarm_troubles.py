"""What the swarm's judge of streams sees when the product is wrong: hand-overs, rivals, slow ones, documents, storms."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from peerd.sim.simulation import Place
from peerd.sim.swarm.swarm import run_seed
from protocols.dissemination.documents.download import Download
from protocols.dissemination.documents.exchange import DocumentExchange
from protocols.dissemination.front import attached, simulator
from protocols.dissemination.front.attached import DocumentJudge
from protocols.dissemination.front.checkers import OneProducer, SiblingsFlow
from protocols.dissemination.front.judging import RIVAL, node_of, plugin_of
from protocols.dissemination.front.simulator import SHORT_MEMORY
from protocols.dissemination.front.storms import MovesAMinute, stated
from protocols.dissemination.front.troubles import SLOW_S, Troubles
from protocols.dissemination.models import StreamSpec
from protocols.dissemination.registry import StreamRegistry
from protocols.dissemination.succession import Succession
from protocols.dissemination.tree.downstream import Downstream
from protocols.dissemination.tree.links import Downlink
from protocols.dissemination.tree.subscription import OwnSubscription
from tests.sim.test_dissemination import Streams

ATTRIBUTES = StreamSpec(name="news", kind="attributes", policy="first_fit")


def slowed(seed: int = 3) -> tuple[Streams, list[str]]:
    """A ring in which one subscriber's link is slow while much is published, watched for children that wait."""
    streams = Streams(8, seed, ATTRIBUTES, **SHORT_MEMORY)
    streams.subscribe_all()
    checker = SiblingsFlow()
    troubles = Troubles(streams.simulation, Random(seed), streams.judge)
    assert troubles.slow_down()
    waited: list[str] = []
    for _ in range(int(SLOW_S / 0.25)):
        streams.simulation.run_for(0.25)
        streams.judge.read()
        waited += [told for place in streams.simulation.nodes for told in checker.check_node(streams.simulation, place)]
    streams.settle(30.0)
    return streams, waited
