"""The front of a protocol: everything of it that is not the protocol itself, in one typed place.

A protocol is a folder with two parts. The kernel part is a `peerd.api.Plugin` (entry-point group ``peerd.protocols``)
and runs in daemon and simulator. The front is a subclass of `Front` (group ``peerd.fronts``, the same name) and says
what the protocol adds to peerd's surroundings: HTTP routes, methods of the Python client, commands, options of the
commands that make nodes, actions, checkers and work for the simulator, experiments of ``peerd lab``, tables of
``peerd analyze``. Nothing else in peerd knows a protocol by name.

Every method has an empty default, so a front has only what it overrides. **Import what a piece needs inside its
method**: a daemon that nobody asks over HTTP loads no FastAPI, ``peerd status`` loads no plugin's commands. This module
imports hardly anything but types. `peerd.plugins` finds fronts, and refuses pieces whose names are taken.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

from peerd.errors import Bug
from peerd.frozen import Frozen

if TYPE_CHECKING:
    from fastapi import APIRouter
    from pyspark.sql import DataFrame
    from typer import Typer

    from peerd.client import Client
    from peerd.cluster.demo import DemoPart
    from peerd.lab.charts import Chart
    from peerd.lab.experiment import Experiment
    from peerd.sim.checkers import Checker
    from peerd.sim.hostile.member import Behaviour
    from peerd.sim.simulation import Place
    from peerd.sim.swarm.work import SwarmWork

Command: TypeAlias = "Callable[..., None] | Typer"
"""A function, which becomes ``peerd NAME``, or an application of its own, for ``peerd NAME SUBCOMMAND``."""


class LazyCommand(Frozen):
    """A command that is imported when it is run: ``peerd --help`` shows the summary and imports nothing."""

    summary: str
    """One short sentence, for the list of commands."""
    source: str | Callable[[], Command]
    """``"module:attribute"``, or a function that imports and returns it."""

    def __call__(self) -> Command:
        """The command itself."""
        if not isinstance(self.source, str):
            return self.source()
        module, _, attribute = self.source.partition(":")
        command: Command = getattr(importlib.import_module(module), attribute)
        return command


Report: TypeAlias = Callable[[dict[str, Any]], None]
"""A function that takes one row for the scenario's report, as plain data."""

ScenarioAction: TypeAlias = "Callable[[Place, Mapping[str, Any], Report], None]"
"""A function that does something on a simulated node. It gets the node, the arguments from the scenario file, and the
function that takes rows of the report, now or later. Raises `ConfigError` for arguments that it does not know."""

Row: TypeAlias = dict[str, Any]

# HTTP scopes

ScopeName = Literal["read", "write"]
SCOPE_KEY: Final = "x-peerd-scope"
"""The key of a route's ``openapi_extra`` for the scope that a data client needs. The OpenAPI document shows it.

`peerd.models.routes.HttpRoute` has it as ``scope``."""
READ_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def scope_of(route: object) -> ScopeName:
    """Return the scope of a route: the one that it states, else "read" if it takes only GET and HEAD, else "write".

    A data client then needs ``<plugin>:read`` or ``<plugin>:write``. A route of Starlette's that does not list its
    methods counts as writing. Raises `Bug` for a scope that does not exist.
    """
    stated: object = (getattr(route, "openapi_extra", None) or {}).get(SCOPE_KEY)
    if stated == "read" or stated == "write":
        return stated
    if stated is not None:
        raise Bug(f'{SCOPE_KEY} is "read" or "write", not {stated!r}')
    methods = getattr(route, "methods", None)
    return "read" if methods and READ_METHODS.issuperset(methods) else "write"


# Pieces


class NodeOption(Frozen):
    """An option of the commands that make nodes. The value that a user gives becomes settings of the protocol."""

    flag: str
    """The option as users type it, such as ``--data``."""
    metavar: str
    help: str
    settings: Callable[[str], Mapping[str, object]]
    """Turns the text that was given into keys of ``[protocols.<name>]``. Raises ``ValueError`` for a wrong text.

    For ``cluster up`` the texts ``{k}`` and ``{n}`` in a value become a node's number and how many there are."""


class Shown(Frozen):
    """The way in which ``peerd analyze`` prints a table and reports its rows."""

    title: str
    columns: Mapping[str, str]
    """The heading of each column, in the order of the columns."""
    order_by: Sequence[str]
    cells: Callable[[Row], Row] = dict
    """Makes a row as people read it: texts stay as they are, numbers are formatted by the unit that ends their name."""
    wide: Sequence[str] = ()
    """The columns whose texts may be broken into several lines."""


class SparkTable(Frozen):
    """A table that ``peerd analyze`` makes of the event log."""

    name: str
    """The name of the Parquet folder, and of the rows in the report as JSON."""
    build: Callable[[DataFrame, Mapping[str, DataFrame]], DataFrame]
    """Makes the table from all events, with the columns of its kinds, and from the tables (by name) that this front has
    listed before it. Where clocks
    are off, ``clocks`` is there as well: node, and offset_s by which its clock is ahead. A function of Spark's that
    sqlframe has not makes it a table that DuckDB cannot make."""
    shown: Shown | None = None
    """How the table is printed; ``None``: it is only written, and not reported."""
    kinds: Sequence[str] = ("*",)
    """The kinds of events, or patterns of them, that it is made of. Where the log has none, it is not written."""
    charts: Callable[[Sequence[Row], float], Sequence[Chart]] | None = None
    """Makes pictures for the report of the table's rows, and of the time of the log's first event (``ts``)."""
    besides: Sequence[str] = ()
    """Other kinds whose columns it takes, where there are any."""


