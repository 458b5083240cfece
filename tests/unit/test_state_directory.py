"""The state directory: what survives a restart, a crash, a full disk and a flipped bit."""

from __future__ import annotations

import errno
import os
import stat
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from peerd.daemon.storage import plugin_store, state_directory
from peerd.daemon.storage.plugin_store import DamagedStore, PluginStore, read_store
from peerd.daemon.storage.state_directory import StateDirectory
from peerd.errors import ConfigError, Unavailable
from peerd.ids import NodeId
from peerd.limits import KNOWN_PEERS_MAX, STORE_VALUE_BYTES_MAX
from peerd.messages import PeerRef
from peerd.system.durable_files import write_atomically, write_new_file

NOW_S = 1_700_000_000.0
PEERS = [PeerRef(NodeId(7), "192.0.2.7", 7420), PeerRef(NodeId(2**127), "peer.example", 1)]


def opened(path: Path, now_s: float = NOW_S) -> StateDirectory:
    return StateDirectory(path, wall_time=lambda: now_s)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def damaged_files(path: Path) -> list[str]:
    return sorted(entry.name.split(".corrupt-")[0] for entry in path.glob("*.corrupt-*"))


# Directory and lock


def test_the_directory_is_made_private(path: Path) -> None:
    with opened(path / "deeper") as state:
        assert stat.S_IMODE(state.path.stat().st_mode) == 0o700
        assert state.warnings == []


def test_a_directory_open_to_others_is_closed_and_reported(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)
    with opened(path) as state:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert "0755" in state.warnings[0]


def test_two_daemons_cannot_share_a_directory(path: Path) -> None:
    with opened(path):
        with pytest.raises(ConfigError, match=rf"another daemon \(process {os.getpid()}\)") as caught:
            opened(path)
        assert caught.value.key == "node.state_dir"
    opened(path).close()


def test_a_refused_second_daemon_does_not_take_the_first_ones_lock(path: Path) -> None:
    with opened(path):
        for _ in range(2):
            with pytest.raises(ConfigError, match="another daemon"):
                opened(path)


def test_a_file_where_the_directory_should_be(path: Path) -> None:
    path.write_text("in the way")
    with pytest.raises(ConfigError, match="state directory"):
        opened(path)


def test_leftovers_of_a_crash_are_removed(path: Path) -> None:
    path.mkdir(mode=0o700)
    (path / ".boot-epoch.tmp").write_bytes(b"half")
    with opened(path):
        assert not (path / ".boot-epoch.tmp").exists()


# Boot epoch


def test_the_first_boot_epoch_is_the_wall_clock(path: Path) -> None:
    with opened(path) as state:
        assert state.boot_epoch() == state.boot_epoch() == 1_700_000_000_000


@pytest.mark.parametrize("clock_step_s", [3600.0, 0.0, -3600.0, -NOW_S])
def test_the_boot_epoch_grows_whatever_the_clock_does(path: Path, clock_step_s: float) -> None:
    with opened(path) as state:
        first = state.boot_epoch()
    with opened(path, NOW_S + clock_step_s) as state:
        assert state.boot_epoch() == max(first + 1, int((NOW_S + clock_step_s) * 1000))


def test_the_boot_epoch_is_on_disk_before_it_is_used(path: Path) -> None:
    with opened(path) as state:
        epoch = state.boot_epoch()
        assert (path / "boot-epoch").read_bytes().endswith(b"%d\n" % epoch)


def test_without_a_durable_epoch_there_is_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as state:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", disk_full)
            with pytest.raises(Unavailable, match="No space left"):
                state.boot_epoch()
        assert state.boot_epoch() == 1_700_000_000_000


# Known peers


def test_known_peers_survive_a_restart_in_order(path: Path) -> None:
    with opened(path) as state:
        assert state.load_known_peers() == []
        state.save_known_peers(PEERS)
    with opened(path) as state:
        assert state.load_known_peers() == PEERS
        assert state.warnings == []


def test_known_peers_are_bounded(path: Path) -> None:
    many = [PeerRef(NodeId(index), "x" * 253, 65535) for index in range(KNOWN_PEERS_MAX + 5)]
    with opened(path) as state:
        state.save_known_peers(many)
        assert state.load_known_peers() == many[:KNOWN_PEERS_MAX]


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[1]",
        b'[{"id": "zz", "host": "h", "port": 1}]',
        b'[{"id": "00000000000000000000000000000007", "host": "h", "port": 65536}]',
        b'[{"id": "00000000000000000000000000000007", "host": "", "port": 1}]',
        b"not json",
        b"\xff\xfe",
    ],
)
def test_known_peers_of_a_wrong_shape_are_set_aside(path: Path, body: bytes) -> None:
    with opened(path) as state:
        state.write("known-peers.json", body)
        assert state.load_known_peers() == []
        assert len(state.warnings) == 1
        assert damaged_files(path) == ["known-peers.json"]
        assert not (path / "known-peers.json").exists()


