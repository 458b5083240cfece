"""A member says in a round what others have to say: the requester, or those who take part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocols.aggregation.messages import Enrolled, InviteAnswer, ResultReady, StartRound, StopRound
from tests.hostile.ring import NODES, Ring

pytestmark = pytest.mark.cluster

ANSI = "\x1b[31m"
FORGED_LINE = '{"level": "error", "event": "forged"}'


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


@pytest.mark.long
async def test_a_result_that_it_does_not_have_is_rejected_in_its_name(ring: Ring) -> None:
    """It offers results of as many contributors as there are, and of more."""
    async with ring.attacked() as (attacker, work):

        def offer(start: StartRound) -> None:
            for contributors in (NODES + 1, 3 * NODES):
                attacker.send(start.requester, ResultReady(start.round_id, contributors, 100))

        attacker.aggregation.on_round = offer
        await work.enough()
        assert attacker.peer.id in work.rejected


@pytest.mark.long
async def test_what_it_says_of_itself_stays_one_line_of_the_log(ring: Ring) -> None:
    """It declines each round for a reason with line ends and colours for terminals in it (A26)."""
    async with ring.attacked() as (attacker, work):

        def decline(start: StartRound) -> None:
            attacker.request(start.requester, Enrolled(start.round_id, f"{ANSI}no\n{FORGED_LINE}\n../../etc"))

        attacker.aggregation.on_round = decline
        await work.enough()
    assert log_lines(ring.cluster.layout.logs)


def log_lines(folder: Path) -> int:
    """How many lines the daemons have logged: each is one JSON object, and none was written by the attacker."""
    count = 0
    for file in sorted(folder.glob("[0-9]*.log")):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            assert record.get("event") != "forged"
            assert ANSI not in line
            count += 1
    return count
