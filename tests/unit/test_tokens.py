"""Join tokens: what is written on one, and the book that counts their uses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from peerd.errors import Unavailable
from peerd.identity.tokens import (
    TOKEN_LIFE_S_MAX,
    TOKEN_MEMORY_S,
    TOKENS_MAX,
    JoinToken,
    TokenBook,
    TokenEntry,
    TokenRefused,
    token_id,
)

SECRET = bytes(range(16))
NOW = 1_000_000.0


def book(life_s: float = 3600.0, uses: int = 1) -> TokenBook:
    made = TokenBook()
    made.create(SECRET, NOW, life_s, uses)
    return made


def refusal(redeemed: TokenBook, now: float, secret: bytes = SECRET) -> str:
    with pytest.raises(TokenRefused) as caught:
        redeemed.redeem(secret, now)
    return caught.value.reason


@given(
    st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", fullmatch=True),
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=16, max_size=16),
)
def test_a_token_reads_back_whatever_the_cluster_is_called(cluster: str, fingerprint: bytes, secret: bytes) -> None:
    token = JoinToken(cluster, fingerprint, secret)
    assert JoinToken.parse(token.text() + "\n") == token
    assert secret.hex() not in repr(token)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "peerd1.prod." + "0" * 32,
        "peerd2.prod." + "0" * 32 + "." + "0" * 32,
        "peerd1.Prod." + "0" * 32 + "." + "0" * 32,
        "peerd1.prod." + "0" * 32 + "." + "0" * 33,
        "peerd1.prod." + "0" * 32 + "." + "G" * 32,
        "x" * 10_000,
    ],
)
def test_what_is_no_token_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="expected one line") as caught:
        JoinToken.parse(text)
    assert not text or text not in str(caught.value)


def test_the_book_keeps_a_hash_and_never_the_secret() -> None:
    content = repr([entry.row() for entry in book().entries()])
    assert SECRET.hex() not in content and repr(SECRET) not in content
    assert token_id(SECRET) in content


def test_a_token_opens_as_often_as_it_says() -> None:
    used = book(uses=2)
    assert [used.redeem(SECRET, NOW).uses, used.redeem(SECRET, NOW).uses] == [1, 2]
    assert refusal(used, NOW) == "token_used_up"


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 10))
def test_restarts_give_no_use_away(steps: list[bool], uses: int) -> None:
    """A step is a redemption, or a restart from what was persisted."""
    current, opened = book(uses=uses), 0
    for is_restart in steps:
        if is_restart:
            current = TokenBook(TokenEntry.from_row(entry.row()) for entry in current.entries())
            continue
        try:
            current.redeem(SECRET, NOW)
            opened += 1
        except TokenRefused as error:
            assert error.reason == "token_used_up"
    assert opened == min(uses, steps.count(False))


def test_expired_revoked_and_unknown_tokens_say_which() -> None:
    expired = book(life_s=60)
    expired.redeem(SECRET, NOW + 59)
    assert refusal(book(life_s=60), NOW + 60) == "token_expired"
    assert refusal(book(), NOW, b"another secret!!") == "unknown_token"
    revoked = book()
    revoked.revoke(token_id(SECRET))
    assert refusal(revoked, NOW) == "token_revoked"
    with pytest.raises(KeyError):
        revoked.revoke("00000000")


def test_what_is_over_is_forgotten_after_a_day() -> None:
    old = book(life_s=60)
    old.create(b"a second secret!", NOW + 60 + TOKEN_MEMORY_S, 60, 1)
    assert len(old.entries()) == 2
    old.create(b"the third secret", NOW + 61 + TOKEN_MEMORY_S, 60, 1)
    assert [entry.created_at for entry in old.entries()] == [NOW + 60 + TOKEN_MEMORY_S, NOW + 61 + TOKEN_MEMORY_S]
    assert refusal(old, NOW + 61 + TOKEN_MEMORY_S) == "unknown_token"


@pytest.mark.parametrize(
    ("life_s", "uses"),
    [(0, 1), (TOKEN_LIFE_S_MAX + 1, 1), (60, 0)],
)
def test_what_cannot_be_granted(life_s: float, uses: int) -> None:
    with pytest.raises(ValueError, match="token"):
        TokenBook().create(SECRET, NOW, life_s, uses)


def test_the_book_is_bounded() -> None:
    full = TokenBook()
    for number in range(TOKENS_MAX):
        full.create(number.to_bytes(16, "big"), NOW, 60, 1)
    with pytest.raises(Unavailable, match="revoke"):
        full.create(SECRET, NOW, 60, 1)


def test_tokens_are_read_back_in_the_order_of_their_making() -> None:
    made = book()
    for number in range(5):
        made.create(bytes([number]) * 16, NOW + 1 + number, 60, 1)
    made.revoke(token_id(SECRET))
    kept = sorted(entry.row() for entry in made.entries())
    assert TokenBook(map(TokenEntry.from_row, kept)).entries() == made.entries()


GOOD = book().entries()[0].row()


@pytest.mark.parametrize(
    "row",
    [
        (),
        (1,),
        ("x", *GOOD[1:]),
        (*GOOD[:5], 2),
        (*GOOD[:5], b"", 0),
        (*GOOD[:4], "1", 0),
        (*GOOD[:3], *GOOD[4:]),
        (GOOD[0], None, *GOOD[2:]),
    ],
)
def test_a_damaged_row_is_noticed(row: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="a token is"):
        TokenEntry.from_row(row)


def test_a_change_that_was_not_durable_is_taken_back() -> None:
    one = book()
    entry = one.entries()[0]
    one.redeem(SECRET, NOW)
    one.restore(entry)
    assert one.redeem(SECRET, NOW) == replace(entry, uses=1)
    one.remove(entry)
    assert one.entries() == []
    assert isinstance(entry, TokenEntry)
