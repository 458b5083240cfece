"""Rows on disk, and the logs that belong to them: what is damaged, what is used again, and what was lost."""

from __future__ import annotations

import pytest

from peerd.errors import Unavailable
from peerd.lib.saved import LoggedRow, LoggedRows, Rows, SavedRow, records
from peerd.testing.host import FakeHost, FakeStore


class Note(SavedRow):
    text: str
    likes: int = 0


def logged(host: FakeHost) -> LoggedRows[LoggedRow]:
    rows = LoggedRows(host.store, "log.", LoggedRow, "l-{:02}", 2)
    rows.load()
    return rows


def add(rows: LoggedRows[LoggedRow], name: str) -> LoggedRow | None:
    if (free := rows.free()) is None:
        return None
    slot, log = free
    rows.save(name, LoggedRow(slot=slot, base=log.next - 1))
    return rows[name]


@pytest.mark.parametrize("keeps_damaged", [False, True])
def test_a_row_that_makes_no_sense_is_counted_and_removed_or_left(keeps_damaged: bool) -> None:
    host = FakeHost(1)
    Rows(host.store, "note.", Note).save("a", Note(text="x"))
    host.store.put("note.b", b'{"likes": 1}')
    host.store.put("other.c", b"")
    rows = Rows(host.store, "note.", Note)
    assert rows.load(keeps_damaged=keeps_damaged) == 1
    assert rows == {"a": Note(text="x")}
    assert ("note.b" in host.store.keys()) is keeps_damaged and "other.c" in host.store.keys()  # noqa: SIM118  a store is no mapping


def test_what_changes_nothing_is_not_written_and_a_disk_that_refuses_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = Rows(FakeHost(1).store, "note.", Note)
    rows.save("a", Note(text="x"))

    def refuse(store: FakeStore, key: str, value: bytes = b"") -> None:
        raise Unavailable("the disk refuses")

    monkeypatch.setattr(FakeStore, "put", refuse)
    monkeypatch.setattr(FakeStore, "delete", refuse)
    rows.change("a", text="x")
    with pytest.raises(Unavailable):
        rows.change("a", likes=1)
    with pytest.raises(Unavailable):
        rows.remove("a")
    assert rows == {"a": Note(text="x")}
    rows.drop("a")
    rows.remove("a")
    assert rows == {}


def test_a_log_is_used_again_and_what_an_earlier_row_left_does_not_count() -> None:
    host = FakeHost(1)
    rows = logged(host)
    row = add(rows, "a")
    assert row is not None and add(rows, "b") is not None and add(rows, "c") is None
    log, base = rows.log_of(row)
    for number in range(5):
        log.append(b"%d" % number)
    host.run_later()
    assert [record for _, record in records(log, base + 3)] == [b"3", b"4"]
    rows.remove("a")
    again = add(logged(host), "d")
    assert again is not None and (again.slot, again.base) == (row.slot, 5)
    log, base = rows.log_of(again)
    assert list(records(log, base)) == []


def test_where_the_log_was_lost_its_numbers_begin_anew() -> None:
    host = FakeHost(1)
    rows = logged(host)
    log, base = rows.log_of(LoggedRow(slot=0, base=70))
    assert (log.next, base) == (1, 0)
