"""``peerd mqtt``: MQTT clients publish and subscribe."""

from __future__ import annotations

import ipaddress
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from peerd.cli.options import SocketOption, ask
from peerd.cli.output import printable, stderr
from peerd.errors import ConfigError
from peerd.quantities import parse_duration

if TYPE_CHECKING:
    from peerd.client import Client
    from protocols.pubsub.front.mqtt.ring import RingAccess
    from protocols.pubsub.front.mqtt.session import GatewaySettings

LISTEN: Final = "127.0.0.1:1883"
CLIENTS_MAX: Final = 200
UNIX: Final = "unix:"
NO_TOKEN: Final = "peerd_mqtt_asks_whether_tokens_are_checked"


def mqtt(
    schema: Annotated[str, typer.Option("--schema", metavar="NAME", help="The schema of the events.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT|unix:PATH", help="A loopback address (port 0: any), or a unix socket.")
    ] = LISTEN,
    topic: Annotated[
        str, typer.Option(metavar="PATTERN", help="Which level of a topic is which attribute: stocks/{symbol}/{kind}.")
    ] = "{topic...}",
    state: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keeps durable sessions while the gateway is down.")
    ] = None,
    clients: Annotated[int, typer.Option(min=1, max=10_000, help="Most clients at a time.")] = CLIENTS_MAX,
    strict: Annotated[
        bool, typer.Option(help="Refuse a JSON object with members that the schema does not have.")
    ] = True,
    refused: Annotated[
        str,
        typer.Option(
            metavar="close|count",
            help="A client of MQTT 3.1.1 whose message is refused: end its connection, or acknowledge and count.",
        ),
    ] = "close",
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Over TCP, clients show an access token as their password.")
    ] = False,
    keep: Annotated[str, typer.Option(metavar="DURATION", help="No session is kept for longer than this.")] = "7d",
    socket: SocketOption = None,
) -> None:
    """Serve MQTT 3.1.1 and 5 clients of this machine, until interrupted: they publish and subscribe as at any broker.

    Without --topic the whole topic is the attribute `topic`. Members of a JSON payload are attributes as well.

    Examples: peerd mqtt --schema stocks --topic 'stocks/{symbol}/{kind}'
    """
    if find_spec("ohmqtt") is None:
        raise typer.BadParameter("this needs the extra mqtt: pip install 'peerd[mqtt]'", param_hint="peerd mqtt")
    if refused not in ("close", "count"):
        raise typer.BadParameter(f"{refused!r} is not close or count", param_hint="--refused")
    try:
        keep_s = int(parse_duration(keep))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--keep") from error
    address = _address(listen)

    async def run(client: Client) -> None:
        from protocols.pubsub.front.mqtt.session import GatewaySettings

        settings = GatewaySettings(clients, keep_s, tokens, refused == "close")
        await serve(client, schema, topic, address, state, settings, is_strict=strict)

    ask(socket, run, waiting="")


async def serve(
    client: Client,
    schema: str,
    pattern: str,
    address: tuple[str, int] | Path,
    state: Path | None,
    settings: GatewaySettings,
    *,
    is_strict: bool,
) -> None:
    """Serve until SIGTERM or SIGINT. Raises `ConfigError` and what the client raises."""
    import asyncio
    import signal

    from protocols.pubsub.front.client import PubSubClient
    from protocols.pubsub.front.mqtt.counts import Counts
    from protocols.pubsub.front.mqtt.gateway import Gateway, Notices
    from protocols.pubsub.front.mqtt.mapping import EventMap
    from protocols.pubsub.front.mqtt.ring import RingAccess
    from protocols.pubsub.front.mqtt.topics import TopicMap

    document = await PubSubClient(client).schema(schema)
    types = {each["name"]: each["type"] for each in document["attributes"]}
    topics = TopicMap(pattern, types)
    notices = Notices(lambda text: stderr().print(f"peerd: {printable(text)}"))
    ring = RingAccess(client, schema, topics, EventMap(topics, types, is_strict=is_strict), notices, Counts())
    if settings.wants_tokens:
        await _check_tokens(ring)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    def ready(where: str) -> None:
        print(f"MQTT on {where}, schema {schema}, topics {pattern}", flush=True)

    await Gateway(ring, notices, settings, state).serve(address, stop, ready)


async def _check_tokens(ring: RingAccess) -> None:
    """Raise `ConfigError` where the daemon does not look at tokens: any password would do then."""
    from peerd.client import RequestRefused

    made_up = ring.shown(NO_TOKEN)
    try:
        await made_up.check()
    except RequestRefused as error:
        if error.problem.status == HTTPStatus.UNAUTHORIZED:
            return
        raise
    finally:
        await made_up.close()
    raise ConfigError(
        "here the daemon does not look at tokens: name its data listener with --socket (data.socket, or "
        "http://127.0.0.1:7422 for data.http)",
        key="--tokens",
    )


def _address(text: str) -> tuple[str, int] | Path:
    """Read ``--listen``. Raises ``typer.BadParameter``."""
    if text.startswith(UNIX):
        return Path(text.removeprefix(UNIX))
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        number = int(port)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not HOST:PORT", param_hint="--listen") from None
    if not address.is_loopback or not 0 <= number <= 65_535:
        raise typer.BadParameter(
            "only loopback addresses: passwords would travel in the clear, so what connects from elsewhere goes "
            "through a proxy with TLS",
            param_hint="--listen",
        )
    return str(address), number
