"""The daemon's configuration: every setting with its unit, its default, and which way to move it.

Precedence, lowest first: defaults, profile, files (later ones win), ``PEERD_SECTION__KEY`` environment,
``--set section.key=value``, flags. Lists replace, tables merge. Durations ("500ms", "30s") and sizes ("64MiB") carry
their unit; a bare number is refused. `load_config` reads it all and remembers where each value came from.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, Field, SerializeAsAny, create_model, model_validator

from peerd import limits
from peerd.config import sources as config_sources
from peerd.config.bounds import check_bounds
from peerd.config.sources import ConfigSchema, Tree
from peerd.errors import ConfigError
from peerd.node.services import service_sections
from peerd.overlay.config import OverlayConfig
from peerd.places import ADMIN_SOCKET, STATE_DIRECTORY
from peerd.quantities import (
    Age,
    ConfigSection,
    Count,
    Duration,
    Network,
    Size,
    between_durations,
    between_sizes,
    is_secret,
    misfit,
    setting,
)
from peerd.swap.config import SwapConfig

CLUSTER_NAME_PATTERN: Final = r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?"
"""The form of a cluster's name. It stands in the URI of a node's certificate, in the place of a host name."""
UNIX_SOCKET_PATH_BYTES_MAX: Final = 107
OVERFLOW_USER_ID: Final = 65534
ORIGINS_MAX: Final = 64
OPERATORS_MAX: Final = 64
ALLOWED_NETWORKS_MAX: Final = 64
TCP_SINK: Final = "tcp://"
COLLECTOR_SINK: Final = "peerd://"
OTLP_SINKS: Final = ("otlp://", "otlps://")
HIDDEN: Final = "(hidden)"
"""Shown in place of a secret."""


def split_address(text: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port"; port 0 lets the system choose. Raises ``ValueError``."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = str(ipaddress.IPv6Address(host[1:-1]))
    elif ":" in host:
        raise ValueError('expected an IPv6 address in brackets, such as "[::1]:7420"')
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not colon or not digits or int(port) > 65535 or not re.fullmatch(r"[0-9A-Za-z.:_-]{1,253}", host):
        raise ValueError('expected "host:port", such as "192.0.2.7:7420"')
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``. A name other than localhost counts as reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_address(text: str) -> str:
    split_address(text)
    return text


def _check_optional_address(text: str) -> str:
    return _check_address(text) if text else text


def _check_cluster(text: str) -> str:
    if re.fullmatch(CLUSTER_NAME_PATTERN, text) is None:
        raise ValueError("expected 1 to 63 of a-z, 0-9, '-' and '.', starting and ending with a letter or digit")
    return text


def _check_socket_path(text: str) -> str:
    if not text or len(text.encode()) > UNIX_SOCKET_PATH_BYTES_MAX:
        raise ValueError(f"expected a path of 1 to {UNIX_SOCKET_PATH_BYTES_MAX} bytes, the system's limit for a socket")
    return text


def _check_optional_socket_path(text: str) -> str:
    return _check_socket_path(text) if text else text


def _check_origin(text: str) -> str:
    if (
        text != "*"
        and re.fullmatch(r"https?://[0-9a-z.-]{1,253}(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?", text)
        is None
    ):
        raise ValueError('expected an origin such as "https://example.org" (small letters, no path), or "*"')
    return text


def _check_user_id(user_id: int) -> int:
    if user_id == OVERFLOW_USER_ID:
        raise ValueError(
            f"{OVERFLOW_USER_ID} is the user id of everybody that a container or systemd's PrivateUsers= does not map"
        )
    return user_id


Address = Annotated[str, AfterValidator(_check_address)]
"""``host:port``; see `split_address`."""
OptionalAddress = Annotated[str, AfterValidator(_check_optional_address)]


# Sections -------------------------------------------------------------------------------------------------


def _check_sink(text: str) -> str:
    if text.startswith((TCP_SINK, COLLECTOR_SINK, *OTLP_SINKS)):
        _check_address(text.partition("://")[2])
    elif "://" in text:
        raise ValueError(
            'expected a directory, "stdout", or a collector: peerd://, otlp://, otlps:// or tcp://host:port'
        )
    return text


class NodeConfig(ConfigSection):
    """Which cluster this node belongs to, and where it is found."""

    cluster: Annotated[str, AfterValidator(_check_cluster)] = setting(
        "peerd", "Name of the cluster. Nodes of different names refuse each other; certificates carry it."
    )
    profile: Literal["lan", "wan", "local"] = setting(
        "lan",
        "Preset of a few timers: lan (one site), wan (round trips of 100 ms and more), local (all on this machine, "
        "loopback only, quick to notice). Explicit settings win over it.",
    )
    listen: Address = setting(
        "0.0.0.0:7420", "host:port for peers. Port 0 lets the system choose: read it from ports_file."
    )
    advertise: OptionalAddress = setting(
        "",
        "host:port under which others reach this node, behind address translation or in a container. "
        "Empty: the listen address, or for 0.0.0.0 the one that outgoing links use.",
    )
    bootstrap: Annotated[tuple[Address, ...], Field(max_length=limits.KNOWN_PEERS_MAX)] = setting(
        (),
        "host:port of nodes to join through; any one that is alive is enough, three to five are plenty. "
        "Empty: this node starts a new ring.",
        reloads=True,
    )
    allowed_networks: Annotated[tuple[Network, ...], Field(max_length=ALLOWED_NETWORKS_MAX)] = setting(
        (),
        "Networks such as 10.0.0.0/8 in which this node dials others that it hears of from members; everything else "
        "is refused. Empty: everywhere but link-local, multicast and reserved addresses, and loopback ones only when "
        "this node listens or bootstraps there. Name the networks of all members, for a member can name any address.",
        reloads=True,
    )
    state_dir: Annotated[str, Field(min_length=1)] = setting(
        STATE_DIRECTORY, "Directory (0700) of the identity, boot epoch, known peers and plugin stores; one a daemon."
    )
    ports_file: str = setting("", "File to write the ports in use to, as JSON, once they are open. Empty: none.")
    shutdown_timeout: Annotated[Duration, between_durations("100ms", "10m")] = setting(
        "5s",
        "Longest graceful stop: leave the ring, finish transfers, flush. Raise it when large transfers should "
        "finish; keep it below the service manager's own limit.",
        reloads=True,
    )


class TlsConfig(ConfigSection):
    """Mutual TLS 1.3 between nodes."""

    mode: Literal["mutual", "off"] = setting(
        "mutual", "mutual, or off for benchmarks on one machine: off needs a loopback listen address."
    )
    ca_file: str = setting("", "PEM certificates of the cluster CA. Empty: ca.crt in node.state_dir.")
    cert_file: str = setting("", "PEM certificate of this node. Empty: node.crt in node.state_dir.")
    key_file: str = setting(
        "", "PEM private key of this node, readable by the daemon only. Empty: node.key in node.state_dir."
    )


class IssuerConfig(ConfigSection):
    """Whether this node issues certificates: it then holds the CA's key, and machines join through it."""

    enabled: bool = setting(
        False, "Issue certificates to machines with a join token, and renew those of nodes. One to three nodes should."
    )
    ca_dir: str = setting("", "Folder of ca.key and ca.crt, writable for rotation. Empty: ca in node.state_dir.")
    lifetime: Annotated[Duration, between_durations("5s", "365d")] = setting(
        "24h",
        "Validity of the certificates issued; nodes renew at half of it. Shorter: a denied node is out sooner where "
        "the deny list did not reach; longer: nodes live through a longer absence of every issuer.",
    )
    return_grace: Annotated[Duration, between_durations("0s", "365d")] = setting(
        "30d",
        "How long after its end a certificate is still renewed, for nodes that were off. Longer: a machine can rest "
        "longer and keep its identity; 0s: it needs a new token. A denied node never comes back this way.",
    )