# Damage


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_damage_to_a_state_file_shows(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("damage") / "state"
    with opened(path) as state:
        epoch = state.boot_epoch()
        state.save_known_peers(PEERS)
    for name in ("boot-epoch", "known-peers.json"):
        content = bytearray((path / name).read_bytes())
        match data.draw(st.sampled_from(["flip", "truncate", "zero", "extend"])):
            case "flip":
                bit = data.draw(st.integers(0, len(content) * 8 - 1))
                content[bit // 8] ^= 1 << bit % 8
            case "truncate":
                del content[data.draw(st.integers(0, len(content) - 1)) :]
            case "zero":
                content = bytearray(len(content))
            case "extend":
                content += data.draw(st.binary(min_size=1, max_size=5000))
        (path / name).write_bytes(content)
    with opened(path, NOW_S + 1) as state:
        assert state.boot_epoch() > epoch
        assert state.load_known_peers() == []
        assert len(state.warnings) == 2
        assert damaged_files(path) == ["boot-epoch", "known-peers.json"]


def test_a_file_of_a_later_version_is_set_aside_and_named(path: Path) -> None:
    with opened(path) as state:
        state.save_known_peers(PEERS)
        content = (path / "known-peers.json").read_bytes()
        (path / "known-peers.json").write_bytes(content.replace(b"peerd-state 1 ", b"peerd-state 2 "))
        assert state.load_known_peers() == []
        assert "format version 2" in state.warnings[0]


def test_damaged_files_do_not_pile_up(path: Path) -> None:
    for start in range(20):
        with opened(path, NOW_S + start) as state:
            (path / "known-peers.json").write_bytes(b"bad")
            state.load_known_peers()
    assert len(damaged_files(path)) == state_directory.CORRUPT_FILES_MAX


# Atomic writes


def disk_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(*((os, "fsync", disk_full) if function == "fsync" else (Path, "replace", disk_full)))
        with pytest.raises(OSError, match="No space left"):
            write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_write_is_synced_before_the_rename_and_the_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def record_fsync(descriptor: int) -> None:
        steps.append("sync directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
        fsync(descriptor)

    def record_replace(self: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", record_replace)
    write_atomically(tmp_path / "file", b"content")
    assert steps == ["sync file", "rename", "sync directory"]


def test_a_new_file_has_its_mode_whatever_the_umask_and_is_not_overwritten(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_new_file(tmp_path / "public", b"x", 0o644)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "public").stat().st_mode) == 0o644
    with pytest.raises(FileExistsError):
        write_new_file(tmp_path / "public", b"y", 0o644)


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_no_half_of_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key file of no bytes would be taken for a damaged key by every later start."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match="No space left"):
            write_new_file(tmp_path / "node.key", b"secret", 0o600)
    assert list(tmp_path.iterdir()) == []
    write_new_file(tmp_path / "node.key", b"secret", 0o600)


def test_a_full_disk_takes_nothing_from_the_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", full_disk)
    with opened(path), pytest.raises(ConfigError, match="another daemon"):
        opened(path)


def test_another_users_directory_is_named_as_such(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.mkdir(mode=0o700)
    owner = path.stat().st_uid

    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(ConfigError, match=f"denied; the directory is user {owner}'s, this daemon runs as {owner + 1}"):
        opened(path)


# Plugin stores


@pytest.fixture
def state(path: Path) -> Iterator[StateDirectory]:
    with opened(path) as state:
        yield state


def reread(path: Path, plugin: str = "demo") -> dict[str, bytes]:
    return read_store((path / f"store-{plugin}.log").read_bytes())


@settings(max_examples=30, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(["a", "b", "ключ", ""]), st.one_of(st.none(), st.binary(max_size=50))), max_size=25
    )
)
def test_a_store_is_a_durable_map(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, bytes | None]]
) -> None:
    path = tmp_path_factory.mktemp("store") / "state"
    model: dict[str, bytes] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugin_store, "SNAPSHOT_SLACK_BYTES", 100)  # so that snapshots happen among the changes
        with opened(path) as state:
            store = state.plugin_store("demo")
            for key, value in changes:
                if value is None:
                    store.delete(key)
                    model.pop(key, None)
                else:
                    store.put(key, value)
                    model[key] = value
                on_disk = reread(path) if (path / "store-demo.log").exists() else {}
                assert on_disk == model
            assert store.keys() == sorted(model)
            assert store.bytes_used == sum(len(key.encode()) + len(value) for key, value in model.items())
    with opened(path) as state:
        store = state.plugin_store("demo")
        assert store.keys() == sorted(model)
        assert all(store.get(key) == value for key, value in model.items())
        assert state.warnings == []


