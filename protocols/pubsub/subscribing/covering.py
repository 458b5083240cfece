"""Which filters of this node's subscriptions have a place in the ring, and which are covered by one that has.

A filter that another one of this node covers is not installed: its events come because of the other. The other does not
leave the ring before those that relied on it are installed themselves, so nothing is lost when its subscription ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, TypeVar

from peerd.api import Host
from peerd.errors import Unavailable
from peerd.lib.apart import compared
from peerd.lib.filter import Node
from protocols.pubsub.ports import PiecePoint, SchemaView
from protocols.pubsub.subscribing.installation import InstallReport, News
from protocols.pubsub.subscribing.installer import Installer, Keep
from protocols.pubsub.subscribing.local import LocalSubscriptions
from protocols.pubsub.subscribing.subscription import Form, InstallProgress

COVER_CHECKS_MAX: Final = 256
"""A new filter is compared with so many that are installed, the newest ones, and with all that are equal."""

K = TypeVar("K")

Points = Callable[[SchemaView, Node, str], Sequence[PiecePoint]]
"""The points of a filter under a schema; the last argument is the group, or empty."""


class Covering:
    """Installs filters, or finds others that cover them. ``on_progress`` hears when a filter has come further;
    ``on_refused``, with the reason, of one that leaves do not keep; ``on_placed`` of one whose pieces set out."""

    def __init__(
        self,
        host: Host,
        installer: Installer,
        local: LocalSubscriptions,
        points: Points,
        *,
        on_progress: Callable[[Form], None],
        on_refused: Callable[[Form, str], None],
        on_placed: Callable[[Form], None],
    ) -> None:
        self._host, self._installer, self._local, self._points = host, installer, local, points
        self._on_progress, self._on_refused, self._on_placed = on_progress, on_refused, on_placed
        self._placed: dict[str, dict[Form, None]] = {}
        """The forms with a place of their own, by schema, oldest first."""
        self._by_text: dict[tuple[str, str], dict[Form, None]] = {}

    def place(self, form: Form) -> None:
        """Have events come for a filter."""
        cover = self._cover_of(form)
        if cover is not None:
            form.cover = cover
            cover.covered[form] = None
            self._come_to(form, cover.progress)
            return
        subscription = form.subscription
        since_ms = 0 if subscription.was_received else subscription.since_ms
        form.points = form.points or self._points(form.schema, form.node, subscription.group)

        def told(report: InstallReport) -> None:
            self._told(form, report)

        what = form.schema.name, form.sid, form.text, subscription.group, since_ms
        # Others may rely on it before it has come anywhere: they come as far as it does.
        self._placed.setdefault(form.schema.name, {})[form] = None
        self._by_text.setdefault((form.schema.name, form.text), {})[form] = None
        try:
            form.placement = self._installer.install(*what, form.points, self._keep_of(form), told)
        except Unavailable as error:
            self._unlist(form)
            form.points = ()
            self._on_refused(form, str(error))
        else:
            self._on_placed(form)

    @staticmethod
    def _keep_of(form: Form) -> Keep:
        """What leaves are to keep: also for those that rely on it, none of which states more (`_cover_of`)."""
        return form.subscription.keep_s, form.subscription.keep_bytes

    def leave(self, form: Form) -> None:
        """Let a filter go. Leaves know it until those that it covers are installed."""
        if form.is_leaving:
            return
        form.is_leaving = True
        self._uncover(form)
        self._stop_awaiting(form)
        self._unlist(form)
        form.awaited = dict(form.covered)
        form.covered.clear()
        for other in form.awaited:
            other.held_up[form] = None
        for other in list(form.awaited):
            self._place_again(other)
        self._leave_if_free(form)

    def end(self, form: Form) -> None:
        """Its subscription is over: it gets no more events, but others may still need what leaves know of it."""
        if form.entry is not None:
            form.entry.is_current = False
            if not form.covered:
                self._local.remove(form.schema.name, form.entry)
        self.leave(form)

    # Inside

    def _cover_of(self, form: Form) -> Form | None:
        """A filter that covers this one, if there is one that it may rely on."""
        subscription = form.subscription
        wants_past = subscription.since_ms and not subscription.was_received
        if subscription.group or wants_past:
            return None
        same = self._by_text.get((form.schema.name, form.text), {})
        newest = islice(reversed(self._placed.get(form.schema.name, {})), COVER_CHECKS_MAX)
        for other in (*same, *newest):
            if other is form or other.subscription is subscription or not other.may_cover:
                continue
            if any(has < wants for has, wants in zip(self._keep_of(other), self._keep_of(form), strict=True)):
                continue  # leaves would keep less for it than it states
            if other.text == form.text or compared(form.schema.covers, other.node, form.node, False):
                return other
        return None

    def _told(self, form: Form, report: InstallReport) -> None:
        match report.news:
            case News.RECEIVED:
                self._come_to(form, InstallProgress.RECEIVED)
            case News.REPLICATED:
                self._come_to(form, InstallProgress.REPLICATED)
            case News.REFUSED:
                self._refused(form, report.detail)
            case News.FOUND_AGAIN:
                for each in (form, *form.covered):
                    each.subscription.note_gap(report.gap_s, self._host.now())
            case News.ENDED:
                self._gone(form)

    def _come_to(self, form: Form, progress: InstallProgress) -> None:
        """It, and all that rely on it, have come further."""
        if progress <= form.progress:
            return
        form.progress = progress
        if progress is InstallProgress.REPLICATED:
            self._stop_awaiting(form)
        if not form.is_leaving:
            self._on_progress(form)
        for other in list(form.covered):
            self._come_to(other, progress)

    def _stop_awaiting(self, form: Form) -> None:
        """Whoever could not leave because of it may leave."""
        held_up = list(form.held_up)
        form.held_up.clear()
        for old in held_up:
            del old.awaited[form]
            self._leave_if_free(old)

    def _refused(self, form: Form, why: str) -> None:
        self._unlist(form)
        if form.placement is not None:
            self._installer.end(form.placement)
        form.placement, form.progress, form.points = None, InstallProgress.WANTED, ()
        relying = list(form.covered)
        form.covered.clear()
        for other in relying:
            self._place_again(other)
        if not form.is_leaving:
            self._on_refused(form, why)

    def _place_again(self, form: Form) -> None:
        form.cover, form.progress = None, InstallProgress.WANTED
        self.place(form)

    def _leave_if_free(self, form: Form) -> None:
        if form.awaited:
            return
        if form.placement is None or not form.placement.numbers:
            self._gone(form)
        else:
            self._installer.end(form.placement)

    def _gone(self, form: Form) -> None:
        """No leaf has it any more: what still comes because of it is not wanted."""
        if form.is_leaving and form.entry is not None:
            self._local.remove(form.schema.name, form.entry)

    def _uncover(self, form: Form) -> None:
        if form.cover is not None:
            form.cover.covered.pop(form, None)
            form.cover = None

    def _unlist(self, form: Form) -> None:
        _take_out(self._placed, form.schema.name, form)
        _take_out(self._by_text, (form.schema.name, form.text), form)


def _take_out(forms: dict[K, dict[Form, None]], key: K, form: Form) -> None:
    own = forms.get(key, {})
    if own.pop(form, 0) is None and not own:
        del forms[key]
