"""Who may have how much done: work is charged to whoever asks for it, before it is done. Pure; times are given.

A `TokenBucket` is one allowance; an `Admission` is one for each link, token, user or address. `over_share` is for what
somebody keeps, such as subscriptions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

KEYS_MAX: Final = 1024
"""Keys whose use is remembered. Above it the one that has asked longest ago is forgotten."""

OWNER_SHARE: Final = 0.25
"""Of what there is for all clients of a node: what one access token or user may have. Operators have all of it."""

NOBODY: Final = "who shows no token"
"""How messages call an owner without a name."""

K = TypeVar("K")


def over_share(owner: str, owners: Iterable[str], room: int, share: float = OWNER_SHARE) -> str:
    """Why an owner gets no more of what has room for so many, whose owners are these; empty: it does.

    Said of the owner, as in "token reader has 250". One is always allowed.
    """
    count = sum(each == owner for each in owners)
    return f"{owner or NOBODY} has {count}" if count >= max(1, int(share * room)) else ""


class TokenBucket:
    """Allows ``rate`` a second on average and ``burst`` at once."""

    __slots__ = ("_burst", "_rate", "_tokens", "_updated_at")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._updated_at = now

    def adjust(self, rate: float, burst: float) -> None:
        """Use another rate and burst from now on. If the burst grows, the tokens it grows by are there at once.

        Otherwise a peer that had used up the small burst would exceed the new, larger limit with its next few messages.
        Tokens above a smaller burst are lost at the next `take`.
        """
        self._rate = rate
        self._tokens += max(0.0, burst - self._burst)
        self._burst = burst

    def take(self, now: float, amount: float = 1.0) -> bool:
        """Take ``amount`` tokens if there are as many; otherwise take none and return False."""
        if not self.has(now, amount):
            return False
        self._tokens -= amount
        return True

    def has(self, now: float, amount: float = 1.0) -> bool:
        """Whether there are as many."""
        self._tokens = min(self._burst, self._tokens + (now - self._updated_at) * self._rate)
        self._updated_at = now
        return self._tokens >= amount

    def give_back(self, now: float, amount: float = 1.0) -> bool:
        """Put back what turned out to cost nothing; returns whether the bucket is full."""
        is_full = self.has(now, self._burst - amount)
        self._tokens = min(self._burst, self._tokens + amount)
        return is_full


class Admission(Generic[K]):
    """A `TokenBucket` for each of those who ask. What it counts (messages, bytes, seconds of work) the user says."""

    def __init__(self, rate: float, burst: float, *, keys_max: int = KEYS_MAX) -> None:
        self._rate = rate
        self._burst = burst
        self._keys_max = keys_max
        self._buckets: dict[K, TokenBucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: K, now: float, amount: float = 1.0) -> bool:
        """Charge somebody; whether that is within its allowance. If not, nothing is charged."""
        bucket = self._buckets.pop(key, None) or TokenBucket(self._rate, self._burst, now)
        self._buckets[key] = bucket
        if len(self._buckets) > self._keys_max:
            del self._buckets[next(iter(self._buckets))]
        return bucket.take(now, amount)

    def has(self, key: K, now: float, amount: float = 1.0) -> bool:
        """Whether it might be charged so much."""
        bucket = self._buckets.get(key)
        return amount <= self._burst if bucket is None else bucket.has(now, amount)

    def give_back(self, key: K, now: float, amount: float = 1.0) -> None:
        """Put back what turned out to cost nothing."""
        bucket = self._buckets.get(key)
        if bucket is not None and bucket.give_back(now, amount):
            del self._buckets[key]
