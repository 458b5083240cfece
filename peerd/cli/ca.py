"""``peerd ca``: the cluster's certificate authority, in a folder of files or at work in a daemon."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peerd.cli.files import NOT_SAVED, read_text, write_text
from peerd.cli.locations import own_directory
from peerd.cli.options import Output, OutputOption, SocketOption, ask, duration_s
from peerd.cli.output import print_data, print_facts, stdout
from peerd.config import NodeConfig
from peerd.errors import ConfigError

if TYPE_CHECKING:
    from peerd.identity.roots import Roots

app = typer.Typer(help="Make, show and change the cluster's certificate authority.", no_args_is_help=True)

DirOption = Annotated[
    Path | None,
    typer.Option("--dir", metavar="D", help="Folder of ca.key and ca.crt. Default: ca in the node's folder."),
]


@app.command()
def init(
    dir: DirOption = None,
    cluster: Annotated[str, typer.Option(metavar="NAME", help="Name of the cluster.")] = NodeConfig().cluster,
) -> None:
    """Make a CA: an Ed25519 root for ten years. An existing one is never overwritten."""
    from peerd.identity.authority import ClusterAuthority

    folder = _folder(dir)
    authority = ClusterAuthority.create(cluster)
    authority.save(folder)
    typer.echo(
        f"CA of cluster {cluster} in {folder}: ca.crt is public, ca.key issues certificates (0600, keep it safe).\n"
        f"fingerprint {authority.fingerprint.hex()}\n\n"
        "Next, one of:\n"
        f"  peerd init --issuer --ca {folder}     this machine becomes a node that issues certificates\n"
        "  peerd ca sign REQUEST --out CERT      the key stays offline, and files are carried: docs/identity.md"
    )


@app.command()
def show(dir: DirOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show a CA's certificate. Reads ca.crt only."""
    from peerd.identity.authority import CA_CERT_FILE
    from peerd.identity.roots import Roots, fingerprint

    folder = _folder(dir)
    roots = Roots.load(folder / CA_CERT_FILE)
    facts: dict[str, str | None] = {
        "cluster": _cluster(roots),
        "fingerprint": fingerprint(roots.newest).hex(),
        "expires": f"{roots.newest.not_valid_after_utc:%Y-%m-%d}",
        "previous": None if roots.previous is None else fingerprint(roots.previous).hex(),
        "previous_trusted_until": f"{roots.overlap_ends:%Y-%m-%d %H:%M:%S} UTC" if roots.overlap_ends else None,
        "key": "here" if (folder / "ca.key").exists() else "not here",
    }
    if not print_data(output, facts):
        print_facts(stdout(), [(name.replace("_", " "), value) for name, value in facts.items() if value])


@app.command()
def sign(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="What `peerd join --csr-out` wrote.")],
    out: Annotated[Path, typer.Option(metavar="CERT", help="Where the certificate goes, for `--certificate` there.")],
    dir: DirOption = None,
    lifetime: Annotated[str, typer.Option(metavar="TIME", help="Validity: 90d, 12h.")] = "90d",
) -> None:
    """Sign a node's request with a CA that is offline. A node that has a certificate keeps its id."""
    from peerd.identity.offline import sign_request

    pem, identity = sign_request(_folder(dir), request, timedelta(seconds=duration_s(lifetime, "--lifetime")))
    write_text(out, pem, 0o644)
    typer.echo(
        f"{out}: node {identity.node_id:032x} of cluster {identity.cluster}, "
        f"until {identity.not_after:%Y-%m-%d %H:%M} UTC\n"
        f"Carry it to the machine, and there:\n  peerd join SEED --certificate {out.name}"
    )


@app.command()
def rotate(
    overlap: Annotated[str, typer.Option(metavar="TIME", help="How long the old root stays trusted.")] = "7d",
    dir: Annotated[
        Path | None, typer.Option("--dir", metavar="D", help="A CA that is offline. Default: ask the issuer's daemon.")
    ] = None,
    socket: SocketOption = None,
) -> None:
    """Change to a new root. Both are trusted for the overlap, in which every node gets a new certificate by itself."""
    seconds = duration_s(overlap, "--overlap")
    if dir is not None:
        _rotate_offline(dir.expanduser().absolute(), seconds)
        return
    found = ask(socket, lambda client: client.rotate_ca(seconds))
    ends = datetime.fromtimestamp(min(root.trusted_until for root in found.roots), UTC)
    typer.echo(
        f"new root {found.roots[0].fingerprint}; the old one is trusted until {ends:%Y-%m-%d %H:%M:%S} UTC.\n"
        "Nodes learn it from each other and renew by themselves; `peerd certificate show` there says which they have.\n"
        "On other issuers: copy ca.key, ca.crt and ca.change from here, and restart them."
    )


@app.command()
def publish(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="ca.change of a rotated CA, or what `deny --out` wrote.")
    ],
    socket: SocketOption = None,
) -> None:
    """Give a notice that an offline CA signed to the daemon here, which spreads it to every node."""
    text = read_text(file)
    told = ask(socket, lambda client: client.publish_notice(text.strip()))
    typer.echo("published" if told.is_new else "nothing new: the daemon holds this notice, or a newer one")
    if not told.is_saved:
        typer.echo(NOT_SAVED.format("daemon"), err=True)


def _rotate_offline(folder: Path, overlap_s: float) -> None:
    from peerd.identity.authority import CA_CHANGE_FILE, ClusterAuthority
    from peerd.identity.issuer import rotate_authority

    try:
        new, _ = rotate_authority(ClusterAuthority.load(folder), folder, timedelta(seconds=overlap_s), time.time())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--overlap") from error
    typer.echo(
        f"new root {new.fingerprint.hex()} in {folder}.\n"
        f"Carry {CA_CHANGE_FILE} to any node, and there:\n  peerd ca publish {CA_CHANGE_FILE}\n"
        "Then sign new certificates for the nodes before the overlap ends: docs/identity.md."
    )


def _folder(given: Path | None) -> Path:
    return (given or own_directory() / "ca").expanduser().absolute()


def _cluster(roots: Roots) -> str:
    from cryptography.x509.oid import NameOID

    names = roots.newest.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    if not names:
        raise ConfigError("the CA certificate names no cluster")
    return str(names[0].value)