def test_a_small_change_costs_its_own_size(state: StateDirectory, path: Path) -> None:
    store = state.plugin_store("demo")
    store.put("large", bytes(500_000))
    before = (path / "store-demo.log").stat()
    store.put("small", b"x")
    after = (path / "store-demo.log").stat()
    assert after.st_ino == before.st_ino
    assert after.st_size - before.st_size < 50


def test_outdated_records_are_cleared_away(state: StateDirectory, path: Path) -> None:
    store = state.plugin_store("demo")
    for index in range(40):
        store.put("key", bytes([index]) * 50_000)
    assert (path / "store-demo.log").stat().st_size < 3 * 50_000 + plugin_store.SNAPSHOT_SLACK_BYTES
    assert reread(path) == {"key": bytes([39]) * 50_000}


def test_a_torn_last_record_costs_only_itself(state: StateDirectory, path: Path) -> None:
    state.plugin_store("demo").put("kept", b"1")
    state.plugin_store("demo").put("torn", b"2" * 100)
    state.close()
    content = (path / "store-demo.log").read_bytes()
    (path / "store-demo.log").write_bytes(content[:-10])
    with opened(path) as restarted:
        store = restarted.plugin_store("demo")
        assert store.keys() == ["kept"]
        assert "keeping the 1 entries" in restarted.warnings[0]
        assert reread(path) == {"kept": b"1"}
        store.put("more", b"3")
    assert reread(path) == {"kept": b"1", "more": b"3"}
    assert damaged_files(path) == ["store-demo.log"]


@settings(max_examples=60, deadline=None)
@given(bit=st.integers(0, 10_000), cut=st.integers(0, 1000))
def test_a_damaged_store_yields_an_earlier_state_or_says_so(bit: int, cut: int) -> None:
    history: list[dict[str, bytes]] = [{}]
    content = b"peerd-store 1\n"
    for index in range(5):
        content += plugin_store._encode(f"key{index % 3}", bytes([index]) * 4)
        history.append({**history[-1], f"key{index % 3}": bytes([index]) * 4})
    damaged = bytearray(content)
    damaged[bit % (len(content) * 8) // 8] ^= 1 << bit % 8
    del damaged[len(damaged) - cut % 20 :]
    with pytest.raises(DamagedStore) as caught:
        read_store(bytes(damaged))
    assert caught.value.entries in history


def test_limits_refuse_and_change_nothing(state: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_store, "STORE_BYTES_MAX", 100)
    monkeypatch.setattr(plugin_store, "STORE_KEYS_MAX", 2)
    store = state.plugin_store("demo")
    store.put("a", b"1" * 49)
    store.put("b", b"1" * 49)
    for key, value in [("c", b""), ("a", b"1" * 50), ("k" * 257, b""), ("b", bytes(STORE_VALUE_BYTES_MAX + 1))]:
        with pytest.raises(Unavailable, match="store"):
            store.put(key, value)
    assert (store.keys(), store.bytes_used) == (["a", "b"], 100)
    store.put("a", b"")
    store.put("b", b"1" * 98)


def test_after_a_full_disk_nothing_changed_and_the_next_put_works(
    state: StateDirectory, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = state.plugin_store("demo")
    store.put("key", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", disk_full)
        with pytest.raises(Unavailable, match="No space left"):
            store.put("key", b"new")
        patch.setattr(os, "fsync", disk_full)
        with pytest.raises(Unavailable, match="No space left"):
            store.delete("key")
    assert store.get("key") == b"old"
    store.put("other", b"1")
    assert reread(path) == {"key": b"old", "other": b"1"}


def test_stores_of_plugins_are_apart_and_named_safely(state: StateDirectory) -> None:
    state.plugin_store("one").put("key", b"1")
    assert state.plugin_store("two").get("key") is None
    assert state.plugin_store("one") is state.plugin_store("one")
    for name in ("../escape", "", "a/b", "Upper", "x" * 65):
        with pytest.raises(ValueError, match="plugin name"):
            state.plugin_store(name)


def test_records_that_are_valid_but_no_entries_are_damage(tmp_path: Path) -> None:
    store = PluginStore(tmp_path / "log", {})
    store.put("key", b"1")
    content = (tmp_path / "log").read_bytes()
    store.close()
    for payload in (b"\xc0", b"\x92\xa1k\x01", b"\xc1", b"\x91\xa1k"):
        record = plugin_store._RECORD.pack(zlib.crc32(payload), len(payload)) + payload
        with pytest.raises(DamagedStore) as caught:
            read_store(content + record)
        assert caught.value.entries == {"key": b"1"}


def test_a_temporary_file_that_somebody_left_open_never_gets_the_content(tmp_path: Path) -> None:
    trap = tmp_path / f".secret.{threading.get_ident()}.tmp"
    trap.write_bytes(b"")
    trap.chmod(0o666)
    with trap.open("rb") as watching:
        write_atomically(tmp_path / "secret", b"content", 0o600)
        assert watching.read() == b""
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
