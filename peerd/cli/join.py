"""``peerd join``: make this machine a node of an existing cluster."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from peerd.cli.files import read_text, write_text
from peerd.cli.init import config_text, node_settings
from peerd.cli.locations import CONFIG_NAME, own_directory, standard_files
from peerd.cli.node_options import with_node_options
from peerd.cli.options import ListenOption
from peerd.config import split_address
from peerd.errors import ConfigError
from peerd.ids import format_id

if TYPE_CHECKING:
    from peerd.identity.joining import GrantedIdentity

CLOCK_OFF_S: Final = 120.0
"""From this difference on the user is warned: well within what peers allow for, and more than a slow join takes."""


@with_node_options(lambda front: front.init_options())
def join(
    seed: Annotated[str | None, typer.Argument(metavar="SEED", help="host:port of a node of the cluster.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A token of `peerd token create`; - reads standard input.")
    ] = None,
    csr_out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The CA is offline: write a request for `peerd ca sign`.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The CA is offline: take what `peerd ca sign` wrote.")
    ] = None,
    dir: Annotated[
        Path | None, typer.Option(metavar="D", help="Where the node lives. Default: as for `peerd init`.")
    ] = None,
    listen: ListenOption = None,
    force: Annotated[bool, typer.Option("--force", help="Give up the identity that is here for a new one.")] = False,
    *,
    protocol_settings: dict[str, Any],
) -> None:
    """Join a cluster: make a key here, get a certificate for it, write the node's files.

    With a token, from an issuer that SEED leads to; with a CA that is offline, by files.
    """
    if sum(option is not None for option in (token_file, csr_out, certificate)) != 1:
        raise typer.BadParameter("give exactly one of --token-file, --csr-out and --certificate")
    directory = (dir or own_directory()).expanduser().absolute()
    if csr_out is not None:
        _request(directory, csr_out)
        return
    address = None if seed is None else _address(seed)
    settings = node_settings(directory, [seed] if seed else [], listen) | protocol_settings
    config_text(settings)  # a mistake in the settings must not cost a use of the token
    if certificate is not None:
        granted_identity = _with_certificate(directory, certificate)
    elif address is not None and token_file is not None:
        granted_identity = _with_token(directory, address, token_file, force)
    else:
        raise typer.BadParameter("name a node of the cluster", param_hint="SEED")
    typer.echo(_finish(directory, settings, granted_identity))


def _with_token(directory: Path, address: tuple[str, int], token_file: Path, force: bool) -> GrantedIdentity:
    from peerd.daemon.storage.state_directory import StateDirectory
    from peerd.identity.joining import join as ask_issuer, write_identity
    from peerd.identity.tokens import JoinToken

    _require_free(directory, force)
    try:
        token = JoinToken.parse(read_text(token_file))
    except ValueError as error:
        raise ConfigError(str(error), file=str(token_file)) from error
    with StateDirectory(directory):  # its lock makes sure that no daemon runs here, and that none starts meanwhile
        granted_identity = ask_issuer(*address, token)
        write_identity(directory, granted_identity)
    _warn_of_clock(granted_identity.clock_ahead_s(time.time()))
    return granted_identity


def _warn_of_clock(ahead_s: float) -> None:
    """Warn of a wrong clock. Peers allow for a few minutes; beyond that, valid certificates seem expired or too new."""
    if abs(ahead_s) > CLOCK_OFF_S:
        where = "ahead of" if ahead_s > 0 else "behind"
        typer.echo(
            f"peerd: warning: this machine's clock is {abs(ahead_s) / 60:.0f} min {where} the issuer's: set it before "
            "`peerd run`, or links will fail",
            err=True,
        )


def _with_certificate(directory: Path, certificate: Path) -> GrantedIdentity:
    from peerd.daemon.storage.state_directory import StateDirectory
    from peerd.identity.authority import NODE_KEY_FILE
    from peerd.identity.joining import write_identity
    from peerd.identity.node_identity import load_private_key
    from peerd.identity.offline import accept_answer, read_answer

    key = load_private_key(directory / NODE_KEY_FILE)
    granted = read_answer(read_text(certificate), str(certificate))
    granted_identity = accept_answer(key, granted, str(certificate))
    with StateDirectory(directory):
        write_identity(directory, granted_identity)
    return granted_identity


def _request(directory: Path, csr_out: Path) -> None:
    from peerd.identity.offline import write_request

    write_text(csr_out, write_request(directory), 0o644)
    typer.echo(
        f"{csr_out}: the request of the key in {directory}. It is no secret. Where the CA is:\n"
        f"  peerd ca sign {csr_out.name} --out CERT\n"
        "and with CERT back here:\n"
        "  peerd join SEED --certificate CERT      a new node, or one that is stopped\n"
        "  peerd certificate install CERT          a node that runs"
    )


def _require_free(directory: Path, force: bool) -> None:
    from peerd.identity.authority import NODE_CERT_FILE, NODE_KEY_FILE

    for name in (NODE_KEY_FILE, NODE_CERT_FILE):
        if (directory / name).exists() and not force:
            raise ConfigError(
                "this machine has an identity already: --force gives it up for a new one (another node id), "
                "--dir puts a second node elsewhere",
                file=str(directory / name),
            )


def _finish(directory: Path, settings: dict[str, Any], granted_identity: GrantedIdentity) -> str:
    """Write the configuration, unless there is one, and say what to type next."""
    identity, config_file = granted_identity.identity, directory / CONFIG_NAME
    seeds = [*settings.get("node.bootstrap", []), *(peer.address for peer in granted_identity.bootstrap)]
    settings = {"node.cluster": identity.cluster, **settings}
    if seeds:
        settings["node.bootstrap"] = list(dict.fromkeys(seeds))
    is_kept = config_file.exists()
    if not is_kept:
        write_text(config_file, config_text(settings), 0o644)
    config = "" if config_file in standard_files() else f" --config {shlex.quote(str(config_file))}"
    return "\n".join(
        [
            f"node     {format_id(identity.node_id)} of cluster {identity.cluster}",
            f"until    {identity.not_after:%Y-%m-%d %H:%M:%S} UTC, renewed by itself while an issuer can be reached",
            f"config   {config_file}{' (was there, kept as it is)' if is_kept else ''}",
            f"joins    {' '.join(settings.get('node.bootstrap', [])) or 'nobody yet: set node.bootstrap'}",
            "",
            "Next:",
            f"  peerd run{config}",
        ]
    )


def _address(seed: str) -> tuple[str, int]:
    try:
        return split_address(seed)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="SEED") from error
