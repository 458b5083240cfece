"""The admin API's routes about identity: certificate, tokens, deny list, rotation.

Routes that change something, and the list of tokens, are for the local operator only (`peerd.daemon.http.admission`):
otherwise every user of this machine could admit other machines.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, HTTPException, Path as PathParameter

from peerd.daemon.admin.subject import Subject
from peerd.daemon.http.routes import serve
from peerd.daemon.identity.manager import ANSWER_TIMEOUT_S, IdentityManager
from peerd.errors import ConfigError, PeerMisbehaved, Unavailable
from peerd.identity.issuer import Issuer, OverlapUnderWay
from peerd.identity.ledger import parse_notice_text, parse_subject
from peerd.identity.node_identity import format_serial, load_certificate
from peerd.identity.offline import read_answer
from peerd.identity.roots import fingerprint, is_issued_by
from peerd.identity.tokens import TokenEntry
from peerd.ids import format_id
from peerd.models import admin as models, routes

RENEWAL_TIMEOUT_S: Final = ANSWER_TIMEOUT_S + 5.0

TokenId = Annotated[str, PathParameter(pattern=r"^[0-9a-f]{8}$")]


def identity_router(daemon: Subject) -> APIRouter:
    """Every route about certificates, tokens and the deny list."""
    router = APIRouter()
    _add_certificate_routes(router, daemon)
    _add_token_routes(router, daemon)
    _add_denial_routes(router, daemon)
    return router


def _add_certificate_routes(router: APIRouter, daemon: Subject) -> None:
    @serve(router, routes.CERTIFICATE)
    async def certificate() -> models.Certificate:
        """This node's certificate, and the roots and issuers that it knows."""
        return view(_manager(daemon))

    @serve(router, routes.RENEW)
    async def renew() -> models.Certificate:
        """Renew now."""
        manager = _manager(daemon)
        try:
            await asyncio.wait_for(manager.renewed(), RENEWAL_TIMEOUT_S)
        except TimeoutError as error:
            raise Unavailable("no issuer answered in time") from error
        return view(manager)

    @serve(router, routes.INSTALL)
    async def install(given: models.CertificateRequest) -> models.Certificate:
        """Use a certificate that an offline CA renewed."""
        manager = _manager(daemon)
        try:
            manager.install(read_answer(given.pem, "the certificate").chain)
        except ConfigError as error:
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
        return view(manager)

    @serve(router, routes.ROTATE)
    async def rotate(wanted: models.RotationRequest) -> models.Certificate:
        """Change the cluster's root; both are trusted for the overlap."""
        manager = _manager(daemon)
        _issuer(manager)
        try:
            manager.rotate(timedelta(seconds=wanted.overlap_s))
        except (ValueError, OverflowError) as error:
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
        except (OverlapUnderWay, ConfigError) as error:
            raise HTTPException(HTTPStatus.CONFLICT, str(error)) from error
        return view(manager)

    @serve(router, routes.PUBLISH_NOTICE)
    async def notice(given: models.NoticeBody) -> models.NoticeAnswer:
        """Take in, and spread, a notice that an offline CA signed."""
        try:
            manager = _manager(daemon)
            is_new = manager.accept_notice(parse_notice_text(given.notice))
            return models.NoticeAnswer(is_new=is_new, is_saved=manager.are_notices_saved)
        except (ValueError, PeerMisbehaved) as error:
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error


def _add_token_routes(router: APIRouter, daemon: Subject) -> None:
    @serve(router, routes.TOKENS)
    async def tokens() -> models.Tokens:
        """The join tokens that this issuer has made."""
        manager = _manager(daemon)
        now = manager.wall_time()
        return models.Tokens(tokens=[_token(entry, now) for entry in _issuer(manager).book.entries()])

    @serve(router, routes.CREATE_TOKEN)
    async def create(wanted: models.TokenRequest) -> models.NewToken:
        """Make a token. Its text is told here and never again."""
        manager = _manager(daemon)
        try:
            token, entry = _issuer(manager).create_token(wanted.life_s, wanted.uses)
        except ValueError as error:
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
        return models.NewToken(token=_token(entry, manager.wall_time()), text=token.text())

    @serve(router, routes.REVOKE_TOKEN)
    async def revoke(identifier: TokenId) -> models.Token:
        """End a token. Certificates made with it stay; `peerd deny` is for those."""
        manager = _manager(daemon)
        try:
            return _token(_issuer(manager).revoke_token(identifier), manager.wall_time())
        except KeyError as error:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"there is no token {identifier}") from error