class AdminConfig(ConfigSection):
    """Where the command line, probes and Prometheus reach the daemon."""

    socket: Annotated[str, AfterValidator(_check_socket_path)] = setting(
        ADMIN_SOCKET,
        "Path of the unix socket of the admin API. Who may open it may read everything; see operators for changes.",
    )
    operators: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=2**32 - 1), AfterValidator(_check_user_id)], ...],
        Field(max_length=OPERATORS_MAX),
    ] = setting(
        (),
        "Numeric ids of users who may change things over the socket (drain, deny, tokens, rotate), beside root and "
        "the daemon's own user. They also need the socket's group, to open it.",
        reloads=True,
    )
    http: OptionalAddress = setting(
        "",
        "Loopback host:port, such as 127.0.0.1:7421, for probes and Prometheus: what the daemon itself tells over TCP, "
        "without the protocols' routes. Every user of the machine can reach it. Empty: none.",
    )


class DataConfig(ConfigSection):
    """Where programs reach the protocols' data, apart from the operators' socket."""

    socket: Annotated[str, AfterValidator(_check_optional_socket_path)] = setting(
        "data.sock",
        "Path of the unix socket of data clients; a name without a slash is put beside admin.socket. Who may open it "
        "may use every protocol. Empty: none.",
    )
    http: OptionalAddress = setting(
        "",
        "host:port of the same over TCP. Another address than loopback needs tls_certificate and asks every client "
        "for a token of `peerd access create`. Empty: none.",
    )
    connections_max: Annotated[int, Field(ge=1, le=16_384)] = setting(
        limits.HTTP_REQUESTS_MAX,
        "Requests and streams of data clients at a time, on the socket and on the TCP port each; at most a sixteenth "
        "of the file descriptor limit. Each costs a descriptor, and the memory of what a slow reader has not taken.",
        reloads=True,
    )
    tokens: Literal["auto", "required"] = setting(
        "auto",
        "Who needs a token over TCP: auto (everybody, unless http is loopback) or required (everybody).",
        reloads=True,
    )
    cors_origins: Annotated[
        tuple[Annotated[str, AfterValidator(_check_origin)], ...], Field(max_length=ORIGINS_MAX)
    ] = setting(
        (),
        'Web pages that may ask over TCP, by their origin, such as "https://example.org"; "*" is any page, and '
        "needs tokens. Empty: none, not even pages on this machine.",
        reloads=True,
    )
    tls_certificate: str = setting(
        "",
        "PEM certificate chain with which http speaks HTTPS; a reload reads it again. Empty: plain HTTP.",
        reloads=True,
    )
    tls_key: str = setting("", "PEM private key of tls_certificate.", reloads=True)
    insecure: bool = setting(
        False,
        "Allow plain HTTP on another address than loopback: everybody on the way can read the data and the tokens. "
        "Right behind a proxy that adds TLS, or on a network of your own.",
        reloads=True,
    )


