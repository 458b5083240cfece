"""A member forges what others would say."""

from __future__ import annotations

import pytest

from protocols.aggregation.messages import Enrolled, InviteAnswer, StartRound, StopRound
from tests.hostile.ring import Ring

pytestmark = pytest.mark.cluster


async def test_forged_control_ends_and_empties_no_round(ring: Ring) -> None:
    """It stops each round as soon as it hears of it, and enrols for others with "no data"."""
    async with ring.attacked() as (attacker, _):

        def forge(start: StartRound) -> None:
            for peer in attacker.bystanders:
                attacker.send(peer, StopRound(start.round_id))
                attacker.route_as(peer, start.requester.id, Enrolled(start.round_id, "no data"), start.requester)
                attacker.route_as(start.requester, peer.id, StopRound(start.round_id, b"guess"), peer)
                attacker.route_as(start.requester, peer.id, InviteAnswer(start.round_id, 0, 0), peer)

        attacker.aggregation.on_round = forge
        await ring.is_named(attacker)