def _add_denial_routes(router: APIRouter, daemon: Subject) -> None:
    @serve(router, routes.DENIALS)
    async def denials() -> models.Denials:
        """The deny list."""
        found = _manager(daemon).ledger.denials()
        return models.Denials(
            denials=[
                models.DeniedSubject(subject=denial.subject, reason=denial.reason, denied_at=denial.version / 1000)
                for denial in found
            ]
        )

    @serve(router, routes.DENY)
    async def deny(wanted: models.DenialRequest) -> models.NewDenial:
        """Deny a node or a certificate everywhere, or let it in again."""
        manager = _manager(daemon)
        try:
            subject = parse_subject(wanted.subject)
        except ValueError as error:
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
        if not wanted.is_withdrawn and manager.is_self(subject):
            raise HTTPException(HTTPStatus.CONFLICT, "this is the issuer's own node: ask another issuer to deny it")
        _issuer(manager)
        denial = manager.deny(subject, wanted.reason, is_withdrawn=wanted.is_withdrawn)
        return models.NewDenial(
            subject=denial.subject,
            reason=denial.reason,
            denied_at=denial.version / 1000,
            is_saved=manager.are_notices_saved,
        )


def view(manager: IdentityManager) -> models.Certificate:
    """The certificate as the admin API shows it."""
    identity, clock, roots = manager.identity, manager.clock, manager.ledger.roots
    leaf = load_certificate(manager.files.cert_file)
    issued_by = next((root for root in roots.trusted if is_issued_by(leaf, root)), None)
    now = datetime.fromtimestamp(manager.wall_time(), UTC)
    return models.Certificate(
        id=format_id(identity.node_id),
        cluster=identity.cluster,
        serial=format_serial(identity.serial),
        issued_at=clock.issued_at,
        expires_at=clock.expires_at,
        issued_by="" if issued_by is None else fingerprint(issued_by).hex(),
        state=manager.renewal_state,
        renews_at=clock.due_at,
        last_failure=manager.last_failure,
        is_issuer=manager.issuer is not None,
        issuers=[issuer.address for issuer in manager.ledger.issuers(now.timestamp())],
        roots=[
            models.RootCertificate(
                fingerprint=fingerprint(root).hex(),
                expires_at=root.not_valid_after_utc.timestamp(),
                trusted_until=(
                    roots.overlap_ends if roots.overlap_ends and root == roots.previous else root.not_valid_after_utc
                ).timestamp(),
            )
            for root in roots.trusted
        ],
    )


def _manager(daemon: Subject) -> IdentityManager:
    if daemon.identity is None:
        raise Unavailable('this node runs without TLS (tls.mode = "off"), so it has no certificate')
    return daemon.identity


def _issuer(manager: IdentityManager) -> Issuer:
    if manager.issuer is None:
        known = manager.ledger.issuers(manager.wall_time())
        where = f"ask {', '.join(issuer.address for issuer in known)}" if known else "none is known"
        raise HTTPException(
            HTTPStatus.CONFLICT,
            f"this node is no issuer ({where}); to make it one, put ca.key and ca.crt where issuer.ca_dir says, set "
            "issuer.enabled = true, and restart it",
        )
    return manager.issuer


def _token(entry: TokenEntry, now: float) -> models.Token:
    return models.Token.model_validate(
        {
            "id": entry.id,
            "state": entry.state(now),
            "created_at": entry.created_at,
            "expires_at": entry.expires_at,
            "uses": entry.uses,
            "uses_max": entry.uses_max,
        }
    )