class TelemetryConfig(ConfigSection):
    """Logs and the event log."""

    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "Least severe log line that is written.", reloads=True
    )
    log_format: Literal["auto", "json", "console"] = setting(
        "auto", "json (one object a line), console (for people), or auto: console on a terminal, json elsewhere."
    )
    sink: Annotated[str, AfterValidator(_check_sink)] = setting(
        "",
        "Where the event log goes: a directory (NDJSON files, the input of `peerd analyze`), stdout, "
        "peerd://host:port (`peerd sink serve`: loses and doubles nothing), otlp://host:port or otlps://host:port "
        "(OpenTelemetry over HTTP; extra `otlp`), or tcp://host:port (another collector that takes JSON lines). "
        "Empty: no event log.",
        reloads=True,
    )
    rotate_size: Annotated[Size, between_sizes("64KiB", "16GiB")] = setting(
        "64MiB", "Size at which an event file is finished and the next begun.", reloads=True
    )
    rotate_age: Age = setting(
        "10m", "Age at which an event file is finished, so that readers see events at most this late.", reloads=True
    )
    budget: Annotated[Size, between_sizes("1MiB", "16TiB")] = setting(
        "1GiB",
        "Finished event files that are kept, as they are on disk; the oldest go first. The newest always stays, and "
        "the one that is being written comes on top.",
        reloads=True,
    )
    compression: Literal["gzip", "none"] = setting(
        "gzip",
        "What is done with an event file that is finished: some eight times smaller, or left as it is.",
        reloads=True,
    )
    queue_records_max: Count = setting(
        limits.EVENT_QUEUE_RECORDS_MAX,
        "Events waiting for a slow disk; above it they are dropped and counted. About 1 KiB of memory each.",
        reloads=True,
    )


