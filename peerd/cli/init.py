"""``peerd init``: the files of a new node, and of a new cluster's certificate authority."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from peerd.cli.files import write_text
from peerd.cli.locations import CONFIG_NAME, own_directory, standard_files
from peerd.cli.node_options import with_node_options
from peerd.cli.options import ListenOption
from peerd.config import UNIX_SOCKET_PATH_BYTES_MAX, AdminConfig, NodeConfig, check_config, scaffold_toml, split_address
from peerd.config.sources import toml_value
from peerd.errors import ConfigError
from peerd.ids import NodeId, format_id

SOCKET_NAME = "admin.sock"


@dataclass(frozen=True, slots=True)
class Created:
    """The things that `create_node` made, for the text that is printed at the end."""

    config_file: Path
    authority: Path
    is_new_authority: bool
    cluster: str
    node_id: NodeId


@with_node_options(lambda front: front.init_options())
def init(
    dir: Annotated[
        Path | None,
        typer.Option(
            metavar="D", help="Where the node lives. Default: /var/lib/peerd as root, else ~/.local/state/peerd."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the cluster. Default: the CA's, or 'peerd' for a new one."),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The cluster's CA (ca.key, ca.crt). Default: D/ca, made when it is not there."
        ),
    ] = None,
    bootstrap: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="A node to join through; may be repeated. None: a new ring."),
    ] = None,
    listen: ListenOption = None,
    issuer: Annotated[
        bool, typer.Option("--issuer", help="This node issues certificates: machines join through it with a token.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Rewrite peerd.toml. The CA and the node's identity are always kept.")
    ] = False,
    *,
    protocol_settings: dict[str, Any],
) -> None:
    """Make a node: its configuration, key and certificate, and a CA for a new cluster. Asks nothing."""
    directory = (dir or own_directory()).expanduser().absolute()
    settings = node_settings(directory, bootstrap or [], listen) | protocol_settings
    authority = ca.expanduser().absolute() if ca else None
    if issuer:
        settings |= {"issuer.enabled": True} | ({"issuer.ca_dir": str(authority)} if authority else {})
    created = create_node(directory, settings, cluster, authority, force)
    typer.echo(next_steps(created, settings))


def node_settings(directory: Path, bootstrap: list[str], listen: str | None) -> dict[str, Any]:
    """Return the settings for the new file by dotted key; everything else stays at its default."""
    settings: dict[str, Any] = {"node.state_dir": str(directory)}
    if listen is not None:
        settings["node.listen"] = listen
    if bootstrap:
        settings["node.bootstrap"] = bootstrap
    if directory != Path(NodeConfig().state_dir):
        settings["admin.socket"] = str(directory / SOCKET_NAME)
        if len(str(directory / SOCKET_NAME).encode()) > UNIX_SOCKET_PATH_BYTES_MAX:
            limit = UNIX_SOCKET_PATH_BYTES_MAX - len(SOCKET_NAME) - 1
            raise ConfigError(
                f"too long for the admin socket below it: choose a --dir of at most {limit} bytes", file=str(directory)
            )
    return settings


def create_node(
    directory: Path, settings: dict[str, Any], cluster: str | None, ca: Path | None, force: bool
) -> Created:
    """Write CA, identity and configuration. Raises `ConfigError`, before anything is written where it can."""
    from peerd.identity.authority import ClusterAuthority

    config_file = directory / CONFIG_NAME
    if config_file.exists() and not force:
        raise ConfigError("is there already: --force rewrites it, and keeps the node's identity", file=str(config_file))
    folder = ca or directory / "ca"
    is_new = ca is None and not (folder / "ca.key").exists()
    authority = ClusterAuthority.create(cluster or NodeConfig().cluster) if is_new else _load_authority(folder)
    if cluster is not None and cluster != authority.cluster:
        raise ConfigError(f"this CA is of the cluster {authority.cluster!r}, not of {cluster!r}", file=str(folder))
    text = config_text({"node.cluster": authority.cluster, **settings})
    _make_private(directory)
    if is_new:
        authority.save(folder)
    node_id = _identity(directory, authority)
    write_text(config_file, text, 0o644)  # no secrets; clients find the socket in it
    return Created(config_file, folder, is_new, authority.cluster, node_id)


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make it: {error.strerror}", file=str(directory), key="node.state_dir") from error


def _load_authority(folder: Path) -> Any:
    from peerd.identity.authority import ClusterAuthority

    if not (folder / "ca.key").exists():
        raise ConfigError(
            "there is no CA here: give the folder with the ca.key and ca.crt of your cluster, or leave --ca out to "
            "make a new cluster",
            file=str(folder),
        )
    return ClusterAuthority.load(folder)


def _identity(directory: Path, authority: Any) -> NodeId:
    """Make the node's key and certificate, or check those that are there. Raises `ConfigError`."""
    from peerd.identity.authority import CA_CERT_FILE, NODE_CERT_FILE, NODE_KEY_FILE, create_node_files
    from peerd.identity.node_identity import load_node_identity

    if not (directory / NODE_KEY_FILE).exists():
        return create_node_files(authority, directory)
    identity = load_node_identity(
        cluster=authority.cluster,
        ca_file=directory / CA_CERT_FILE,
        cert_file=directory / NODE_CERT_FILE,
        key_file=directory / NODE_KEY_FILE,
    )
    return identity.node_id


