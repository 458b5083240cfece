"""Whose a request is: the token that came with it, or the user whom the kernel names, and what that one may do.

What a client makes through a plugin's route, a subscription say, is kept under its `Asker.owner`, and nobody else but
an operator may read, change or end it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Protocol, TypeVar

from fastapi import HTTPException
from starlette.requests import HTTPConnection

ASKER_KEY: Final = "peerd_asker"
"""The key in a request's ``state`` under which its `Asker` is."""


class OwnedView(Protocol):
    """What a plugin shows of a client's subscription."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str:
        """With one it stays while nobody reads it."""

    @property
    def owner(self) -> str: ...


S = TypeVar("S", bound=OwnedView)


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks. ``owner``: ``token NAME`` or ``user NUMBER``; empty for whoever connected over TCP without a token."""

    owner: str = ""
    is_operator: bool = False
    """Root, the daemon's own user or one of ``admin.operators``, on a unix socket and without a token."""
    may_write: bool = False
    """Whether it may make what stays: by its token's scope, or because the kernel says who it is."""

    def check_own(self, what: str, owner: str, *, is_kept: bool) -> None:
        """Raise ``HTTPException`` (403) for what is another one's; ``is_kept``: it stays when nobody uses it.

        What was made over TCP without a token has no owner. Whoever knows its random id may use it, until it ends.
        """
        if self.is_operator or (owner == self.owner and (owner or not is_kept)):
            return
        raise HTTPException(HTTPStatus.FORBIDDEN, f"{what} belongs to another token or user")

    def check_write(self, what: str, plugin: str) -> None:
        """Raise ``HTTPException`` (403) for who may only read."""
        if not self.may_write:
            detail = f"{what} needs a token with the scope {plugin}:write, or a unix socket, where it is known who asks"
            raise HTTPException(HTTPStatus.FORBIDDEN, detail)

    def check_subscription(self, view: OwnedView) -> None:
        """Raise ``HTTPException`` (403) where this client may not read, change and end a subscription."""
        self.check_own(f"the subscription {view.name or view.id}", view.owner, is_kept=bool(view.name))

    def own(self, views: Iterable[S]) -> list[S]:
        """This client's subscriptions of these; for operators all of them."""
        return [view for view in views if self.is_operator or (view.owner and view.owner == self.owner)]

    def owner_for(self, name: str, views: Iterable[OwnedView]) -> str:
        """For whom this client asks for a subscription of this name: operators may resume anybody's."""
        known = (view.owner for view in views if self.is_operator and name and view.name == name)
        return next(known, self.owner)


NOBODY: Final = Asker()


def asker_of(connection: HTTPConnection) -> Asker:
    """Return who asks; `NOBODY` where nothing admitted the request, as in an application without a listener."""
    found = connection.scope.get("state", {}).get(ASKER_KEY)
    return found if isinstance(found, Asker) else NOBODY
