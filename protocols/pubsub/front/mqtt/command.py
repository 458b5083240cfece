"""``peerd mqtt``: MQTT clients publish and subscribe."""

from __future__ import annotations

import ipaddress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from peerd.cli.options import SocketOption, ask
from peerd.cli.output import printable, stderr

if TYPE_CHECKING:
    from peerd.client import Client

LISTEN: Final = "127.0.0.1:1883"
CLIENTS_MAX: Final = 200


def mqtt(
    schema: Annotated[str, typer.Option("--schema", metavar="NAME", help="The schema of the events.")],
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="A loopback address; port 0: any.")] = LISTEN,
    topic: Annotated[
        str, typer.Option(metavar="PATTERN", help="Which level of a topic is which attribute: stocks/{symbol}/{kind}.")
    ] = "{topic...}",
    state: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keeps durable sessions while the gateway is down.")
    ] = None,
    clients: Annotated[int, typer.Option(min=1, max=10_000, help="Most clients at a time.")] = CLIENTS_MAX,
    socket: SocketOption = None,
) -> None:
    """Serve MQTT 3.1.1 and 5 clients of this machine, until interrupted: they publish and subscribe as at any broker.

    Without --topic the whole topic is the attribute `topic`. Members of a JSON payload are attributes as well.

    Examples: peerd mqtt --schema stocks --topic 'stocks/{symbol}/{kind}'
    """
    if find_spec("ohmqtt") is None:
        raise typer.BadParameter("this needs the extra mqtt: pip install 'peerd[mqtt]'", param_hint="peerd mqtt")
    host, port = _address(listen)

    async def run(client: Client) -> None:
        await serve(client, schema, topic, (host, port), state, clients)

    ask(socket, run, waiting="")


async def serve(
    client: Client, schema: str, pattern: str, address: tuple[str, int], state: Path | None, clients_max: int
) -> None:
    """Serve until SIGTERM or SIGINT. Raises `ConfigError` and what the client raises."""
    import asyncio
    import signal

    from protocols.pubsub.front.client import PubSubClient
    from protocols.pubsub.front.mqtt.gateway import Gateway, Notices
    from protocols.pubsub.front.mqtt.mapping import EventMap
    from protocols.pubsub.front.mqtt.ring import RingAccess
    from protocols.pubsub.front.mqtt.topics import TopicMap

    document = await PubSubClient(client).schema(schema)
    types = {each["name"]: each["type"] for each in document["attributes"]}
    topics = TopicMap(pattern, types)
    notices = Notices(lambda text: stderr().print(f"peerd: {printable(text)}"))
    ring = RingAccess(client, schema, topics, EventMap(topics, types), notices)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    def ready(port: int) -> None:
        print(f"MQTT on {address[0]}:{port}, schema {schema}, topics {pattern}", flush=True)

    await Gateway(ring, notices, clients_max, state).serve(*address, stop, ready)


def _address(text: str) -> tuple[str, int]:
    """Read ``--listen``. Raises ``typer.BadParameter``."""
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        number = int(port)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not HOST:PORT", param_hint="--listen") from None
    if not address.is_loopback or not 0 <= number <= 65_535:
        raise typer.BadParameter(
            "only loopback addresses: passwords are not checked, so what connects from elsewhere goes through a "
            "proxy with TLS and a check of its own",
            param_hint="--listen",
        )
    return str(address), number
