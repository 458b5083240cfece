"""`Host.store.log` in a daemon: durable off the loop, kept across restarts."""

from __future__ import annotations

from pathlib import Path

from peerd.daemon.service import Daemon
from tests.support.both_loops import both_loops
from tests.support.link_rig import until
from tests.support.site import Site
from tests.support.talker import Talker


@both_loops
async def test_a_log_is_kept_across_restarts(tmp_path: Path) -> None:
    site = Site(tmp_path)
    told: list[int] = []
    async with Daemon(site.config("a"), plugins=[talker := Talker()]):
        log = talker.host.store.log("queue")
        for number in range(100):
            log.append(b"%d" % number, told.append)
        assert told == [] and log.durable == 0
        await until(lambda: log.durable == 100)
        assert told == list(range(1, 101))
        log.truncate(90)
        log.append(b"last, and not waited for")
    async with Daemon(site.config("a"), plugins=[talker := Talker()]):
        log = talker.host.store.log("queue")
        expected = [(number + 1, b"%d" % number) for number in range(90, 100)]
        assert log.read(0, 999) == [*expected, (101, b"last, and not waited for")]
        assert log.durable == 101
