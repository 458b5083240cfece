"""Records between real daemons: writes are signed with the nodes' keys, and checked with their certificates."""

from __future__ import annotations

import asyncio

from peerd.api import Host, RecordOutcome, RecordResult
from peerd.ids import NodeId, format_id
from peerd.testing.daemons import RunningDaemon, daemons, wait_for
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


class Gatekeeper(RecordUser):
    """Lets one node write what is shared, and fails when it is asked about a value that it does not understand."""

    writer: NodeId | None = None

    def start(self, host: Host) -> None:
        """Begin with nothing told."""
        super().start(host)
        self.settled = 0

    def record_allowed(self, key: NodeId, item: bytes, value: bytes | None, writer: NodeId) -> bool:
        """Allow the writer that was named."""
        if value == b"puzzling":
            raise ValueError("a mistake in this plugin")
        return writer == Gatekeeper.writer

    def records_settled(self) -> None:
        """Count the call."""
        self.settled += 1


def gatekeeper(each: RunningDaemon) -> Gatekeeper:
    plugin = each.node.plugins[RecordUser.name]
    assert isinstance(plugin, Gatekeeper)
    return plugin


def settled_roots(running: list[RunningDaemon]) -> list[RunningDaemon]:
    return [each for each in running if gatekeeper(each).host.records.is_settled(KEY)]


def test_a_plugin_judges_who_writes_its_shared_records_and_a_failure_of_it_refuses() -> None:
    async def main() -> None:
        async with asyncio.timeout(60), daemons(3, plugins=lambda index: [Gatekeeper()]) as running:
            one, two, three = running
            Gatekeeper.writer = one.node.peer.id
            await wait_for(lambda: all(gatekeeper(each).settled for each in running))
            await wait_for(lambda: len(settled_roots(running)) == 1)
            [root] = settled_roots(running)
            stored = await done(one, "put", b"mine", TTL_S, shared=True, ack="replicated")
            assert (stored.outcome, stored.copies) == (RecordOutcome.STORED, 3)
            for verb, arguments in (("put", (b"theirs", TTL_S)), ("delete", ())):
                refused = await done(two, verb, *arguments, shared=True)
                assert (refused.outcome, refused.detail) == (RecordOutcome.QUOTA, "not_allowed")
            assert (await done(three, "get")).value == b"mine"
            failed = gatekeeper(root)
            other = next(each for each in running if each is not root)  # the failed plugin is not called back
            refused = await done(other, "put", b"puzzling", TTL_S, shared=True)
            assert (refused.outcome, refused.detail) == (RecordOutcome.QUOTA, "not_allowed")
            await wait_for(lambda: gatekeeper(root) is not failed)
            assert (await done(three, "get")).value == b"mine", "no link was cut, and the plugin is back"

    asyncio.run(main())