class LimitsConfig(ConfigSection):
    """How much others may make this daemon spend. Whenever a bound has an effect, that is counted."""

    links_max: Annotated[int, Field(ge=8, le=65536)] = setting(
        limits.LINKS_MAX,
        "Peer links at a time, about 100 KiB of memory each with TLS. Above the file descriptor limit it cannot help.",
        reloads=True,
    )
    transient_links_max: Count = setting(
        limits.TRANSIENT_LINKS_MAX,
        "Incoming connections that have not finished their handshake. For another one the oldest is closed, of the "
        "host that has the most of them.",
        reloads=True,
    )
    transient_links_host_max: Count = setting(
        limits.TRANSIENT_LINKS_HOST_MAX,
        "The same for one host (an IPv4 address, an IPv6 /64). Raise it when many nodes behind one address restart.",
        reloads=True,
    )
    accepts_per_second: Annotated[float, Field(gt=0, le=10_000)] = setting(
        limits.ACCEPTS_PER_SECOND,
        "Connections accepted a second before TLS is spent on them (a handshake costs 1.5 ms of a core). "
        "Raise it when a large ring restarts at once.",
        reloads=True,
    )
    accepts_burst: Count = setting(
        limits.ACCEPTS_BURST, "Connections accepted at once after a quiet time.", reloads=True
    )
    send_queue_bytes: Annotated[Size, between_sizes("64KiB", "256MiB")] = setting(
        "4MiB",
        "Bytes waiting for one slow peer; above it the least important are dropped and counted. "
        "Worst case in memory: links_max x this.",
        reloads=True,
    )
    peer_messages_per_second: Annotated[float, Field(gt=0, le=1_000_000)] = setting(
        limits.PEER_MESSAGES_PER_SECOND,
        "Messages a second taken from one peer; a peer that keeps above it is disconnected.",
        reloads=True,
    )
    link_age_max: Annotated[Duration, between_durations("1m", "7d")] = setting(
        "12h",
        "Age at which a peer link is made anew, at random between half of it and all, so that renewed and denied "
        "certificates count. It costs a handshake.",
        reloads=True,
    )
    peer_messages_burst: Count = setting(
        limits.PEER_MESSAGES_BURST, "Messages taken from one peer at once after a quiet time.", reloads=True
    )


class TlsFiles(NamedTuple):
    """The three files that a TLS context needs."""

    ca_file: Path
    cert_file: Path
    key_file: Path


class _KernelSections(ConfigSection):
    """The tables before those of the services."""

    node: NodeConfig = setting(NodeConfig(), "Which cluster this node belongs to, and where it is found.")
    tls: TlsConfig = setting(TlsConfig(), "Mutual TLS 1.3 between nodes.")
    issuer: IssuerConfig = setting(IssuerConfig(), "Whether this node issues certificates.")
    admin: AdminConfig = setting(AdminConfig(), "Where the command line, probes and Prometheus reach the daemon.")
    data: DataConfig = setting(DataConfig(), "Where programs reach the protocols' data.")
    overlay: OverlayConfig = setting(OverlayConfig(), "Timers of the ring.")
    swap: SwapConfig = setting(SwapConfig(), "Bulk transfers.")


if TYPE_CHECKING:

    class _ServiceSections(_KernelSections):
        """Adds a table for each service; they are added at run time, so the type checker does not know them."""

else:
    _ServiceSections = create_model("_ServiceSections", __base__=_KernelSections, **service_sections())