class LedgerLines(Frozen):
    """A protocol's lines of the table ``ledger``: what became of all that it sent."""

    build: Callable[[DataFrame], DataFrame]
    """Makes them from all events, with the columns of its kinds: ``unit`` (what is counted), ``part`` (one of
    `peerd.pipeline.ledger.PARTS`),
    ``reason`` (of what was dropped; else null) and ``count``. A unit may have many lines, which are added up."""
    kinds: Sequence[str]
    """The kinds of events that they are made of."""


class RingFeed(Frozen):
    """The address of a feed at one daemon, as `peerd.client.Client.follow` takes it."""

    path: str
    parameters: Mapping[str, Any] = {}


class RingTable(Frozen):
    """A table that Spark reads from a running ring: ``spark.read.format("peerd").load(name)``.

    Either the whole ring answers one question (``rows``), or there is a ``feed``, of which ``read`` takes what is held,
    and ``readStream`` what comes.
    """

    name: str
    columns: Callable[[Client, Mapping[str, str]], Awaitable[str]]
    """Asks a daemon what columns there are, and returns them as Spark writes them (``node string, cpu double``). The
    options are those that the user has given; it raises ``ValueError`` for wrong ones."""
    options: Sequence[str] = ()
    """The names of the options that it knows."""
    rows: Callable[[Client, Mapping[str, str]], Awaitable[Sequence[Row]]] | None = None
    feed: Callable[[Client, Mapping[str, str]], Awaitable[RingFeed]] | None = None
    row: Callable[[Any], Row] = dict
    """Makes a row of the data of an item of the feed."""
    is_each_daemons: bool = False
    """Each daemon has a feed of its own; otherwise one daemon is asked."""
    is_numbered: bool = False
    """The rows say themselves where some are missing, so that it is no error."""
    pushed: Mapping[str, str] = {}
    """Columns of which a daemon looks for single values itself, each with the option that names them with commas."""


class Front:
    """Base class of fronts. A front is made without arguments, once in a process, and keeps no state of a node."""

    name: ClassVar[str]
    """The plugin's name."""

    # Daemon

    def router(self, service: Any) -> APIRouter | None:
        """Return HTTP routes for data clients, below ``/v1``; ``service`` is the running plugin.

        They are on the data listener and on the operators' socket. `HttpRoute.scope` says what a route needs when its
        method does not.
        """
        return None

    def operator_router(self, service: Any) -> APIRouter | None:
        """Return HTTP routes for operators only, below ``/v1`` of the admin API."""
        return None

    # Client and command line

    def client(self, client: Client) -> object | None:
        """Return what users reach as ``client.<name>``: an object whose methods send requests through ``client``."""
        return None

    def commands(self) -> Mapping[str, Callable[[], Command]]:
        """Return commands by name, each a `LazyCommand`. A name may have ``-`` but not ``_``.

        A plain function that imports and returns the command does as well, but then `peerd --help` has to import it.
        """
        return {}

    def init_options(self) -> Sequence[NodeOption]:
        """Return options of ``peerd init`` and ``peerd join``, which make one node."""
        return ()

    def cluster_options(self) -> Sequence[NodeOption]:
        """Return options of ``peerd cluster up``, which makes many nodes."""
        return ()

    def demo(self) -> DemoPart | None:
        """Return what this protocol does in ``peerd demo``."""
        return None

    # Simulator and lab

    def scenario_actions(self) -> Mapping[str, ScenarioAction]:
        """Return the actions that ``{ do = "call", protocol = "<name>", action = "..." }`` in a scenario may name."""
        return {}

    def checkers(self) -> Mapping[str, type[Checker]]:
        """Return invariants by name, as classes that are made without arguments.

        A run with checks asks those that hold always; a scenario's ``check`` and ``wait_whole`` may name any of them.
        """
        return {}

    def swarm_work(self) -> type[SwarmWork] | None:
        """Return what a seed of ``peerd sim swarm --protocol <name>`` does with this protocol, and how it is judged."""
        return None

    def behaviours(self) -> Mapping[str, type[Behaviour]]:
        """Return ways in which a hostile node of the simulator misbehaves in this protocol, by name."""
        return {}

    def experiments(self) -> Sequence[Experiment]:
        """Return experiments of ``peerd lab``, named ``<name>/...``."""
        return ()

    # Pipeline

    def tables(self) -> Sequence[SparkTable]:
        """Return tables of ``peerd analyze``, in the order in which they are built."""
        return ()

    def ledger(self) -> LedgerLines | None:
        """Return what became of all that the protocol sent."""
        return None

    def ring_tables(self) -> Sequence[RingTable]:
        """Return what Spark can read from a running ring (`peerd.spark`)."""
        return ()

    def panels(self) -> Sequence[Mapping[str, Any]]:
        """Return panels of a Grafana dashboard about this plugin's metrics, as Grafana's JSON has them.

        They are data only, without identifiers and positions, which `peerd.telemetry.dashboard` adds.
        """
        return ()
