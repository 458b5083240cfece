"""The database file: what a crash, a power cut, a flipped bit, another version or another process does to it."""

from __future__ import annotations

import hashlib
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from peerd.daemon.storage import database
from peerd.daemon.storage.database import PAGE_BYTES, Database, lost_changes, make_database, open_database, wal_of
from peerd.daemon.storage.state_directory import StateDirectory
from peerd.daemon.storage.tables import (
    ACCESS_TOKENS,
    FORMAT_VERSION,
    JOIN_TOKENS,
    NOTICES,
    NUMBERS,
    PEERS,
    PLUGIN_VALUES,
    TABLES,
    Row,
    TableSchema,
)
from peerd.errors import ConfigError, Unavailable

SECTOR_BYTES = 512
Content = dict[str, list[Row]]

SAMPLE: Content = {
    NUMBERS.name: [("boot_epoch", 1_700_000_000_000)],
    PEERS.name: [(number, f"{number:032x}", f"192.0.2.{number}", 7420) for number in range(40)],
    JOIN_TOKENS.name: [(f"{number:064x}", 1.5, 2.5, 3, number % 3, 0) for number in range(30)],
    ACCESS_TOKENS.name: [(f"{number:016x}", f"n{number}", "d" * 64, "*", 1.0, 2.0) for number in range(5)],
    NOTICES.name: [(f"deny {number}", 11, bytes([number]) * 200, b"s" * 16, b"t" * 64) for number in range(40)],
    PLUGIN_VALUES.name: [("demo", "large", bytes(range(256)) * 40), ("demo", "ключ", b"small"), ("other", "a", b"")],
}


def filled(path: Path) -> None:
    make_database(path, [(table, row) for table in TABLES for row in SAMPLE[table.name]])


def content(held: Database) -> Content:
    return {table.name: held.rows(table) for table in TABLES}


def sorted_sample() -> Content:
    return {name: sorted(rows) for name, rows in SAMPLE.items()}


