"""Scenario files: what a simulation does, as TOML.

A scenario is a list of phases; a phase is a list of actions at times from its start, and lasts ``duration_s``.
docs/simulator.md shows one and lists the actions; every model below describes its keys. Everything random in a
scenario (who is killed, which keys are looked up) comes from the seed.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, create_model, field_validator, model_validator

from peerd.errors import ConfigError, nearest
from peerd.ids import NodeId, parse_id
from peerd.invalid import UNKNOWN_KEY, reason
from peerd.node.services import SERVICES, service_sections
from peerd.overlay.config import OverlayConfig
from peerd.sim.checkers import BY_NAME, QUIESCENT, USUAL
from peerd.sim.churn import ChurnSettings
from peerd.sim.fault_actions import FAULTS, AnyFault
from peerd.sim.network import NetworkConfig
from peerd.sim.plugin_checkers import checkers_by_name
from peerd.sim.tables import NODES_MAX, Action, Seconds, Selection, Table
from peerd.sim.topology.graph import TransitStub
from peerd.sim.topology.topology import FOLDER, Topology
from peerd.swap.config import SwapConfig

SCENARIO_BYTES_MAX: Final = 16 * 1024 * 1024


class JoinAction(Action):
    """New nodes start, one after another."""

    do: Literal["join"]
    count: int = Field(ge=1, le=NODES_MAX, description="How many.")
    spacing_s: Seconds = Field(default=0.1, ge=0, description="Between two starts, seconds.")


class StrikeAction(Selection):
    """Running nodes are killed, vanish, or are stopped in order. Default: one node."""

    do: Literal["kill", "silence", "stop"]
    spacing_s: Seconds = Field(default=0.0, ge=0, description="Between two nodes, seconds.")


class ReviveAction(Selection):
    """``resume``: paused nodes go on; ``restart``: dead ones start anew. Default: all of them."""

    do: Literal["resume", "restart"]
    spacing_s: Seconds = Field(default=0.0, ge=0, description="Between two nodes, seconds.")


class HealAction(Action):
    """Undo every fault of the network but what ``[network]`` and the action ``network`` say."""

    do: Literal["heal"]


class ClogAction(Action):
    """What one node sends to another is held back for a while."""

    do: Literal["clog"]
    source: int = Field(ge=0, description="Index of the sender.")
    target: int = Field(ge=0, description="Index of the receiver.")
    duration_s: Seconds = Field(gt=0, le=3600, description="For how long, seconds.")


class ConditionsAction(Action):
    """The network gets better or worse. What is not given stays as it is."""

    do: Literal["network"]
    loss: float | None = Field(default=None, ge=0, lt=1, description="New probability that a message is lost.")
    duplication: float | None = Field(default=None, ge=0, lt=1, description="New probability of a second copy.")
    jitter: float | None = Field(default=None, ge=0, le=1, description="New jitter, as a share of the latency.")
    reordering: float | None = Field(default=None, ge=0, lt=1, description="New probability that a message is held up.")
    clog: float | None = Field(default=None, ge=0, lt=1, description="New probability, a second, that a path stops.")


class LookupsAction(Action):
    """Random nodes look random keys up; the answers are compared with the true ring."""

    do: Literal["lookups"]
    count: int = Field(ge=1, le=10_000_000, description="How many.")
    interval_s: Seconds = Field(default=0.01, ge=0, description="Between two lookups, seconds.")
    timeout_s: Seconds = Field(default=10.0, gt=0, description="When a lookup gives up, seconds.")
    success_min: float = Field(
        default=0.0, ge=0, le=1, description="Share of answers that must name the true root, else the run fails."
    )


class Lasting(Action):
    """Base of what goes on for a while."""

    duration_s: float | None = Field(
        default=None, gt=0, le=1e7, description="For how long, seconds; absent: to the end of the phase."
    )


class ChurnAction(Lasting, ChurnSettings):
    """Nodes come and go at random times."""

    do: Literal["churn"]


class ChurnTraceAction(Lasting):
    """Nodes come and go as a file says."""

    do: Literal["churn_trace"]
    file: Path = Field(description="The trace; a relative path is from the scenario's folder.")

    @field_validator("file")
    @classmethod
    def _from_folder(cls, value: Path, info: ValidationInfo) -> Path:
        folder = (info.context or {}).get(FOLDER)
        return value if folder is None else Path(folder) / value


class WorkloadAction(Lasting):
    """Messages to random keys from random nodes, judged by the true ring when they are delivered."""

    do: Literal["workload"]
    rate_per_s: float = Field(gt=0, le=1e6, description="Messages a second in the whole ring, Poisson.")
    wrong_max: float = Field(
        default=1.0, ge=0, le=1, description="Share that may be delivered at a node that is not the root."
    )
    lost_max: float = Field(default=1.0, ge=0, le=1, description="Share that may be lost.")


class WaitReadyAction(Action):
    """Run until every node has joined; the phase's clock goes on meanwhile."""

    do: Literal["wait_ready"]
    limit_s: Seconds = Field(default=120.0, gt=0, description="Fail after this long, seconds.")


