"""Who a client of the gateway is: who pays for its connections and sessions, and whose sessions are its own. Pure.

On a unix socket the kernel says which user has connected. Over TCP a client shows an access token of the daemon as its
password, where the gateway asks for one. Where it does not, all clients pay together, because nobody knows them; but a
session still belongs to the user name and password that it was begun with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from protocols.pubsub.front.mqtt.packets import Connect

OVER_TCP: Final = "tcp"
"""Who pays for connections of which nothing is known."""
OWNER_CHARACTERS: Final = 32


@dataclass(frozen=True, slots=True)
class User:
    """``pays``: who has to do with less where there is too little. ``owner``: whose sessions are this user's."""

    pays: str = OVER_TCP
    owner: str = ""
    token: str = ""
    """What the daemon is shown for this user; empty: nothing."""


NOBODY: Final = User()
"""Of whom nothing is known."""


def user_of(uid: int | None, connect: Connect, wants_token: bool) -> User | None:
    """The user of a connection; ``None`` for one that shows no token where one is wanted.

    ``uid``: of the process at the other end, if the kernel has said so. Whether a token is valid, the daemon says.
    """
    if uid is not None:
        return User(f"user {uid}", f"user {uid}")
    if not wants_token:
        return User(OVER_TCP, _digest(connect.user_name, connect.password) if connect.password else "")
    try:
        token = (connect.password or b"").decode("ascii")
    except UnicodeDecodeError:
        token = ""
    if not token.isprintable() or not token:
        return None
    return User(f"token {_digest('', connect.password)[:8]}", _digest("", connect.password), token)


def _digest(name: str, password: bytes) -> str:
    return sha256(name.encode(errors="replace") + b"\0" + password).hexdigest()[:OWNER_CHARACTERS]


def greediest(payers: Iterable[str], newcomer: str) -> str:
    """Whose connection or session gives way to one of ``newcomer``: of whoever has most, or else of the same user."""
    counts = Counter(payers)
    most = max(counts, key=lambda each: counts[each], default=newcomer)
    return most if counts[most] > counts[newcomer] + 1 else newcomer
