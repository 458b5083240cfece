"""Whose a request is: the token that came with it, or the user whom the kernel names, and what that one may do.

What a client makes through a plugin's route, a subscription say, is kept under its `Asker.owner`, and nobody else but
an operator may read, change or end it.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from fastapi import HTTPException
from starlette.requests import HTTPConnection

ASKER_KEY: Final = "peerd_asker"
"""The key in a request's ``state`` under which its `Asker` is."""


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


NOBODY: Final = Asker()


def asker_of(connection: HTTPConnection) -> Asker:
    """Return who asks; `NOBODY` where nothing admitted the request, as in an application without a listener."""
    found = connection.scope.get("state", {}).get(ASKER_KEY)
    return found if isinstance(found, Asker) else NOBODY