class Asking(Action):
    """Base of what asks checkers."""

    checkers: tuple[str, ...] = Field(
        default=USUAL, description="Which: " + ", ".join(BY_NAME) + ", and those that protocols bring."
    )

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if not set(self.checkers) <= set(BY_NAME):
            known = checkers_by_name()
            for name in self.checkers:
                if name not in known:
                    raise ValueError(f"no checker {name!r}{nearest(name, list(known))}")
        return self


class CheckAction(Asking):
    """Ask checkers; the run fails if anything does not hold."""

    do: Literal["check"]


class WaitWholeAction(Asking):
    """Run until nothing that the checkers ask for is missing any more, and report how long that took."""

    do: Literal["wait_whole"]
    checkers: tuple[str, ...] = Field(
        default=tuple(kind for kind, checker in BY_NAME.items() if checker in QUIESCENT),
        description="What a whole ring is: " + ", ".join(BY_NAME) + ".",
    )
    limit_s: Seconds = Field(default=300.0, gt=0, description="Give up after this long, seconds; the run then fails.")
    poll_s: Seconds = Field(default=1.0, gt=0, description="How often to ask, seconds.")


class CallAction(Action):
    """Call a plugin's ``scenario_action`` on a node."""

    do: Literal["call"]
    protocol: str = Field(description="Name of the plugin.")
    action: str = Field(description="What to do, in the plugin's own words.")
    node: int | None = Field(default=None, ge=0, description="Index of the node; absent: a running one, drawn.")
    every: bool = Field(default=False, description="Call it on every running node instead.")
    arguments: dict[str, Any] = Field(default={}, description="Whatever the action takes.")


AnyAction = Annotated[
    JoinAction
    | StrikeAction
    | ReviveAction
    | AnyFault
    | HealAction
    | ClogAction
    | ConditionsAction
    | LookupsAction
    | ChurnAction
    | ChurnTraceAction
    | WorkloadAction
    | WaitReadyAction
    | WaitWholeAction
    | CheckAction
    | CallAction,
    Field(discriminator="do"),
]


class ScenarioPhase(Table):
    """A part of a scenario."""

    name: str = Field(default="", max_length=64, description="For the report.")
    duration_s: Seconds = Field(default=0.0, ge=0, le=1e7, description="How long it lasts at least, virtual seconds.")
    actions: tuple[AnyAction, ...] = Field(default=(), description="What happens, in order of ``at_s``.")


if TYPE_CHECKING:

    class _ServiceTables(Table):
        """Adds a table for each service; they are added at run time, so the type checker does not know them."""

else:
    _ServiceTables = create_model("_ServiceTables", __base__=Table, **service_sections())


