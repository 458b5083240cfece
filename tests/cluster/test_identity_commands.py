"""The identity commands as an operator types them: files by themselves, and against a daemon's admin socket."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path

import httpx
import pytest
import structlog

from peerd.cli.main import main
from peerd.cli.run import load
from peerd.daemon.admin.server import start_admin
from peerd.daemon.identity import ledger_exchange
from peerd.daemon.service import Daemon
from peerd.daemon.storage.database import Database
from peerd.daemon.storage.state_directory import StateDirectory
from peerd.errors import Unavailable
from tests.support.fake_daemon import FakeDaemon
from tests.support.link_rig import until

PATIENCE_S = 20.0


class Operator:
    """Types commands into a thread, so that daemons can run in this process's loop, and reads what they print."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    async def types(self, *arguments: str) -> tuple[int, str]:
        """Exit code, and what it says on standard error."""
        code, _, told = await self._run(*arguments)
        return code, told

    async def ok(self, *arguments: str) -> str:
        """What a command that must succeed prints on standard output."""
        code, printed, told = await self._run(*arguments)
        assert code == 0, (arguments, told)
        return printed

    async def _run(self, *arguments: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        with structlog.testing.capture_logs():  # the daemon's log is not the command's output
            code = await asyncio.to_thread(main, [each.replace("T/", f"{self.folder}/") for each in arguments])
        told = self._capsys.readouterr()
        return code, told.out, told.err

    def daemon(self, name: str) -> Daemon:
        """The daemon of a node that a command made."""
        loaded = load(["--config", str(self.folder / name / "peerd.toml"), "--set", "node.profile=local"])
        return Daemon(loaded, plugins=[], start_admin=start_admin)


@pytest.fixture
def operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(tmp_path, capsys)


async def test_three_commands_make_a_cluster(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await operator.ok("ca", "init", "--dir", "T/ca", "--cluster", "blue")
    assert "fingerprint" in made and "keep it safe" in made
    assert (await operator.types("ca", "init", "--dir", "T/ca"))[0] == 78
    await operator.ok("init", "--dir", "T/a", "--ca", "T/ca", "--issuer", "--listen", "127.0.0.1:0")
    async with operator.daemon("a") as one:
        at_one = ("--socket", "T/a/admin.sock")
        told = await operator.ok("token", "create", "--ttl", "1h", "--out", "T/token", *at_one)
        secret = (operator.folder / "token").read_text()
        assert secret.startswith("peerd1.blue.") and secret.strip() not in told
        assert (operator.folder / "token").stat().st_mode & 0o777 == 0o600
        seed = one.peer.address
        joined = await operator.ok("join", seed, "--token-file", "T/token", "--dir", "T/b", "--listen", "127.0.0.1:0")
        assert "peerd run --config" in joined and seed in joined
        # Again: this machine is a node; elsewhere the token is used up; nothing is left there.
        assert (await operator.types("join", seed, "--token-file", "T/token", "--dir", "T/b"))[0] == 78
        code, told = await operator.types("join", seed, "--token-file", "T/token", "--dir", "T/c")
        assert code == 1 and "used 1 of 1 times" in told
        assert not (operator.folder / "c" / "node.key").exists()
        assert json.loads(await operator.ok("token", "list", "-o", "json", *at_one))["tokens"][0]["state"] == "used_up"
        # Standard input, and a token that is revoked.
        text = (await operator.ok("token", "create", *at_one)).splitlines()[0]
        identifier = json.loads(await operator.ok("token", "list", "-o", "json", *at_one))["tokens"][1]["id"]
        await operator.ok("token", "revoke", identifier, *at_one)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        code, told = await operator.types("join", seed, "--token-file", "-", "--dir", "T/c")
        assert code == 1 and "revoked" in told
        # With --force this machine becomes another node; its configuration stays.
        key = (operator.folder / "b" / "node.key").read_bytes()
        code, told = await operator.types("token", "create", "--out", "T/token", *at_one)
        assert code == 78 and "is there already: --force" in told
        assert len(json.loads(await operator.ok("token", "list", "-o", "json", *at_one))["tokens"]) == 2, (
            "none was made"
        )
        await operator.ok("token", "create", "--out", "T/token", "--force", *at_one)
        told = await operator.ok("join", seed, "--token-file", "T/token", "--dir", "T/b", "--force")
        assert "kept as it is" in told and (operator.folder / "b" / "node.key").read_bytes() != key
        async with operator.daemon("b") as two:
            await until(lambda: one.node.is_ready and two.node.is_ready and len(one.links) == 1, PATIENCE_S)
            code, told = await operator.types("join", seed, "--token-file", "T/token", "--dir", "T/b", "--force")
            assert code == 78 and "another daemon" in told
            shown = await operator.ok("certificate", "show", "--socket", "T/b/admin.sock")
            assert two.identity is not None and seed in shown
            assert "expires in" in await operator.ok("status", "--socket", "T/b/admin.sock")


async def test_renew_deny_and_rotate_by_command(operator: Operator) -> None:
    await operator.ok("init", "--dir", "T/a", "--issuer", "--listen", "127.0.0.1:0")
    at_one, at_two = ("--socket", "T/a/admin.sock"), ("--socket", "T/b/admin.sock")
    async with operator.daemon("a") as one:
        await operator.ok("token", "create", "--out", "T/token", *at_one)
        await operator.ok(
            "join", one.peer.address, "--token-file", "T/token", "--dir", "T/b", "--listen", "127.0.0.1:0"
        )
        async with operator.daemon("b") as two:
            await until(lambda: two.node.is_ready and two.identity and two.identity.offer().issuers, PATIENCE_S)
            await operator.ok("certificate", "renew", *at_two)
            before = json.loads(await operator.ok("certificate", "show", "-o", "json", *at_two))
            await operator.ok("ca", "rotate", "--overlap", "1h", *at_one)
            assert (await operator.types("ca", "rotate", *at_one))[0] == 1
            assert (await operator.types("ca", "rotate", *at_two))[0] == 1
            await until(lambda: two.identity and len(two.identity.ledger.roots.trusted) == 2, PATIENCE_S)
            await operator.ok("certificate", "renew", *at_two)
            after = json.loads(await operator.ok("certificate", "show", "-o", "json", *at_two))
            assert (after["id"], after["cluster"]) == (before["id"], before["cluster"])
            assert after["issued_by"] == after["roots"][0]["fingerprint"] != before["issued_by"]
            assert "previous trusted until" in await operator.ok("ca", "show", "--dir", "T/a/ca")
            assert (await operator.types("deny", after["id"], *at_two))[0] == 1  # no issuer
            assert (await operator.types("deny", before["issued_by"][:8], *at_one))[0] == 2
            code, told = await operator.types("deny", "fade", *at_one)
            assert code == 2 and "nothing that the daemon knows begins with fade" in told
            assert after["id"] in await operator.ok("deny", after["id"][:8], "--reason", "stolen", *at_one)
            assert "stolen" in await operator.ok("deny", "--list", *at_one)
            await until(lambda: not one.links.links(), PATIENCE_S)
            await operator.ok("deny", after["id"][:4], "--undo", *at_one, "--ca", "T/a/ca", "--out", "T/notice")
            await operator.ok("ca", "publish", "T/notice", *at_one)
            assert "nobody" in await operator.ok("deny", "--list", *at_one)
            await until(lambda: one.links.links(), PATIENCE_S)


async def test_a_denial_that_a_full_disk_refuses_is_in_force_and_written_later(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    await operator.ok("init", "--dir", "T/a", "--issuer", "--listen", "127.0.0.1:0")
    at_one, thief = ("--socket", "T/a/admin.sock"), "ab" * 16
    monkeypatch.setattr(ledger_exchange, "SAVE_RETRY_S", 0.0)

    def full(*_: object) -> None:
        raise Unavailable("cannot write state.db: No space left on device")

    async with operator.daemon("a") as one:
        assert one.identity is not None
        with monkeypatch.context() as disk:
            disk.setattr(Database, "change", full)
            code, told = await operator.types("deny", thief, *at_one)
            assert code == 0 and "the issuer's disk refuses it" in told
            assert thief in await operator.ok("deny", "--list", *at_one)
            by_hand = ("deny", "ef" * 16, "--ca", "T/a/ca")
            assert "the daemon's disk refuses it" in (await operator.types(*by_hand, *at_one))[1]
            await operator.ok(*by_hand, "--out", "T/notice")
            code, told = await operator.types("ca", "publish", "T/notice", *at_one)
            assert code == 0 and "the daemon's disk refuses it" in told
            one.identity.tick()
            assert not one.identity.are_notices_saved
        one.identity.tick()
        assert one.identity.are_notices_saved
        assert "disk" not in (await operator.types("deny", "cd" * 16, *at_one))[1]
    async with operator.daemon("a"):
        assert thief in await operator.ok("deny", "--list", *at_one)


async def test_an_offline_ca_needs_no_issuer(operator: Operator) -> None:
    await operator.ok("ca", "init", "--dir", "T/ca", "--cluster", "blue")
    await operator.ok("join", "--csr-out", "T/request", "--dir", "T/a")
    told = await operator.ok("ca", "sign", "T/request", "--out", "T/cert", "--dir", "T/ca")
    assert "cluster blue, until" in told
    await operator.ok("join", "--certificate", "T/cert", "--dir", "T/a", "--listen", "127.0.0.1:0")
    async with operator.daemon("a"):
        at_one = ("--socket", "T/a/admin.sock")
        before = json.loads(await operator.ok("certificate", "show", "-o", "json", *at_one))
        assert (await operator.types("certificate", "renew", *at_one))[0] == 69
        assert (await operator.types("token", "create", *at_one))[0] == 1
        await operator.ok("ca", "rotate", "--overlap", "1h", "--dir", "T/ca")
        await operator.ok("ca", "publish", "T/ca/ca.change", *at_one)
        await operator.ok("join", "--csr-out", "T/request", "--dir", "T/a")
        await operator.ok("ca", "sign", "T/request", "--out", "T/cert", "--dir", "T/ca")
        await operator.ok("certificate", "install", "T/cert", *at_one)
        after = json.loads(await operator.ok("certificate", "show", "-o", "json", *at_one))
        assert after["id"] == before["id"]
        assert after["issued_by"] == after["roots"][0]["fingerprint"] != before["issued_by"]
        assert (await operator.types("certificate", "install", "T/request", *at_one))[0] == 1


async def test_mistakes_have_their_own_exit_codes(operator: Operator) -> None:
    (operator.folder / "garbage").write_text("no token")
    (operator.folder / "token").write_text("peerd1.blue." + "0" * 32 + "." + "0" * 32)
    assert (await operator.types("join", "127.0.0.1:1", "--token-file", "T/token", "--dir", "T/a"))[0] == 69
    assert (await operator.types("join", "127.0.0.1:1", "--token-file", "T/garbage", "--dir", "T/a"))[0] == 78
    assert (await operator.types("join", "127.0.0.1:1", "--token-file", "T/missing", "--dir", "T/a"))[0] == 78
    assert (await operator.types("join", "127.0.0.1:1", "--certificate", "T/garbage", "--dir", "T/a"))[0] == 78
    for usage in (
        ["join", "127.0.0.1:1"],
        ["join", "--token-file", "T/token"],
        ["join", "nonsense", "--token-file", "T/token"],
        ["join", "127.0.0.1:1", "--token-file", "T/token", "--csr-out", "T/x"],
        ["deny"],
        ["deny", "nonsense"],
        ["deny", "0" * 32, "--out", "T/x"],
        ["token", "create", "--ttl", "soon"],
        ["ca", "rotate", "--overlap", "1s", "--dir", "T/ca"],
    ):
        if "rotate" in usage:
            await operator.ok("ca", "init", "--dir", "T/ca")
        assert (await operator.types(*usage))[0] == 2, usage
    with StateDirectory(operator.folder / "busy"):
        code, told = await operator.types("join", "127.0.0.1:1", "--token-file", "T/token", "--dir", "T/busy")
    assert code == 78 and "another daemon" in told


async def test_nothing_that_changes_anything_is_answered_over_tcp() -> None:
    """Every user of the machine reaches loopback; making a token there would make each of them an operator."""
    async with FakeDaemon().http() as http:
        for method, path, body in (
            ("GET", "/v1/tokens", None),
            ("POST", "/v1/tokens", {"life_s": 60}),
            ("DELETE", "/v1/tokens/00000000", None),
            ("POST", "/v1/denials", {"subject": "0" * 32}),
            ("POST", "/v1/ca/rotation", {"overlap_s": 60}),
            ("POST", "/v1/notices", {"notice": "x"}),
            ("POST", "/v1/certificate", {"pem": "x"}),
            ("POST", "/v1/certificate/renewal", None),
        ):
            answer: httpx.Response = await http.request(method, path, json=body)
            assert answer.status_code == 403, (method, path)
        assert (await http.get("/v1/certificate")).status_code == 503  # no TLS in this one, so no certificate