def config_text(settings: dict[str, Any]) -> str:
    """A configuration file with these settings, everything else commented out. Raises `ConfigError` for a bad one."""
    from peerd.plugins import find_plugins, plugin_models

    models = plugin_models(find_plugins())
    _, problems = check_config(environment={}, flags=settings, plugin_models=models)
    if problems:
        raise problems[0]
    return fill_in(scaffold_toml(models), settings)


def fill_in(scaffold: str, settings: dict[str, Any]) -> str:
    """Return the scaffold with some of its commented defaults replaced by values."""
    lines, table, missing = [], "", dict(settings)
    for line in scaffold.splitlines():
        if line.startswith("["):
            table = line.strip("[]")
        name, equals, _ = line.removeprefix("#").partition(" =")
        key = f"{table}.{name}"
        if equals and line.startswith("#") and key in missing:
            line = f"{name} = {toml_value(missing.pop(key))}"
        lines.append(line)
    if missing:
        raise ConfigError(f"no such setting: {', '.join(missing)}")
    return "\n".join(lines) + "\n"


def next_steps(created: Created, settings: dict[str, Any]) -> str:
    """Return the text that says what was made, and what to type next."""
    is_standard = created.config_file in standard_files()
    config = "" if is_standard else f" --config {shlex.quote(str(created.config_file))}"
    address = settings.get("admin.socket", AdminConfig().socket)
    socket = "" if is_standard else f" --socket {shlex.quote(address)}"
    what = "new, its key issues certificates: keep it safe" if created.is_new_authority else "as it was"
    bootstrap = " ".join(settings.get("node.bootstrap", [])) or "nobody: it starts a new ring"
    lines = [
        f"node     {format_id(created.node_id)} of cluster {created.cluster}",
        f"config   {created.config_file}",
        f"CA       {created.authority} ({what})",
        f"joins    {bootstrap}",
        "",
        "Next:",
        f"  peerd run{config}",
        f"  peerd status{socket}",
    ]
    if settings.get("issuer.enabled"):
        port = split_address(settings.get("node.listen", NodeConfig().listen))[1] or "PORT"
        lines += [
            "For one more node, once this one runs:",
            f"  peerd token create{socket} --ttl 1h --out FILE      here",
            f"  peerd join HOST:{port} --token-file FILE            there",
        ]
    elif not settings.get("node.bootstrap") and os.path.isdir(created.authority):
        port = split_address(settings.get("node.listen", NodeConfig().listen))[1] or "PORT"
        lines += [
            "For one more node, with a copy of the CA's folder on its machine:",
            f"  peerd init --dir DIR --ca {shlex.quote(str(created.authority))} --bootstrap HOST:{port}",
        ]
    return "\n".join(lines)