class PeerdConfig(_ServiceSections):
    """The whole configuration of one daemon."""

    telemetry: TelemetryConfig = setting(TelemetryConfig(), "Logs and the event log.")
    limits: LimitsConfig = setting(LimitsConfig(), "What others may make this daemon spend.")
    protocols: dict[str, SerializeAsAny[BaseModel]] = setting({}, "One table a plugin, by the plugin's name.")

    def ca_dir(self) -> Path:
        """The configured folder of the CA, or the one in the state directory."""
        return Path(self.issuer.ca_dir) if self.issuer.ca_dir else Path(self.node.state_dir) / "ca"

    def tls_files(self) -> TlsFiles:
        """The configured files, or the ones in the state directory."""
        directory = Path(self.node.state_dir)
        tls = self.tls
        return TlsFiles(
            Path(tls.ca_file) if tls.ca_file else directory / "ca.crt",
            Path(tls.cert_file) if tls.cert_file else directory / "node.crt",
            Path(tls.key_file) if tls.key_file else directory / "node.key",
        )

    def data_socket(self) -> str:
        """Path of the data clients' unix socket; empty for none."""
        name = self.data.socket
        return name if "/" in name or not name else str(Path(self.admin.socket).parent / name)

    def data_needs_token(self) -> bool:
        """Whether data clients over TCP must show a token."""
        return self.data.tokens == "required" or not is_loopback(split_address(self.data.http)[0])

    def http_budgets(self) -> list[int]:
        """For each HTTP listener that there is, how many requests it is to serve at a time."""
        operators = [limits.HTTP_REQUESTS_MAX] * (1 + bool(self.admin.http))
        return operators + [self.data.connections_max] * (bool(self.data.socket) + bool(self.data.http))

    @model_validator(mode="after")
    def _check_data(self) -> Self:
        data = self.data
        if data.socket:
            try:
                _check_socket_path(self.data_socket())
            except ValueError as error:
                raise misfit("data.socket", str(error)) from error
        if self.data_socket() == self.admin.socket:
            raise misfit("data.socket", "expected another path than admin.socket")
        if bool(data.tls_certificate) != bool(data.tls_key):
            raise misfit("data.tls_key", "expected data.tls_certificate and data.tls_key together, or neither")
        if not data.http:
            return self
        if not (is_loopback(split_address(data.http)[0]) or data.tls_certificate or data.insecure):
            raise misfit(
                "data.http",
                "expected a loopback address, or data.tls_certificate and data.tls_key: without TLS everybody on the "
                "way reads data and tokens (data.insecure = true allows it)",
            )
        if "*" in data.cors_origins and not self.data_needs_token():
            raise misfit("data.cors_origins", '"*" needs data.tokens = "required": any web page could read the data')
        return self

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.tls.mode == "off" and not is_loopback(split_address(self.node.listen)[0]):
            raise misfit("tls.mode", f'"off" needs a loopback node.listen, not "{self.node.listen}": use "mutual"')
        if self.tls.mode == "off" and self.issuer.enabled:
            raise misfit("issuer.enabled", 'an issuer needs tls.mode = "mutual"')
        if self.admin.http and not is_loopback(split_address(self.admin.http)[0]):
            raise misfit("admin.http", "expected a loopback address: the admin API over TCP asks for no password")
        return self

    @model_validator(mode="after")
    def _check_plugins(self) -> Self:
        check_bounds(self, self.protocols)
        return self


PROFILES: Final[Mapping[str, Tree]] = {
    "lan": {},
    "wan": {
        "overlay": {
            "heartbeat_interval": "10s",
            "failure_timeout": "30s",
            "lease": "1m",
            "probe_retry": "1s",
            "ack_timeout_min": "1s",
            "ack_timeout_initial": "3s",
            "ack_timeout_max": "6s",
            "join_retry_min": "1s",
            "join_retry_max": "1m",
        },
        "swap": {"stall_timeout": "1m", "deadline": "1h"},
    },
    "local": {
        "node": {"listen": "127.0.0.1:7420"},
        "overlay": {
            "heartbeat_interval": "1s",
            "failure_timeout": "4s",
            "join_retry_min": "50ms",
            "join_retry_max": "2s",
            "exchange_interval": "2s",
            "lease": "8s",
            "departed_interval": "2s",
            "vouch_delay": "5s",
            "table_interval": "10s",
        },
    },
}
"""What a profile sets instead of the defaults."""