def copied(source: Path, target: Path) -> Path:
    """The files as they are on the disk at this moment: what a kill leaves."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for suffix in ("", "-wal"):
        from_path = source.with_name(source.name + suffix)
        if from_path.exists():
            target.with_name(target.name + suffix).write_bytes(from_path.read_bytes())
    return target


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def test_it_holds_what_it_was_given_and_nobody_else_may_read_it(path: Path) -> None:
    filled(path)
    with closing(open_database(path)) as held:
        held.change(PEERS, put=[(99, "id", "host", 1)])
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(wal_of(path).stat().st_mode) == 0o600
        held.change(PEERS, removed=[(99,)])
        assert content(held) == sorted_sample()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "a file that is closed is one file"


def test_every_commit_is_synced_and_the_cache_is_small(path: Path) -> None:
    filled(path)
    with closing(open_database(path)) as held:
        asked = {
            name: held._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("synchronous", "journal_mode", "cache_size", "locking_mode", "secure_delete")
        }
    assert asked == {
        "synchronous": 2,
        "journal_mode": "wal",
        "cache_size": -database.CACHE_KIB,
        "locking_mode": "exclusive",
        "secure_delete": 1,
    }


def test_a_large_log_is_written_into_the_file_by_another_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WAL_BYTES_MAX", 100_000)
    filled(path)
    emptied, names = threading.Event(), []
    empty = Database._empty_log

    def noted(self: Database) -> None:
        names.append(threading.current_thread().name)
        empty(self)
        emptied.set()

    monkeypatch.setattr(Database, "_empty_log", noted)
    with closing(open_database(path)) as held:
        held.change(PLUGIN_VALUES, put=[("demo", "large", bytes(200_000))])
        assert emptied.wait(20)
        held.change(NUMBERS, put=[("next", 1)])
        assert wal_of(path).stat().st_size < 100_000
        assert content(held)[NUMBERS.name] == [("boot_epoch", 1_700_000_000_000), ("next", 1)]
    assert names == ["peerd-state"]


# Kills and power cuts


def test_what_was_changed_is_there_after_a_kill_at_any_moment(path: Path) -> None:
    filled(path)
    with closing(open_database(path)) as held:
        for number in range(200):
            held.change(PLUGIN_VALUES, put=[("demo", f"key{number % 7}", bytes([number]) * 9000)])
            if number % 10 == 0:
                with closing(open_database(copied(path, path.parent / f"kill{number}" / "state.db"))) as again:
                    assert content(again) == content(held)
                    assert (again.torn_bytes, again.lost_changes) == (0, 0)


def sectors(old: bytes, new: bytes, is_new: Callable[[], bool]) -> bytes:
    """What a disk may hold when power fails before a sync: each sector old or new."""
    mixed = bytearray()
    for start in range(0, len(new), SECTOR_BYTES):
        before = old[start : start + SECTOR_BYTES].ljust(min(SECTOR_BYTES, len(new) - start), b"\0")
        mixed += new[start : start + SECTOR_BYTES] if is_new() else before
    return bytes(mixed)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), changes=st.integers(0, 4), pages=st.integers(1, 6))
def test_a_power_cut_in_a_change_costs_that_change_at_most(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, changes: int, pages: int
) -> None:
    folder = tmp_path_factory.mktemp("power")
    path = folder / "state.db"
    filled(path)
    with closing(open_database(path)) as held:
        for number in range(changes):
            held.change(JOIN_TOKENS, put=[(f"{number:064x}", 1.5, 2.5, 3, 3, 1)])
        before, wal = content(held), wal_of(path).read_bytes() if changes else b""
        held.change(PLUGIN_VALUES, put=[("demo", "cut", bytes([data.draw(st.integers(1, 255))]) * 4000 * pages)])
        after, new_wal, main = content(held), wal_of(path).read_bytes(), path.read_bytes()
    assert new_wal.startswith(wal), "what is durable is never written again"
    cut = folder / "cut" / "state.db"
    cut.parent.mkdir()
    cut.write_bytes(main)
    length = data.draw(st.integers(len(wal), len(new_wal)))
    tail = sectors(b"", new_wal[len(wal) : length], lambda: data.draw(st.booleans()))
    wal_of(cut).write_bytes(wal + tail)
    with closing(open_database(cut)) as again:
        assert content(again) in (before, after)
        assert again.lost_changes <= 1
        again.change(NUMBERS, put=[("next", 1)])
        kept = content(again)
    with closing(open_database(cut)) as again:
        assert content(again) == kept
        assert again.torn_bytes == 0


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_power_cut_while_the_log_is_written_into_the_file_costs_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("power")
    path = folder / "state.db"
    filled(path)
    held = open_database(path)
    for number in range(6):
        held.change(NOTICES, put=[(f"deny {number}", 12, bytes(2000), b"s", b"t")], removed=[("deny 30",)])
    wanted, old, wal = content(held), path.read_bytes(), wal_of(path).read_bytes()
    held.close()
    new = path.read_bytes()
    assert old != new
    cut = folder / "cut" / "state.db"
    cut.parent.mkdir()
    cut.write_bytes(sectors(old, new, lambda: data.draw(st.booleans())))
    wal_of(cut).write_bytes(wal)
    with closing(open_database(cut)) as again:
        assert content(again) == wanted
        assert (again.torn_bytes, again.lost_changes) == (0, 0)


# Damage


def damage(data: st.DataObject, whole: bytes) -> bytes:
    bad = bytearray(whole)
    match data.draw(st.sampled_from(["flip", "flips", "truncate", "zero", "extend", "page"])):
        case "flip":
            bit = data.draw(st.integers(0, len(bad) * 8 - 1))
            bad[bit // 8] ^= 1 << bit % 8
        case "flips":
            for bit in data.draw(st.lists(st.integers(0, len(bad) * 8 - 1), min_size=1, max_size=40)):
                bad[bit // 8] ^= 1 << bit % 8
        case "truncate":
            del bad[data.draw(st.integers(0, len(bad) - 1)) :]
        case "zero":
            bad = bytearray(len(bad))
        case "extend":
            bad += data.draw(st.binary(min_size=1, max_size=5000))
        case "page":
            start = data.draw(st.integers(0, len(bad) // PAGE_BYTES - 1)) * PAGE_BYTES
            bad[start : start + PAGE_BYTES] = bytes(PAGE_BYTES)
    return bytes(bad)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_after_any_damage_each_row_is_as_it_was_written_or_the_damage_shows(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damage") / "state"
    folder.mkdir(mode=0o700)
    path = folder / "state.db"
    filled(path)
    path.write_bytes(damage(data, path.read_bytes()))
    wanted = sorted_sample()
    with StateDirectory(folder) as state:
        found = content(state._database)
        assert all(set(found[name]) <= set(wanted[name]) for name in wanted), "nothing is made up"
        if found != wanted:
            assert state.warnings, "what is lost is told"
        if state.warnings:
            assert list(folder.glob("state.db.corrupt-*")), "and kept for inspection"
        state._database.change(NUMBERS, put=[("next", 1)])
    with StateDirectory(folder) as state:
        assert ("next", 1) in state._database.rows(NUMBERS)
        assert state.warnings == [], "once is enough"


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_damaged_log_yields_an_earlier_state_and_says_so(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    path = folder / "state.db"
    filled(path)
    history = []
    with closing(open_database(path)) as held:
        history.append(content(held))
        for number in range(5):
            held.change(PLUGIN_VALUES, put=[("demo", f"key{number % 3}", bytes([number]) * 3000)])
            history.append(content(held))
        copied(path, folder / "bad" / "state.db")
    bad = folder / "bad" / "state.db"
    wal = bytearray(wal_of(bad).read_bytes())
    bit = data.draw(st.integers(0, len(wal) * 8 - 1))
    wal[bit // 8] ^= 1 << bit % 8
    wal_of(bad).write_bytes(wal)
    with closing(open_database(bad)) as again:
        assert content(again) in history[:-1]
        assert again.torn_bytes > 0


def test_a_log_that_lost_more_than_a_crash_can_cut_gives_no_token_back(tmp_path: Path) -> None:
    folder, lost = tmp_path / "state", tmp_path / "lost"
    folder.mkdir(mode=0o700)
    filled(folder / "state.db")
    with StateDirectory(folder) as state:
        for uses in (1, 2, 3):
            state._database.change(JOIN_TOKENS, put=[("f" * 64, 1.5, 2.5, 3, uses, 0)])
        copied(folder / "state.db", lost / "state.db")
    wal = bytearray((lost / "state.db-wal").read_bytes())
    wal[100] ^= 1  # in the first of the three changes: SQLite drops the others with it
    (lost / "state.db-wal").write_bytes(wal)
    with StateDirectory(lost) as state:
        found = content(state._database)
        assert (found[JOIN_TOKENS.name], found[ACCESS_TOKENS.name]) == ([], [])
        assert found[NOTICES.name] == sorted_sample()[NOTICES.name]
        assert "3 changes are lost" in state.warnings[1]
        assert next(lost.glob("state.db-wal.corrupt-*")).read_bytes() == wal


def test_a_damaged_file_with_a_log_beside_it_gives_no_token_back(tmp_path: Path) -> None:
    folder, lost = tmp_path / "state", tmp_path / "lost"
    folder.mkdir(mode=0o700)
    filled(folder / "state.db")
    with StateDirectory(folder) as state:
        state._database.change(JOIN_TOKENS, put=[("f" * 64, 1.5, 2.5, 3, 3, 0)])
        copied(folder / "state.db", lost / "state.db")
    whole = (lost / "state.db").read_bytes()
    (lost / "state.db").write_bytes(whole.replace(b"192.0.2.7", b"192.0.2.8"))
    with StateDirectory(lost) as state:
        found = content(state._database)
        assert (found[JOIN_TOKENS.name], found[ACCESS_TOKENS.name]) == ([], [])
        assert found[NOTICES.name] == sorted_sample()[NOTICES.name]
        assert "keeping the 83 rows" in state.warnings[0]


def test_a_log_whose_first_bytes_are_damaged_counts_as_a_whole(path: Path) -> None:
    filled(path)
    with closing(open_database(path)) as held:
        for number in range(3):
            held.change(NUMBERS, put=[("n", number)])
        wal = wal_of(path).read_bytes()
    assert lost_changes(wal, 0) == 3
    assert lost_changes(b"\xff" * 32 + wal[32:], 0) == 3
    assert lost_changes(wal, 2) == 1
    assert lost_changes(wal[: len(wal) - 1], 2) == lost_changes(b"", 0) == lost_changes(b"short", 0) == 0


def test_of_a_damaged_file_the_good_rows_of_each_table_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    path = folder / "state.db"
    filled(path)
    whole = path.read_bytes()
    place = whole.index(b"192.0.2.7")
    path.write_bytes(whole[:place] + b"192.0.2.8" + whole[place + 9 :])
    with StateDirectory(folder) as state:
        found, wanted = content(state._database), sorted_sample()
        assert [row for row in wanted[PEERS.name] if row not in found[PEERS.name]] == [
            (7, f"{7:032x}", "192.0.2.7", 7420)
        ]
        assert {**found, PEERS.name: []} == {**wanted, PEERS.name: []}
        assert "a row of peers is not as it was written; keeping the 118 rows" in state.warnings[0]


# Other versions, other things in its place, other processes


def meddle(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def test_a_file_of_a_later_version_is_set_aside_whole_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    path = folder / "state.db"
    filled(path)
    meddle(path, "PRAGMA user_version = 9")
    with StateDirectory(folder) as state:
        assert content(state._database) == {table.name: [] for table in TABLES}
        assert f"format version 9, this peerd reads {FORMAT_VERSION}; starting without it" in state.warnings[0]
    [aside] = folder.glob("state.db.corrupt-*")
    meddle(aside, f"PRAGMA user_version = {FORMAT_VERSION}")
    aside.replace(path)
    with closing(open_database(path)) as held:
        assert content(held) == sorted_sample(), "put back under its name it is all there"


@pytest.mark.parametrize(
    "statement",
    ["CREATE TABLE more (a)", "DROP TABLE peers", "PRAGMA application_id = 7", "CREATE INDEX i ON peers (host)"],
)
def test_a_file_with_other_tables_is_repaired(tmp_path: Path, statement: str) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    filled(folder / "state.db")
    meddle(folder / "state.db", statement)
    with StateDirectory(folder) as state:
        found, wanted = content(state._database), sorted_sample()
        assert found == ({**wanted, PEERS.name: []} if "DROP" in statement else wanted)
        assert len(state.warnings) == 1


def test_a_directory_in_its_place_is_named_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    (folder / "state.db" / "precious").mkdir(parents=True)
    with StateDirectory(folder) as state, pytest.raises(ConfigError, match="is a directory") as caught:
        state.load_known_peers()
    assert caught.value.file == str(folder / "state.db")
    assert (folder / "state.db" / "precious").is_dir()


def test_a_directory_in_the_logs_place_is_named(path: Path) -> None:
    filled(path)
    wal_of(path).mkdir()
    with pytest.raises(ConfigError, match="Is a directory") as caught:
        open_database(path)
    assert caught.value.file == str(wal_of(path))


def test_who_has_it_open_already_keeps_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.0)
    filled(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ConfigError, match="another process has it open"):
            open_database(path)
    with closing(open_database(path)) as held:
        assert content(held) == sorted_sample()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_READONLY, r"it cannot be written"),
        (sqlite3.SQLITE_IOERR_READ, r"the disk refuses"),
        (sqlite3.SQLITE_CANTOPEN, r"cannot be opened"),
        (sqlite3.SQLITE_PERM, r"Permission denied"),
    ],
)
def test_what_the_disk_says_is_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: str) -> None:
    filled(path)
    before = hashlib.sha256(path.read_bytes()).digest()

    def refuse(*_: Any) -> None:
        error = sqlite3.OperationalError("as SQLite puts it")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(database, "_check", refuse)
    with pytest.raises(ConfigError, match=expected):
        open_database(path)
    assert hashlib.sha256(path.read_bytes()).digest() == before


def test_a_change_that_fails_halfway_is_undone(path: Path) -> None:
    filled(path)

    def rows() -> Iterator[Row]:
        yield ("boot_epoch", 5)
        raise RuntimeError("in the middle")

    with closing(open_database(path)) as held:
        with pytest.raises(RuntimeError, match="in the middle"):
            held.change(NUMBERS, put=rows(), removed=[("boot_epoch",)])
        assert content(held) == sorted_sample()
        with pytest.raises(Unavailable, match="cannot write"):
            held.change(NUMBERS, put=[("boot_epoch", "no number")])
        assert content(held) == sorted_sample()


def test_a_new_file_is_whole_or_not_there(path: Path) -> None:
    def rows() -> Iterator[tuple[TableSchema, Row]]:
        yield NUMBERS, ("n", 1)
        assert not path.exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_database(path, rows())
    assert list(path.parent.iterdir()) == []
    filled(path)
    with closing(open_database(path)) as held:
        assert content(held) == sorted_sample()


def test_an_sqlite_without_strict_tables_will_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_IS_STRICT", False)
    filled(path)
    with closing(open_database(path)) as held:
        assert content(held) == sorted_sample()
