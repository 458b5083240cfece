"""Which requests are under way at a listener, and which one gives way when there are as many as it takes.

Quiet streams and bodies that do not go on would otherwise keep everybody else out. Whoever has fewer requests under way
takes the place of the oldest one of whoever has most: users are compared first (over TCP: addresses), then the
processes of a user. So a program with a hundred streams hinders itself only, and a command of the operator gets in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from peerd.daemon.http.caller import caller_of, hang_up, host_name

Whose: TypeAlias = tuple[str, int | None]
"""The user or address, and the process."""


def whose(scope: Mapping[str, Any]) -> Whose:
    """To whom a request is counted."""
    caller = caller_of(scope)
    return host_name(scope), None if caller is None else caller.process_id


class RequestBudget:
    """The requests and streams that are under way."""

    def __init__(self) -> None:
        self._running: dict[object, tuple[Whose, Mapping[str, Any]]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def make_room(self, newcomer: Mapping[str, Any]) -> bool:
        """End the oldest request of whoever has most, if that is not who comes now; whether one was ended."""
        user, process = whose(newcomer)
        users = Counter(each for (each, _), _ in self._running.values())
        most = max(users, key=lambda each: users[each], default=user)
        if users[most] <= users[user] + 1:
            most = user
        processes = Counter(key for key, _ in self._running.values() if key[0] == most)
        victim = max(processes, key=lambda each: processes[each], default=None)
        if victim is None or (most == user and processes[victim] <= processes[user, process] + 1):
            return False
        for request, (key, scope) in self._running.items():  # oldest first
            if key == victim:
                del self._running[request]
                hang_up(scope)
                return True
        return False

    @contextmanager
    def counted(self, scope: Mapping[str, Any]) -> Iterator[None]:
        """Count a request while it is under way."""
        request = object()
        self._running[request] = whose(scope), scope
        try:
            yield
        finally:
            self._running.pop(request, None)
