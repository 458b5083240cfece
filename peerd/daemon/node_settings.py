"""Makes from the operator's configuration what a node is created with: identity, address, parameters."""

from __future__ import annotations

import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from peerd.config import PeerdConfig, is_loopback, split_address
from peerd.daemon.links.settings import TlsContexts
from peerd.errors import ConfigError
from peerd.frozen import Frozen
from peerd.identity.node_identity import id_without_tls, load_node_identity
from peerd.identity.tls import client_context, server_context
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.node.services import service_configs
from peerd.node.settings import NodeSettings

_WILDCARDS = ("0.0.0.0", "::")
_ROUTE_PROBE = ("192.0.2.1", 9)
"""An address that belongs to nobody (RFC 5737). Asking which interface leads there sends no packet."""


class NodeCredentials(Frozen):
    """Who this node is, and how it proves it (``tls`` is ``None`` on loopback without TLS)."""

    node_id: NodeId
    tls: TlsContexts | None


def load_identity(config: PeerdConfig) -> NodeCredentials:
    """Key, certificate and contexts from the configured files. Raises `ConfigError` naming the file."""
    if config.tls.mode == "off":
        return NodeCredentials(id_without_tls(Path(config.node.state_dir)), None)
    ca_file, cert_file, key_file = config.tls_files()
    peer = load_node_identity(cluster=config.node.cluster, ca_file=ca_file, cert_file=cert_file, key_file=key_file)
    return NodeCredentials(
        peer.node_id,
        TlsContexts(
            server=server_context(ca_file=ca_file, cert_file=cert_file, key_file=key_file),
            client=client_context(ca_file=ca_file, cert_file=cert_file, key_file=key_file),
        ),
    )


def advertised(config: PeerdConfig, node_id: NodeId, listening: tuple[str, int]) -> PeerRef:
    """Return the address at which others reach this node. Raises `ConfigError` when it cannot be found out."""
    host, port = listening
    if config.node.advertise:
        host, advertised_port = split_address(config.node.advertise)
        return PeerRef(node_id, host, advertised_port or port)
    if host in _WILDCARDS:
        host = _outgoing_host(config)
    return PeerRef(node_id, host, port)


def bootstrap_addresses(config: PeerdConfig, own: PeerRef) -> list[tuple[str, int]]:
    """Return the addresses to join through: ``node.bootstrap``, this node's own one written as it advertises it.

    This node's own address stays in the list, because by it the overlay knows that this node is a seed, which may found
    a ring.
    """
    listen, advertises = split_address(config.node.listen), (own.host, own.port)
    return [advertises if address == listen else address for address in map(split_address, config.node.bootstrap)]


def other_addresses(config: PeerdConfig, own: PeerRef) -> list[tuple[str, int]]:
    """`bootstrap_addresses` without this node's own."""
    return [address for address in bootstrap_addresses(config, own) if address != (own.host, own.port)]


def _outgoing_host(config: PeerdConfig) -> str:
    """The address of the interface that leads to the first bootstrap node that is not this machine."""
    targets = [split_address(text) for text in config.node.bootstrap]
    targets = [target for target in targets if not is_loopback(target[0])] or [_ROUTE_PROBE]
    family = socket.AF_INET6 if ":" in targets[0][0] else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(targets[0])
            return str(sock.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"no address to advertise: no route to {targets[0][0]} ({error}); set host:port", key="node.advertise"
        ) from error


def node_settings(config: PeerdConfig, peer: PeerRef, boot_epoch: int) -> NodeSettings:
    """Return the settings with which `peerd.node.node.Node` is made."""
    return NodeSettings(
        peer=peer,
        boot_epoch=boot_epoch,
        overlay=config.overlay,
        swap=config.swap,
        services=service_configs(config),
        profile=config.node.profile,
        version=package_version(),
    )


def package_version() -> str:
    """The installed version of peerd, or "unknown" when it runs from a bare source tree."""
    try:
        return version("peerd")
    except PackageNotFoundError:
        return "unknown"
