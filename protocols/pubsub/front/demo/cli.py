"""``peerd demo-pubsub``: real daemons, a replay of prices and metrics, and what came where, checked by plain Python."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from peerd.cli.cluster import interruptible
from peerd.cli.output import Terminal, print_table, seconds, stdout
from peerd.cluster.local import LocalCluster
from peerd.errors import ExitCode, PeerdError, Unavailable
from protocols.pubsub.front.client import PubSubClient
from protocols.pubsub.front.demo.data import Events, load
from protocols.pubsub.front.demo.wishes import DemoWish, schemas_for, wishes_for
from protocols.pubsub.front.explain import report_lines
from protocols.pubsub.front.tree_drawing import as_svg, as_text
from protocols.pubsub.models import ReceivedEvent, SubscriptionRequest

if TYPE_CHECKING:
    from peerd.client import Client

DATA_VARIABLE: Final = "PEERD_DATA"
METRICS_SHARE: Final = 4
"""One event in so many is a metric, the others are prices."""
LEAF_CAPACITY: Final = 12
"""Small, so that the few subscriptions of the demo make a tree with more than one leaf."""
ARRIVE_S: Final = 60.0
"""What has not arrived so long after the last publish counts as missing."""
SURPLUS_S: Final = 1.0
"""After everything has arrived, events that should not come have so long to come."""
SHOW_EVERY_S: Final = 0.2
SHOWN_EVENTS: Final = 3
EXPLAINED_LINES: Final = 30
NUMBER: Final = "number"
"""The header that says which line of the replay an event was."""


@dataclass(slots=True)
class DemoReader:
    """A subscription of the demo, and what came."""

    wish: DemoWish
    expected: frozenset[int]
    events: list[ReceivedEvent] = field(default_factory=list)

    def numbers(self) -> Counter[int]:
        """How often each line of the replay came."""
        return Counter(int(dict(event.headers)[NUMBER]) for event in self.events)

    @property
    def missing(self) -> int:
        """Events that should have come, and did not."""
        return len(self.expected - self.numbers().keys())

    @property
    def wrong(self) -> int:
        """Events that came and should not have, or came more than once."""
        found = self.numbers()
        return sum(count for number, count in found.items() if number not in self.expected) + sum(
            count - 1 for number, count in found.items() if number in self.expected
        )


@dataclass(slots=True)
class PubSubDemo:
    """The ring, and the subscriptions. ``changed``: something has arrived."""

    console: Terminal
    cluster: LocalCluster
    nodes: int
    readers: list[DemoReader] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def missing(self) -> int:
        """Of all readers together."""
        return sum(reader.missing for reader in self.readers)


def demo(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            envvar=DATA_VARIABLE,
            help="A folder with stocks/*.csv[.xz] and timeseries/*.tar.xz. Default: a synthetic sample.",
        ),
    ] = None,
    events: Annotated[int, typer.Option(min=40, max=100_000, help="How many events are replayed.")] = 2000,
    rate: Annotated[float, typer.Option(min=1.0, metavar="N", help="So many a second.")] = 200.0,
    nodes: Annotated[int, typer.Option("-n", "--nodes", min=1, max=32, help="How many daemons.")] = 4,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the picture of the tree here, as tree.svg.")
    ] = None,
) -> None:
    """Start daemons, subscribe with filters, replay stock prices and server metrics, and check all that arrives.

    Exit code 0 if exactly the events that match have arrived, everywhere.
    """
    console = stdout()
    replay = load(data, events - events // METRICS_SHARE, events // METRICS_SHARE)
    wishes = wishes_for(replay.trades, replay.metrics, nodes)
    console.print(f"input: {len(replay.trades):,} prices and {len(replay.metrics):,} metrics: {replay.source}")
    console.print("       (each daily bar is replayed as four prices: these are no real trades)")
    with interruptible(), tempfile.TemporaryDirectory(prefix="peerd-demo-") as folder:
        with LocalCluster(Path(folder) / "cluster", name="demo") as cluster:
            begun = time.monotonic()
            with console.status(f"starting {nodes} daemons"):
                settings = {"protocols": {"pubsub": {"leaf_capacity": LEAF_CAPACITY}}}
                cluster.up(nodes, settings=lambda index: settings)
            console.print(f"ring: {nodes} daemons, complete in {seconds(time.monotonic() - begun)}")
            state = PubSubDemo(console, cluster, nodes)
            _run(state, wishes, {"stocks": replay.trades, "servers": replay.metrics}, rate, out)
        console.print("clean shutdown: no process is left")
    if any(reader.missing or reader.wrong for reader in state.readers):
        raise typer.Exit(ExitCode.FAILURE)
    console.print("every subscription got exactly what a plain filter of the same data gives", "bold")


def _run(
    state: PubSubDemo, wishes: Sequence[DemoWish], replay: dict[str, Events], rate: float, out: Path | None
) -> None:
    """Raises `PeerdError`."""
    try:
        asyncio.run(_play(state, wishes, replay, rate, out))
    except ExceptionGroup as group:
        if group.split(PeerdError)[1] is not None:
            raise
        error: Exception = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from None


async def _play(
    state: PubSubDemo, wishes: Sequence[DemoWish], replay: dict[str, Events], rate: float, out: Path | None
) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(state.cluster.client(index)) for index in range(state.nodes)]
        for document in schemas_for(replay["stocks"]):
            await PubSubClient(clients[0]).declare(document)
        async with asyncio.TaskGroup() as group:
            subscribing = (_subscribe(state, clients, group, wish, replay) for wish in wishes)
            tasks = await asyncio.gather(*subscribing)
            state.console.print(f"{len(tasks)} subscriptions at {len({wish.node for wish in wishes})} daemons")
            for place, (schema, events) in enumerate(replay.items()):
                await _publish(state, clients[-place], schema, events, rate)
            await _wait_for_all(state)
            _print_arrivals(state)
            await _print_explanation(state, clients)
            await _print_tree(state, clients[0], out)
            for task in tasks:
                task.cancel()


async def _subscribe(
    state: PubSubDemo, clients: Sequence[Client], group: asyncio.TaskGroup, wish: DemoWish, replay: dict[str, Events]
) -> asyncio.Task[None]:
    """Subscribe, and read from then on; what is to come is decided by plain Python."""
    expected = frozenset(number for number, event in enumerate(replay[wish.schema]) if wish.wanted(event))
    reader = DemoReader(wish, expected)
    state.readers.append(reader)
    pubsub = PubSubClient(clients[wish.node])
    asked = SubscriptionRequest.model_validate({"schema": wish.schema, "filter": wish.filter})
    view = await pubsub.install(asked)

    async def read() -> None:
        async with aclosing(pubsub.read(view.id)) as entries:
            async for entry in entries:
                if isinstance(entry, ReceivedEvent):
                    reader.events.append(entry)
                    state.changed.set()

    return group.create_task(read())


async def _publish(state: PubSubDemo, client: Client, schema: str, events: Events, rate: float) -> None:
    console, begun = state.console, time.monotonic()

    async def paced() -> AsyncGenerator[dict[str, Any], None]:
        shown = begun
        for number, event in enumerate(events):
            if (wait_s := begun + number / rate - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            yield {**event, "_headers": {NUMBER: str(number)}}
            if console.is_terminal and time.monotonic() - shown >= SHOW_EVERY_S:
                shown = time.monotonic()
                arrived = sum(len(reader.events) for reader in state.readers)
                console.overwrite(f"{schema}: {number + 1:,} of {len(events):,} published, {arrived:,} have arrived")

    answer = await PubSubClient(client).publish_many(schema, paced())
    console.overwrite("")
    if not answer.is_complete:
        raise Unavailable(f"the outcome of some events is not known: {answer.detail}")
    took_s = time.monotonic() - begun
    console.print(f"{schema}: {answer.accepted:,} events in {seconds(took_s)}, all acknowledged")


async def _wait_for_all(state: PubSubDemo) -> None:
    """Until everything has arrived, or nothing more will; and a moment longer, for what should not arrive."""
    try:
        async with asyncio.timeout(ARRIVE_S):
            while state.missing:
                state.changed.clear()
                await state.changed.wait()
    except TimeoutError:
        state.console.print(f"{state.missing} events have not arrived", "bold red")
    await asyncio.sleep(SURPLUS_S)


def _print_arrivals(state: PubSubDemo) -> None:
    shown: dict[str, list[DemoReader]] = {}
    for reader in state.readers:
        shown.setdefault(reader.wish.label or reader.wish.filter, []).append(reader)
    rows = [
        (
            readers[0].wish.node,
            label.format(len(readers)),
            sum(len(reader.expected) for reader in readers),
            sum(len(reader.events) for reader in readers),
            sum(reader.missing for reader in readers),
            sum(reader.wrong for reader in readers),
        )
        for label, readers in shown.items()
    ]
    print_table(state.console, ("node", "filter", "plain filter", "arrived", "missing", "wrong"), rows)
    for reader in state.readers:
        if not reader.wish.label:
            state.console.print(f"the last ones for {reader.wish.filter}")
            for event in reader.events[-SHOWN_EVENTS:]:
                state.console.print("  " + " ".join(f"{name}={value}" for name, value in event.values.items()))


async def _print_explanation(state: PubSubDemo, clients: Sequence[Client]) -> None:
    reader = next((each for each in state.readers if each.events and not each.wish.label), None)
    if reader is None:
        return
    event = reader.events[-1].event
    subscriber = state.cluster.node(reader.wish.node).id
    report = await PubSubClient(clients[0]).explain(event, subscriber)
    state.console.print(f"why {event} came to node {reader.wish.node}:")
    for line in report_lines(report)[:EXPLAINED_LINES]:
        state.console.print(f"  {line}")


async def _print_tree(state: PubSubDemo, client: Client, out: Path | None) -> None:
    view = await PubSubClient(client).tree("stocks", "price")
    state.console.print("the tree that keeps the subscriptions to prices (peerd tree stocks price):")
    state.console.print(as_text(view))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        picture = out / "tree.svg"
        picture.write_text(as_svg(view))
        state.console.print(f"its picture: {picture}")
