"""The book of access tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from peerd.daemon.http import access_book
from peerd.daemon.http.access import Access
from peerd.daemon.http.access_book import ACCESS_LIFE_S_MAX, ACCESS_MEMORY_S, AccessBook, AccessRefused, AccessToken
from peerd.errors import Unavailable
from tests.support.fake_daemon import FakeTable

SECRET = b"s" * 32


def book_with(count: int = 1, life_s: float = 60.0) -> tuple[AccessBook, list[str]]:
    book = AccessBook()
    texts = [
        book.create(f"name{number}", ["demo:read"], life_s, 0.0, bytes([number]) * 8, SECRET)[0]
        for number in range(count)
    ]
    return book, texts


def reason(book: AccessBook, text: str, now: float = 0.0) -> str:
    with pytest.raises(AccessRefused) as caught:
        book.find(text, now)
    return caught.value.reason


def test_a_token_is_found_until_it_expires() -> None:
    book, [text] = book_with()
    assert book.find(text, 59.9).name == "name0"
    assert reason(book, text, 60.0) == "token_expired"


def test_a_text_with_the_right_id_and_another_secret_is_unknown() -> None:
    book, [text] = book_with()
    assert reason(book, text[:-1] + ("0" if text[-1] != "0" else "1")) == "token_unknown"


@given(st.text())
def test_any_other_text_is_refused_and_never_told(text: str) -> None:
    book, _ = book_with()
    with pytest.raises(AccessRefused) as caught:
        book.find(text, 0.0)
    assert len(text) < 9 or text not in str(caught.value)


def test_neither_book_nor_row_knows_the_secret() -> None:
    book, [text] = book_with()
    secret = text.rpartition(".")[2]
    assert (
        secret == SECRET.hex()
        and secret not in repr([token.row() for token in book.tokens()])
        and secret not in repr(book.tokens())
    )


def test_rows_are_read_back_in_the_order_of_their_making() -> None:
    book, texts = book_with(3)
    rows = [token.row() for token in book.tokens()]
    again = AccessBook(map(AccessToken.from_row, rows))
    assert again.tokens() == book.tokens()
    assert [again.find(text, 0.0).name for text in texts] == ["name0", "name1", "name2"]


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, "x"), (1, ""), (2, "0"), (3, "demo"), (3, ""), (3, 7), (4, "now"), (5, None)],
)
def test_a_damaged_row_is_refused(place: int, value: object) -> None:
    row: list[object] = list(book_with()[0].tokens()[0].row())
    assert AccessToken.from_row(tuple(row)).name == "name0"
    row[place] = value
    for wrong in (row, row[:5], []):
        with pytest.raises(ValueError, match="an access token is"):
            AccessToken.from_row(tuple(wrong))


@pytest.mark.parametrize(
    ("name", "scopes", "life_s", "words"),
    [
        ("", ["*"], 1.0, "a name has"),
        ("a b", ["*"], 1.0, "a name has"),
        ("x" * 65, ["*"], 1.0, "a name has"),
        ("x", [], 1.0, "1 to 64 scopes"),
        ("x", [f"p{number}:read" for number in range(65)], 1.0, "1 to 64 scopes"),
        ("x", ["demo"], 1.0, "'demo' is no scope"),
        ("x", ["demo:admin"], 1.0, "is no scope"),
        ("x", ["Demo:read"], 1.0, "is no scope"),
        ("x", ["*"], 0.0, "at most 366 days"),
        ("x", ["*"], ACCESS_LIFE_S_MAX + 1, "at most 366 days"),
        ("x", ["*"], float("nan"), "at most 366 days"),
        ("name0", ["*"], 1.0, "there is a token named name0"),
    ],
)
def test_what_cannot_be_granted(name: str, scopes: list[str], life_s: float, words: str) -> None:
    book, _ = book_with()
    with pytest.raises(ValueError, match=words):
        book.create(name, scopes, life_s, 0.0, b"i" * 8, SECRET)
    assert len(book.tokens()) == 1


def test_the_book_is_bounded_and_forgets_what_is_long_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_book, "ACCESS_TOKENS_MAX", 3)
    book, _ = book_with(3)
    late = 60.0 + ACCESS_MEMORY_S
    with pytest.raises(Unavailable, match="there are 3 access tokens"):
        book.create("more", ["*"], 1.0, late, b"i" * 8, SECRET)
    book.create("more", ["*"], 1.0, late + 0.1, b"i" * 8, SECRET)
    assert [token.name for token in book.tokens()] == ["more"]


def test_a_name_is_free_again_when_its_token_has_expired() -> None:
    book, _ = book_with()
    book.create("name0", ["*"], 1.0, 60.0, b"i" * 8, SECRET)
    assert len(book.named("name0")) == 2


def test_tokens_survive_a_restart_and_revocations_do() -> None:
    table, wall = FakeTable(), 1000.0
    access = Access(table, wall_time=lambda: wall)
    text, _ = access.create("kept", ["*"], 60.0)
    gone, _ = access.create("gone", ["*"], 60.0)
    access.revoke("gone")
    again = Access(table, wall_time=lambda: wall)
    assert again.check(f"Bearer {text}", "host").name == "kept"
    with pytest.raises(AccessRefused, match="was revoked"):
        again.check(f"Bearer {gone}", "host")
    assert [row[1] for row in table.rows] == ["kept"]


def test_what_cannot_be_written_did_not_happen() -> None:
    table = FakeTable()
    access = Access(table, wall_time=lambda: 0.0)
    text, _ = access.create("kept", ["*"], 60.0)
    table.is_full = True
    with pytest.raises(Unavailable):
        access.create("other", ["*"], 60.0)
    with pytest.raises(Unavailable):
        access.revoke("kept")
    assert access.check(f"bearer {text}", "host").name == "kept" and len(access.tokens()) == 1
    with pytest.raises(KeyError):
        access.revoke("other")
