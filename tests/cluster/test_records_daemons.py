"""Records between real daemons: writes are signed with the nodes' keys, and checked with their certificates."""

from __future__ import annotations

import asyncio

from peerd.api import RecordOutcome, RecordResult
from peerd.ids import NodeId, format_id
from peerd.testing.daemons import RunningDaemon, daemons
from tests.support.records import TTL_S, RecordUser, key_number

KEY = key_number(0)


def proofs_checked(each: RunningDaemon, outcome: str) -> float:
    value = each.daemon.metrics.registry.get_sample_value("peerd_proofs_checked_total", {"outcome": outcome})
    return value or 0.0


async def done(each: RunningDaemon, verb: str, *arguments: object, **how: object) -> RecordResult:
    """An operation of the plugin of one daemon, and its result."""
    ended: asyncio.Future[RecordResult] = asyncio.get_running_loop().create_future()
    plugin = each.node.plugins[RecordUser.name]
    getattr(plugin.host.records, verb)(KEY, *arguments, ended.set_result, **how)
    return await ended


def test_a_record_is_its_owners_between_daemons_with_certificates() -> None:
    async def main() -> None:
        async with asyncio.timeout(60), daemons(3, plugins=lambda index: [RecordUser()]) as running:
            one, two, three = running
            stored = await done(one, "put", b"mine", TTL_S, ack="replicated")
            assert (stored.outcome, stored.copies, stored.owner) == (RecordOutcome.STORED, 3, one.node.peer.id)
            assert sum(proofs_checked(each, "valid") for each in running) == 3
            for verb, arguments in (("put", (b"theirs", TTL_S)), ("delete", ())):
                refused = await done(two, verb, *arguments)
                assert refused.outcome is RecordOutcome.OWNED
                assert refused.detail == f"it belongs to {format_id(NodeId(one.node.peer.id))}"
            assert (await done(three, "get")).value == b"mine"
            assert (await done(one, "delete", ack="replicated")).outcome is RecordOutcome.STORED
            assert (await done(three, "get")).outcome is RecordOutcome.ABSENT
            assert sum(proofs_checked(each, "valid") for each in running) == 7, (
                "each write by each holder, and by its reader"
            )
            assert sum(proofs_checked(each, "invalid") for each in running) == 0

    asyncio.run(main())
