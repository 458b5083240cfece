"""A state directory of peerd 0.1: what its files hold is there after the first start, and the files are gone."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from pathlib import Path

import msgpack
import pytest

from peerd.daemon.http.access_book import AccessToken
from peerd.daemon.storage.old_files import DamagedFile, read_store
from peerd.daemon.storage.state_directory import StateDirectory
from peerd.daemon.storage.tables import ACCESS_TOKENS, JOIN_TOKENS, NOTICES
from peerd.errors import ConfigError
from peerd.identity.ledger import kept_notice
from peerd.identity.tokens import TokenEntry
from peerd.ids import NodeId
from peerd.messages import PeerRef

EPOCH = 1_700_000_000_000
DIGEST = hashlib.sha256(b"secret").hexdigest()
TOKEN = TokenEntry(DIGEST, 1000.0, 2000.5, 3, 2, ("member", "publisher"), False)
ACCESS = AccessToken("ab" * 8, "dashboard", DIGEST, ("aggregation:read",), 5.0, 6.0)
TOKEN_ROW = {
    "digest": DIGEST,
    "created_at": 1000,
    "expires_at": 2000.5,
    "uses_max": 3,
    "uses": 2,
    "roles": ["member", "publisher"],
    "is_revoked": False,
}
ACCESS_ROW = {
    "id": "ab" * 8,
    "name": "dashboard",
    "digest": DIGEST,
    "scopes": ["aggregation:read"],
    "created_at": 5,
    "expires_at": 6.0,
}
NAMES = ["access-tokens.json", "boot-epoch", "known-peers.json", "store-demo.log", "tokens.json", "trust-records.json"]


def state_file(body: bytes) -> bytes:
    return b"peerd-state 1 %s\n" % hashlib.sha256(body).hexdigest().encode() + body


def entry(key: str, value: bytes | None) -> bytes:
    payload: bytes = msgpack.packb([key, value])
    return zlib.crc32(payload).to_bytes(4, "big") + len(payload).to_bytes(4, "big") + payload


STORE = b"peerd-store 1\n" + entry("kept", b"1") + entry("gone", b"2") + entry("gone", None) + entry("kept", b"3")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As a daemon of 0.1 left it."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    peers = [{"id": f"{number:032x}", "host": "192.0.2.1", "port": number} for number in (9, 3, 5)]
    notice = [11, *(base64.b64encode(part).decode() for part in (b"body", b"s" * 16, b"t" * 64))]
    for name, rows in (
        ("known-peers.json", peers),
        ("tokens.json", [TOKEN_ROW]),
        ("access-tokens.json", [ACCESS_ROW]),
        ("trust-records.json", [notice]),
    ):
        (folder / name).write_bytes(state_file(json.dumps(rows).encode()))
    (folder / "boot-epoch").write_bytes(state_file(b"%d\n" % EPOCH))
    (folder / "store-demo.log").write_bytes(STORE)
    return folder


def test_everything_is_taken_over_once(folder: Path) -> None:
    for start in range(2):
        with StateDirectory(folder, wall_time=lambda: 0.0) as state:
            assert state.load_known_peers() == [PeerRef(NodeId(number), "192.0.2.1", number) for number in (9, 3, 5)]
            assert state.boot_epoch() == EPOCH + 1 + start
            assert state.table(JOIN_TOKENS).load(TokenEntry.from_row) == [TOKEN]
            assert state.table(ACCESS_TOKENS).load(AccessToken.from_row) == [ACCESS]
            [notice] = state.table(NOTICES).load(kept_notice)
            assert (notice.type_id, notice.body, notice.signer, notice.signature) == (11, b"body", b"s" * 16, b"t" * 64)
            store = state.plugin_store("demo")
            assert (store.keys(), store.get("kept")) == (["kept"], b"3")
            assert sorted(state.taken_over) == ([] if start else NAMES)
            assert state.warnings == []
    assert sorted(entry.name for entry in folder.iterdir()) == ["lock", "state.db"]


def test_a_damaged_old_file_is_set_aside_and_the_others_are_taken_over(folder: Path) -> None:
    content = (folder / "tokens.json").read_bytes()
    (folder / "tokens.json").write_bytes(content[:-1] + b"!")
    (folder / "store-demo.log").write_bytes(STORE[:-2])
    with StateDirectory(folder) as state:
        assert state.table(JOIN_TOKENS).load(TokenEntry.from_row) == []
        assert len(state.load_known_peers()) == 3
        assert state.plugin_store("demo").get("kept") == b"1", "what came before the damage"
        assert len(state.warnings) == 2
    asides = sorted(path.name.split(".corrupt-")[0] for path in folder.glob("*.corrupt-*"))
    assert asides == ["store-demo.log", "tokens.json"]


@pytest.mark.parametrize("body", [b"{}", b"[1]", b"not json", b"\xff", b'[{"id": 1}]', b"[null]"])
def test_an_old_file_of_a_wrong_shape_is_set_aside(folder: Path, body: bytes) -> None:
    (folder / "known-peers.json").write_bytes(state_file(body))
    with StateDirectory(folder) as state:
        assert state.load_known_peers() == []
        assert len(state.warnings) == (0 if body == b"{}" else 1)
        assert len(state.table(JOIN_TOKENS).load(TokenEntry.from_row)) == 1


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("boot-epoch", b"Infinity"),
        ("boot-epoch", b"9223372036854775808"),
        ("known-peers.json", b'[{"id": "\\ud800", "host": "192.0.2.1", "port": 1}]'),
        ("known-peers.json", b'[{"id": "a", "host": "b", "port": 1e400}]'),
        ("known-peers.json", b"[" * 100_000),
        ("access-tokens.json", b'[{"id": 1, "name": 2, "digest": 3, "scopes": [], "created_at": 1, "expires_at": 2}]'),
        ("access-tokens.json", json.dumps([{**ACCESS_ROW, "expires_at": "nan"}]).encode()),
        ("tokens.json", json.dumps([{**TOKEN_ROW, "created_at": float("nan")}]).encode()),
    ],
)
def test_an_old_file_with_values_that_no_row_can_have_is_set_aside(folder: Path, name: str, body: bytes) -> None:
    """Found by the fuzzer: such a file, rightly signed by its digest, kept the daemon from starting."""
    (folder / name).write_bytes(state_file(body))
    with StateDirectory(folder) as state:
        assert state.boot_epoch() > 0
        assert len(state.warnings) == 1 and name in state.warnings[0]


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\xa1count", b"\x92\xa1\xff\xc0", b"\x91" * 2000])
def test_an_old_store_with_a_record_that_is_no_msgpack_keeps_what_came_before(folder: Path, payload: bytes) -> None:
    """Found by the fuzzer: its checksum is right, and nothing says that its content is."""
    record = zlib.crc32(payload).to_bytes(4, "big") + len(payload).to_bytes(4, "big") + payload
    (folder / "store-demo.log").write_bytes(b"peerd-store 1\n" + entry("kept", b"1") + record + entry("kept", b"2"))
    with StateDirectory(folder) as state:
        assert state.plugin_store("demo").get("kept") == b"1"
        assert len(state.warnings) == 1


def test_a_directory_in_the_place_of_an_old_file_is_named_and_nothing_is_lost(folder: Path) -> None:
    (folder / "known-peers.json").unlink()
    (folder / "known-peers.json").mkdir()
    before = sorted(entry.name for entry in folder.iterdir())
    with StateDirectory(folder) as state, pytest.raises(ConfigError, match="Is a directory") as caught:
        state.boot_epoch()
    assert caught.value.file == str(folder / "known-peers.json")
    assert sorted(entry.name for entry in folder.iterdir() if entry.name != "lock") == before


def test_an_old_store_is_read_up_to_its_damage() -> None:
    for cut in range(len(STORE)):
        with_damage = STORE[:cut]
        try:
            entries = read_store(with_damage)
        except DamagedFile as error:
            entries = error.entries
        assert entries in ({}, {"kept": b"1"}, {"kept": b"1", "gone": b"2"})
    assert read_store(STORE) == {"kept": b"3"}