# Loading --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadedConfig:
    """A valid configuration and where each value of it came from.

    ``origins`` has an entry for every dotted key: "default", "profile local", "/etc/peerd/peerd.toml:12",
    "environment PEERD_NODE__CLUSTER", "flag --set" or "flag --listen".
    """

    config: PeerdConfig
    origins: dict[str, str]

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """Key, value in file notation, origin: what `peerd config show` prints."""
        secrets = [key for key, field in config_sources.fields(self.config) if is_secret(field)]
        for key, value in config_sources.leaves(self.config.model_dump()):
            is_hidden = any(key == secret or key.startswith(f"{secret}.") for secret in secrets)
            yield key, HIDDEN if is_hidden else value, self.origins[key]


def check_config(
    files: Sequence[Path] = (),
    *,
    environment: Mapping[str, str],
    sets: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
    plugin_models: Mapping[str, type[BaseModel]] | None = None,
) -> tuple[LoadedConfig | None, list[ConfigError]]:
    """Read everything and return the configuration, or ``None`` and every problem found. See `load_config`."""
    schema = ConfigSchema(PeerdConfig, plugin_models)
    try:
        layers = [config_sources.read_file(path) for path in config_sources.expand_files(files)]
        layers.append(config_sources.read_environment(environment, schema))
        layers.append(config_sources.read_sets(sets, schema))
        layers.append(config_sources.read_flags(flags or {}))
    except ConfigError as error:
        return None, [error]
    profile = config_sources.value_at(config_sources.merge(layers).tree, "node.profile", "lan")
    if isinstance(profile, str) and profile in PROFILES:  # an unknown one is reported as the wrong value that it is
        layers.insert(0, config_sources.named_layer(PROFILES[profile], f"profile {profile}"))
    merged = config_sources.merge(layers)
    config, problems = config_sources.validate(PeerdConfig, schema, merged)
    if config is None:
        return None, problems
    keys = (key for key, _ in config_sources.leaves(config.model_dump()))
    return LoadedConfig(config, {key: merged.origins.get(key, "default") for key in keys}), []


def load_config(
    files: Sequence[Path] = (),
    *,
    environment: Mapping[str, str],
    sets: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
    plugin_models: Mapping[str, type[BaseModel]] | None = None,
) -> LoadedConfig:
    """Read the configuration. Raises `ConfigError` with file (and line), key and what was expected.

    ``files``: TOML files, or directories whose ``*.toml`` are read in name order. ``environment``: normally
    ``os.environ``. ``sets``: texts ``section.key=value``. ``flags``: dotted key to value, for options of the
    command line; ``None`` values are skipped. ``plugin_models``: the config model of each plugin by name; ``None``
    leaves ``[protocols.*]`` unread, for commands that load no plugins.
    """
    loaded, problems = check_config(files, environment=environment, sets=sets, flags=flags, plugin_models=plugin_models)
    if loaded is not None:
        return loaded
    first = problems[0]
    if len(problems) == 1:
        raise first
    more = f"{first.message} (and {len(problems) - 1} more: peerd config check)"
    raise ConfigError(more, file=first.file, key=first.key)


def scaffold_toml(plugin_models: Mapping[str, type[BaseModel]] | None = None) -> str:
    """The text of a new configuration file: every setting with its description, commented out at its default."""
    return config_sources.scaffold(ConfigSchema(PeerdConfig, plugin_models))


def config_json_schema(plugin_models: Mapping[str, type[BaseModel]] | None = None) -> dict[str, Any]:
    """JSON Schema of a configuration file, for editors."""
    return config_sources.json_schema(ConfigSchema(PeerdConfig, plugin_models))
