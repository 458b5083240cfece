"""The option ``--topology``: a model of the simulator by name, or a file.

``NAME=`` before it sets its name in tables and charts. A file is a latency set (text or ``.npz``, the model ``matrix``)
or, with the ending ``.toml``, has a table ``[topology]`` as in a scenario. ``@TIME`` behind a latency set or behind
``euclidean`` scales it, so that the mean round trip is that, and ``#N`` before it chooses a slice of an archive that
has several: ``planetlab=rtt.npz#9@180ms``. ``constant@100ms`` is the same round trip for all
pairs; with ``@0s`` everything arrives at once, which no network does: a figure that was made so has to say it. A file
whose name begins with ``inet-`` is a graph of routers, as Inet writes it, and always scaled: ``inet-3000.txt@40ms``.
"""

from __future__ import annotations

import math
import os
import tomllib
from pathlib import Path
from typing import Any, Final, get_args

from peerd.errors import ConfigError, nearest
from peerd.quantities import parse_duration
from peerd.sim.scenario import parse_scenario
from peerd.sim.topology.topology import Topology

DATA: Final = "PEERD_DATA"
"""The environment variable that names a folder with public data sets."""
MODELS: Final = tuple(name for name in get_args(Topology.model_fields["model"].annotation))
ALONE: Final = tuple(name for name in MODELS if name not in ("matrix", "inet"))
"""The models of topologies that need nothing but their name."""
SECTION: Final = "topology"
OPTION: Final = "--topology"
INET: Final = "inet-"
"""So begin the names of files with graphs of routers, as Inet writes them; others are latency sets."""
SQUARE_DISTANCE: Final = (2 + math.sqrt(2) + 5 * math.asinh(1)) / 15
"""The mean distance between two random points of a square whose side is 1."""


def data_file(name: str) -> Path | None:
    """A file of the folder that `DATA` names; ``None`` without such a folder or file."""
    folder = os.environ.get(DATA)
    path = Path(folder or "") / name
    return path if folder is not None and path.is_file() else None


def measured_or_square(label: str, name: str, mean_rtt: str, part: str = "") -> str:
    """The topology of a file of `PEERD_DATA` where it is there, else random points of a square; both with this mean."""
    path = data_file(name)
    return f"square=euclidean@{mean_rtt}" if path is None else f"{label}={path}{part}@{mean_rtt}"


def label_of(topology: str) -> str:
    """Return the name of a topology in tables and charts."""
    name, equals, _ = topology.partition("=")
    return name if equals else Path(topology).name


def euclidean_of(mean_rtt_s: float) -> dict[str, Any]:
    """Return the table of a square whose mean round trip is this."""
    minimum_s = min(Topology().minimum_s, mean_rtt_s / 4)
    side_s = (mean_rtt_s / 2 - minimum_s) / SQUARE_DISTANCE
    return {"model": "euclidean", "side_s": round(side_s, 6), "minimum_s": minimum_s}


def table_of(topology: str) -> dict[str, Any]:
    """Return the table for a scenario. Raises `ConfigError` for what is neither a model nor a readable file."""
    value = topology.partition("=")[2] or topology
    if value in ALONE:
        return {"model": value}
    value, mean_rtt_s = _scale(value)
    if value == "constant" and mean_rtt_s is not None:
        return {"model": "constant", "latency_s": mean_rtt_s / 2}
    if mean_rtt_s == 0:
        raise ConfigError("expected a mean round trip above 0", key=OPTION)
    if value == "euclidean" and mean_rtt_s is not None:
        return euclidean_of(mean_rtt_s)
    value, chosen = _slice(value)
    path = Path(value)
    if not path.is_file():
        raise ConfigError(f"{value!r} is no file and no model{nearest(value, list(ALONE))}", key=OPTION)
    if path.name.startswith(INET):
        if mean_rtt_s is None:
            raise ConfigError("lengths in an Inet graph have no unit: expected @TIME behind it", file=value, key=OPTION)
        return {"model": "inet", "file": str(path.resolve()), "scale_mean_rtt": mean_rtt_s}
    if path.suffix != ".toml":
        scaled = {} if mean_rtt_s is None else {"scale_mean_rtt": mean_rtt_s}
        return {"model": "matrix", "file": str(path.resolve()), **chosen, **scaled}
    if mean_rtt_s is not None:
        raise ConfigError("the table in a .toml has scale_mean_rtt itself: expected no @TIME behind it", key=OPTION)
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not TOML: {error}", file=value) from None
    if SECTION not in tree:
        raise ConfigError("expected a table [topology]", file=value)
    return parse_scenario({SECTION: tree[SECTION]}, str(path.resolve())).topology.model_dump(exclude_unset=True)


def _scale(value: str) -> tuple[str, float | None]:
    """Split ``WHAT@TIME``. An ``@`` in the name of a file that there is means nothing."""
    what, at, scale = value.rpartition("@")
    if not at or Path(value).is_file():
        return value, None
    try:
        mean_rtt_s = parse_duration(scale)
    except ValueError as error:
        raise ConfigError(f"{scale!r}: {error}", key=OPTION) from None
    return what, mean_rtt_s


def _slice(value: str) -> tuple[str, dict[str, int]]:
    """Split ``FILE#N``. A ``#`` in the name of a file that there is means nothing."""
    file, mark, number = value.rpartition("#")
    is_slice = bool(mark) and number.isascii() and number.isdecimal() and not Path(value).is_file()
    return (file, {"slice": int(number)}) if is_slice else (value, {})


def check(topology: str, seed: int) -> None:
    """Raises `ConfigError` unless a simulation can use it."""
    parse_scenario({SECTION: table_of(topology)}).topology.build(seed)
