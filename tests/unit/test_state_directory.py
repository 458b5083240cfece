"""The state directory: what survives a restart, a crash, a full disk and a flipped bit."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from peerd.daemon.storage import database, plugin_store, state_directory
from peerd.daemon.storage.plugin_store import PluginStore
from peerd.daemon.storage.state_directory import StateDirectory
from peerd.daemon.storage.tables import NUMBERS, PEERS as PEERS_TABLE, Row
from peerd.errors import ConfigError, Unavailable
from peerd.ids import NodeId
from peerd.limits import KNOWN_PEERS_MAX, STORE_VALUE_BYTES_MAX
from peerd.messages import PeerRef
from peerd.system.durable_files import write_atomically, write_new_file
from tests.support.disks import full_disk

NOW_S = 1_700_000_000.0
PEERS = [PeerRef(NodeId(7), "192.0.2.7", 7420), PeerRef(NodeId(2**127), "peer.example", 1)]


def opened(path: Path, now_s: float = NOW_S) -> StateDirectory:
    return StateDirectory(path, wall_time=lambda: now_s)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def damaged_files(path: Path) -> list[str]:
    return sorted(entry.name.split(".corrupt-")[0] for entry in path.glob("*.corrupt-*"))


def refused_by_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


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
        assert "0755" in state.closed_off and state.warnings == [], "that is no damage"


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
    leftovers = [path / name for name in (".node.crt.1.tmp", ".state.db.tmp", ".state.db.tmp-wal")]
    for leftover in leftovers:
        leftover.write_bytes(b"half")
    with opened(path):
        assert not any(leftover.exists() for leftover in leftovers)


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
        copy = path.with_name("copy")  # as a kill at this moment would leave it
        copy.mkdir(mode=0o700)
        for name in ("state.db", "state.db-wal"):
            (copy / name).write_bytes((path / name).read_bytes())
    with opened(copy) as state:
        assert state.table(NUMBERS).load(lambda row: row) == [("boot_epoch", epoch)]
        assert state.warnings == []


def test_without_a_durable_epoch_there_is_none(path: Path) -> None:
    with opened(path) as state:
        state.load_known_peers()
        with full_disk(path), pytest.raises(Unavailable, match=r"cannot write .*state\.db"):
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
    "row",
    [
        (0, "zz", "h", 1),
        (0, f"{7:032x}", "h", 65536),
        (0, f"{7:032x}", "h", 0),
        (0, f"{7:032x}", "", 1),
        (0, f"{7:032x}", "x" * 254, 1),
    ],
)
def test_a_known_peer_of_a_wrong_shape_is_left_out(path: Path, row: Row) -> None:
    with opened(path) as state:
        state.save_known_peers(PEERS)
        good = state.table(PEERS_TABLE).load(lambda row: row)[1]
        state.table(PEERS_TABLE).replace([row, good])
    with opened(path) as state:
        assert state.load_known_peers() == PEERS[1:]
        assert len(state.warnings) == 1
        assert "1 rows cannot be used" in state.warnings[0]


@settings(max_examples=12, deadline=None)
@given(lists=st.lists(st.lists(st.integers(1, 9), max_size=6), max_size=6))
def test_a_table_holds_what_it_was_replaced_with_last(
    tmp_path_factory: pytest.TempPathFactory, lists: list[list[int]]
) -> None:
    path = tmp_path_factory.mktemp("peers") / "state"
    for numbers in lists:
        peers = [PeerRef(NodeId(number), "h", number) for number in numbers]
        with opened(path) as state:
            state.save_known_peers([])
            state.save_known_peers(peers)
            assert state.load_known_peers() == peers
        with opened(path) as state:
            assert state.load_known_peers() == peers
            assert state.warnings == []


def test_damaged_files_do_not_pile_up(path: Path) -> None:
    for start in range(20):
        with opened(path, NOW_S + start) as state:
            (path / "state.db").write_bytes(b"bad")
            state.load_known_peers()
    assert len(damaged_files(path)) == state_directory.CORRUPT_FILES_MAX


# Atomic writes


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(*((os, "fsync", refused_by_disk) if function == "fsync" else (Path, "replace", refused_by_disk)))
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


def test_a_full_disk_leaves_no_half_of_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key file of no bytes would be taken for a damaged key by every later start."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refused_by_disk)
        with pytest.raises(OSError, match="No space left"):
            write_new_file(tmp_path / "node.key", b"secret", 0o600)
    assert list(tmp_path.iterdir()) == []
    write_new_file(tmp_path / "node.key", b"secret", 0o600)


def test_a_full_disk_takes_nothing_from_the_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", refused_by_disk)
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


def held_by(store: PluginStore) -> dict[str, bytes | None]:
    keys = store.keys()
    return {key: store.get(key) for key in keys}


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
    with opened(path) as state:
        store = state.plugin_store("demo")
        for key, value in changes:
            if value is None:
                store.delete(key)
                model.pop(key, None)
            else:
                store.put(key, value)
                model[key] = value
            assert held_by(store) == model
        assert store.keys() == sorted(model)
        assert store.bytes_used == sum(len(key.encode()) + len(value) for key, value in model.items())
    with opened(path) as state:
        store = state.plugin_store("demo")
        assert store.keys() == sorted(model)
        assert all(store.get(key) == value for key, value in model.items())
        assert store.bytes_used == sum(len(key.encode()) + len(value) for key, value in model.items())
        assert state.warnings == []


def test_a_small_change_costs_a_few_pages_whatever_the_store_holds(state: StateDirectory, path: Path) -> None:
    store = state.plugin_store("demo")
    store.put("large", bytes(500_000))
    store.put("other", b"x")
    before = (path / "state.db-wal").stat().st_size
    store.put("small", b"x")
    assert (path / "state.db-wal").stat().st_size - before < 4 * 4200


def test_outdated_values_are_cleared_away(state: StateDirectory, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WAL_BYTES_MAX", 200_000)
    store = state.plugin_store("demo")
    for index in range(100):
        store.put("key", bytes([index]) * 50_000)
    on_disk = sum((path / name).stat().st_size for name in ("state.db", "state.db-wal"))
    assert on_disk < 3 * 50_000 + (database.WAL_OVER_MAX + 1) * database.WAL_BYTES_MAX
    assert store.get("key") == bytes([99]) * 50_000


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


def test_after_a_full_disk_nothing_changed_and_the_next_put_works(state: StateDirectory, path: Path) -> None:
    store = state.plugin_store("demo")
    store.put("key", b"old")
    with full_disk(path):
        with pytest.raises(Unavailable, match=r"cannot write .*state\.db"):
            store.put("key", b"new")
        with pytest.raises(Unavailable, match=r"cannot write .*state\.db"):
            store.delete("key")
        assert (store.get("key"), store.keys(), store.bytes_used) == (b"old", ["key"], 6)
    store.put("other", b"1")
    state.close()
    with opened(path) as again:
        store = again.plugin_store("demo")
        assert held_by(store) == {"key": b"old", "other": b"1"}
        assert again.warnings == []


def test_stores_of_plugins_are_apart_and_named_safely(state: StateDirectory) -> None:
    state.plugin_store("one").put("key", b"1")
    assert state.plugin_store("two").get("key") is None
    assert state.plugin_store("one") is state.plugin_store("one")
    for name in ("../escape", "", "a/b", "Upper", "x" * 65):
        with pytest.raises(ValueError, match="plugin name"):
            state.plugin_store(name)


def test_a_temporary_file_that_somebody_left_open_never_gets_the_content(tmp_path: Path) -> None:
    trap = tmp_path / f".secret.{threading.get_ident()}.tmp"
    trap.write_bytes(b"")
    trap.chmod(0o666)
    with trap.open("rb") as watching:
        write_atomically(tmp_path / "secret", b"content", 0o600)
        assert watching.read() == b""
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
