"""Taking a node out of its ring in order: each plugin hands over what others need, then the node stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from peerd.api import Plugin
from peerd.driver import Clock, TimerHandle

DrainDone = Callable[[tuple[str, ...]], None]
"""Called with the names of the plugins that had not finished."""


class Drain:
    """Takes a node out of its ring, from `begin` on. One plugin hands over after the other, the last one first, so that
    services go after the plugins that use them.

    ``guard`` runs plugin code; ``staying`` is the plugin that is not asked, since the others need it to the end (the
    overlay); ``stop`` stops the node.
    """

    def __init__(
        self,
        clock: Clock,
        guard: Callable[..., Any],
        plugins: Mapping[str, Plugin],
        staying: str,
        stop: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._guard = guard
        self._plugins = plugins
        self._staying = staying
        self._stop = stop
        self._order: list[str] | None = None
        self._timer: TimerHandle | None = None
        self._waiting: list[DrainDone] = []
        self._is_over = False

    @property
    def remaining(self) -> tuple[str, ...] | None:
        """Plugins that have yet to hand over, the next one first; ``None`` before `begin`."""
        return None if self._order is None else tuple(reversed(self._order))

    def begin(self, timeout_s: float, done: DrainDone, reason: str) -> None:
        """See `peerd.node.node.Node.drain`."""
        if self._is_over:
            self._clock.call_soon(lambda: done(()))
            return
        self._waiting.append(done)
        if self._order is None:
            self._order = [name for name in self._plugins if name != self._staying]
            self._timer = self._clock.call_later(timeout_s, lambda: self._stop(reason))
            self._clock.call_soon(lambda: self._next(self._order or [], reason))

    def _next(self, order: list[str], reason: str) -> None:
        """Ask the plugin whose turn it is; when there is none left, leave."""
        if self._is_over:
            return
        if not order:
            self._stop(reason)
            return
        name = order[-1]

        def finished() -> None:
            if order and order[-1] == name:  # else the plugin has called it twice, or too late
                order.pop()
                self._clock.call_soon(lambda: self._next(order, reason))

        self._guard(name, self._plugins[name].drain, finished)

    def over(self) -> None:
        """The node has stopped: tell those that wait for the drain which plugins had not finished."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, []
        unfinished = self.remaining or ()
        for done in waiting:
            self._clock.call_soon(partial(done, unfinished))
