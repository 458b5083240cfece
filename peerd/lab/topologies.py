"""The option ``--topology``: a model of the simulator by name, or a file.

``NAME=`` before it sets its name in tables and charts. A file is a latency set (text or ``.npz``, the model ``matrix``)
or, with the ending ``.toml``, has a table ``[topology]`` as in a scenario.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final, get_args

from peerd.errors import ConfigError, nearest
from peerd.sim.scenario import parse_scenario
from peerd.sim.topology.topology import Topology

MODELS: Final = tuple(name for name in get_args(Topology.model_fields["model"].annotation))
ALONE: Final = tuple(name for name in MODELS if name not in ("matrix", "inet"))
"""The models of topologies that need nothing but their name."""
SECTION: Final = "topology"


def label_of(topology: str) -> str:
    """Return the name of a topology in tables and charts."""
    name, equals, _ = topology.partition("=")
    return name if equals else Path(topology).name


def table_of(topology: str) -> dict[str, Any]:
    """Return the table for a scenario. Raises `ConfigError` for what is neither a model nor a readable file."""
    value = topology.partition("=")[2] or topology
    if value in ALONE:
        return {"model": value}
    path = Path(value)
    if not path.is_file():
        raise ConfigError(f"{value!r} is no file and no model{nearest(value, list(ALONE))}", key="--topology")
    if path.suffix != ".toml":
        return {"model": "matrix", "file": str(path.resolve())}
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not TOML: {error}", file=value) from None
    if SECTION not in tree:
        raise ConfigError("expected a table [topology]", file=value)
    return parse_scenario({SECTION: tree[SECTION]}, str(path.resolve())).topology.model_dump(exclude_unset=True)


def check(topology: str, seed: int) -> None:
    """Raises `ConfigError` unless a simulation can use it."""
    parse_scenario({SECTION: table_of(topology)}).topology.build(seed)