class Scenario(_ServiceTables):
    """A whole scenario file."""

    name: str = Field(default="scenario", max_length=64, description="For the report.")
    seed: int = Field(default=0, ge=0, lt=1 << 63, description="What all randomness comes from; --seed wins over it.")
    nodes: int = Field(default=0, ge=0, le=NODES_MAX, description="Nodes that join at the start; 0: only by actions.")
    ids: tuple[str, ...] = Field(
        default=(), description="Ids of the first of them, 32 hexadecimal digits each; the others' come from the seed."
    )
    spacing_s: Seconds = Field(default=0.1, ge=0, description="Between two of those joins, seconds.")
    check_every: int = Field(
        default=0, ge=0, description="Validate the touched node after every so many events; 0: never. 1 is slow."
    )
    sweep_every: int = Field(default=0, ge=0, description="Check what must always hold every so many events; 0: never.")
    check_deliveries: bool = Field(
        default=False, description="Fail when a key is delivered anywhere but at its true root; for calm rings only."
    )
    network: NetworkConfig = Field(default=NetworkConfig(), description="The model network.")
    topology: Topology = Field(default=Topology(), description="How far apart nodes are.")
    overlay: OverlayConfig = Field(default=OverlayConfig(), description="The overlay's parameters.")
    swap: SwapConfig = Field(default=SwapConfig(), description="The swap layer's parameters.")
    protocols: dict[str, dict[str, Any]] = Field(
        default={}, description="Plugins to load, by name, each with its configuration table."
    )
    phases: tuple[ScenarioPhase, ...] = Field(default=(), description="What happens, one after another.")

    @field_validator("ids")
    @classmethod
    def _check_ids(cls, ids: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        known: dict[NodeId, int] = {}
        if len(ids) > info.data.get("nodes", NODES_MAX):
            raise ValueError(f"{len(ids)} ids for {info.data['nodes']} nodes: expected at most one a node")
        for index, text in enumerate(ids):
            node_id = parse_id(text)
            if node_id in known:
                raise ValueError(f"{text} stands there twice, for nodes {known[node_id]} and {index}: ids are unique")
            known[node_id] = index
        return ids

    @property
    def node_ids(self) -> tuple[NodeId, ...]:
        """The ids that are named."""
        return tuple(map(parse_id, self.ids))


def load_scenario(path: Path) -> Scenario:
    """Read and check a file. Raises `ConfigError` naming file, key and what was expected."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from None
    if len(data) > SCENARIO_BYTES_MAX:
        raise ConfigError(f"{len(data)} bytes is no scenario (limit {SCENARIO_BYTES_MAX})", file=str(path))
    try:
        tree = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not TOML: {error}", file=str(path)) from None
    return parse_scenario(tree, str(path))


def parse_scenario(tree: dict[str, Any], file: str | None = None) -> Scenario:
    """Check the parsed tables. Raises `ConfigError`."""
    try:
        return Scenario.model_validate(tree, context={FOLDER: Path(file).parent if file is not None else None})
    except ValidationError as error:
        errors = error.errors(include_url=False)
        # a misspelt key explains the missing one better than the other way round
        first = next((entry for entry in errors if entry["type"] == UNKNOWN_KEY), errors[0])
        place = [str(step) for step in first["loc"]]
        if first["type"] == UNKNOWN_KEY:
            message = f"unknown key{nearest(place[-1], _known_keys(place[:-1]))}"
        else:
            message = reason(first)
        raise ConfigError(message, file=file, key=_dotted(place)) from None


_ACTIONS: Final[dict[str, type[BaseModel]]] = {
    "join": JoinAction,
    **dict.fromkeys(("kill", "silence", "stop"), StrikeAction),
    **dict.fromkeys(("resume", "restart"), ReviveAction),
    **FAULTS,
    "heal": HealAction,
    "clog": ClogAction,
    "network": ConditionsAction,
    "lookups": LookupsAction,
    "churn": ChurnAction,
    "churn_trace": ChurnTraceAction,
    "workload": WorkloadAction,
    "wait_ready": WaitReadyAction,
    "wait_whole": WaitWholeAction,
    "check": CheckAction,
    "call": CallAction,
}
_SECTIONS: Final[dict[str, type[BaseModel]]] = {
    "network": NetworkConfig,
    "topology": Topology,
    "transit_stub": TransitStub,
    "overlay": OverlayConfig,
    "swap": SwapConfig,
    **{kind.name: kind.Config for kind in SERVICES},
    "phases": ScenarioPhase,
    "actions": ScenarioPhase,
}


def _known_keys(place: list[str]) -> list[str]:
    """The keys of the table at a place in the file, as pydantic names it."""
    model: type[BaseModel] = Scenario
    for step in place:
        model = _SECTIONS.get(step, _ACTIONS.get(step, model))
    return list(model.model_fields)


def _dotted(place: list[str]) -> str:
    """``phases[1].actions[0].count``: without the names of the union's members."""
    text = ""
    previous = ""
    for step in place:
        if step.isdigit():
            text += f"[{step}]"
        elif not (previous.isdigit() and step in _ACTIONS):
            text += f".{step}" if text else step
        previous = step
    return text
