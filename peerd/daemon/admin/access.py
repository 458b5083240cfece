"""The admin API's routes about the access tokens of data clients; `peerd access` calls them."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, HTTPException, Path as PathParameter

from peerd.daemon.admin.subject import Subject
from peerd.daemon.http.access_book import EVERYTHING, NAME_PATTERN, AccessToken
from peerd.daemon.http.routes import serve
from peerd.models import routes
from peerd.models.admin import AccessEntries, AccessEntry, AccessRequest, NewAccess

TokenName = Annotated[str, PathParameter(pattern=f"^{NAME_PATTERN}$")]


def access_router(daemon: Subject, plugins: Sequence[str]) -> APIRouter:
    """Return the routes. ``plugins`` are those with routes for data clients: scopes of other plugins are refused."""
    router = APIRouter()

    @serve(router, routes.ACCESS)
    async def tokens() -> AccessEntries:
        """Who has access to what, and until when. For operators only."""
        return AccessEntries(tokens=[entry(token) for token in daemon.access.tokens()])

    @serve(router, routes.CREATE_ACCESS)
    async def create(wanted: AccessRequest) -> NewAccess:
        """Make an access token. Its text is told here and never again."""
        for scope in wanted.scopes:
            if scope != EVERYTHING and scope.partition(":")[0] not in plugins:
                known = ", ".join(plugins) or "none"
                detail = f"no protocol of this daemon has routes for the scope {scope!r}; those that have: {known}"
                raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
        try:
            text, token = daemon.access.create(wanted.name, wanted.scopes, wanted.life_s)
        except ValueError as error:
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
        return NewAccess(token=entry(token), text=text)

    @serve(router, routes.REVOKE_ACCESS)
    async def revoke(name: TokenName) -> AccessEntry:
        """End a token, by its name or id, and every request that uses it."""
        try:
            return entry(daemon.access.revoke(name))
        except KeyError as error:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"there is no access token {name}") from error

    def entry(token: AccessToken) -> AccessEntry:
        return AccessEntry(
            id=token.id,
            name=token.name,
            scopes=list(token.scopes),
            created_at=token.created_at,
            expires_at=token.expires_at,
            is_expired=daemon.access.is_expired(token),
        )

    return router
