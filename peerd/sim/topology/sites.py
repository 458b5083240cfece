"""Sites with measured round-trip times: the files that hold them, and nodes placed at them.

Three kinds of file. Our own is plain text (docs/simulator.md, "Latency files")::

    # round-trip times, ms
    sites    lisbon  oslo   sydney
    weights  3       1      5
    0.4
    62.1     0.5
    290      -       0.4

The other two are NumPy archives (``.npz``, needs the extra ``lab``) as public data sets come: an array ``rtt`` of
(n, n) or (slices, n, n), or an array ``avg`` of (n, n) with ``names`` and ``pop``.
"""

from __future__ import annotations

import importlib
import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any, Final

from peerd.errors import ConfigError
from peerd.sim.rng import fork

SITES_MAX: Final = 10_000
FILE_BYTES_MAX: Final = 1 << 30
MISSING: Final = frozenset({"-", "nan"})
RTT_MAX_MS: Final = 600_000.0
LOCAL_RTT_S: Final = 0.001


@dataclass(frozen=True)
class Sites:
    """Round-trip times as they were measured: ``rtt_ms[a][b]``, NaN where missing; on the diagonal, inside a site.

    ``weights`` say how many nodes a site has, relative to the others; ``None``: nodes take the sites in turn.
    """

    rtt_ms: list[array[float]]
    names: tuple[str, ...] = ()
    weights: tuple[float, ...] | None = None


class SiteLatency:
    """Nodes at sites. ``rows[a][b]`` is the one-way delay between sites a and b, seconds.

    Node ``i`` is at site ``i mod sites``, or, with ``weights``, at one drawn by them. Two nodes of one site are at
    least ``local_s`` apart. Raises `ConfigError` unless the matrix is square, finite and not negative.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[float]],
        local_s: float = LOCAL_RTT_S / 2,
        *,
        weights: Sequence[float] | None = None,
        seed: int = 0,
    ) -> None:
        size = len(rows)
        if size == 0 or any(len(row) != size for row in rows):
            raise ConfigError("a latency matrix must be square and not empty", key="topology.matrix_s")
        if any(not math.isfinite(value) or value < 0 for row in rows for value in row):
            raise ConfigError("a latency must be a number of seconds, 0 or more", key="topology.matrix_s")
        self._rows = [array("d", row) for row in rows]
        for site, row in enumerate(self._rows):
            row[site] = max(row[site], local_s)
        self._bounds = list(accumulate(weights)) if weights is not None else None
        self._seed = seed
        self._sites: dict[int, int] = {}

    def site(self, index: int) -> int:
        """Return the site of a node."""
        if self._bounds is None:
            return index % len(self._rows)
        site = self._sites.get(index)
        if site is None:
            drawn = fork(self._seed, "site", index).random() * self._bounds[-1]
            site = self._sites[index] = min(bisect_right(self._bounds, drawn), len(self._rows) - 1)
        return site

    def latency_s(self, source: int, target: int) -> float:
        """The delay between the two nodes' sites."""
        return self._rows[self.site(source)][self.site(target)]

    @classmethod
    def of(cls, sites: Sites, seed: int, local_rtt_s: float, mean_rtt_s: float | None) -> SiteLatency:
        """Fill what is missing, scale the mean RTT of different sites to ``mean_rtt_s`` unless ``None``, halve."""
        rows = filled(sites.rtt_ms)
        to_s = 0.5e-3
        if mean_rtt_s is not None:
            mean_ms = mean_rtt_ms(rows)
            if mean_ms <= 0:
                raise ConfigError("all round-trip times are 0, which nothing scales", key="topology.scale_mean_rtt")
            to_s = mean_rtt_s / mean_ms / 2
        one_way = [array("d", (value * to_s for value in row)) for row in rows]
        return cls(one_way, local_rtt_s / 2, weights=sites.weights, seed=seed)


def mean_rtt_ms(rows: Sequence[Sequence[float]]) -> float:
    """Over all pairs of different sites; 0 for a single site."""
    size = len(rows)
    total = math.fsum(value for a, row in enumerate(rows) for b, value in enumerate(row) if a != b)
    return total / (size * (size - 1)) if size > 1 else 0.0


def filled(rows: Sequence[Sequence[float]]) -> list[array[float]]:
    """Symmetric, without gaps.

    A pair measured both ways gets the mean of the two, one measured one way that value. One not measured at all gets
    the shortest way through one other site; where there is none, the median of all pairs. Inside a site: 0.
    """
    size = len(rows)
    known = [array("d", row) for row in rows]
    for a in range(size):
        for b in range(a):
            there, back = known[a][b], known[b][a]
            both = back if math.isnan(there) else there if math.isnan(back) else (there + back) / 2
            known[a][b] = known[b][a] = both
    result = [array("d", row) for row in known]
    gaps = [(a, b) for a in range(size) for b in range(a) if math.isnan(known[a][b])]
    if gaps:
        measured = [known[a][b] for a in range(size) for b in range(a) if not math.isnan(known[a][b])]
        if not measured:
            raise ConfigError("no round-trip time between any two sites", key="topology.file")
        middle = median(measured)
        for a, b in gaps:
            ways = [x + y for x, y in zip(known[a], known[b], strict=True)]  # NaN by way of a or b
            result[a][b] = result[b][a] = min((way for way in ways if not math.isnan(way)), default=middle)
    for site in range(size):
        if math.isnan(result[site][site]):
            result[site][site] = 0.0
    return result


# Files


def read_sites(path: Path, number: int = 0) -> Sites:
    """A latency file of any of the three kinds; ``number`` chooses a slice. Raises `ConfigError` with file and line."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"over {FILE_BYTES_MAX} bytes is no latency file", file=str(path))
        if path.suffix == ".npz":
            return _read_archive(path, number)
        if number:
            raise ConfigError(f"no slice {number}: a text file has one, 0", file=str(path), key="topology.slice")
        return parse_sites(path.read_text("utf-8-sig"), str(path))  # some editors begin a file with a byte order mark
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError("neither UTF-8 text nor a .npz file", file=str(path)) from None


def parse_sites(text: str, file: str) -> Sites:
    """Our own format. Raises `ConfigError` with file and line."""
    heads: dict[str, list[str]] = {}
    rows: list[list[float]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        place = f"line {number}"
        if words[0] in ("sites", "weights"):
            if rows or words[0] in heads:
                raise ConfigError(f"{words[0]!r} stands once, above the rows", file=file, key=place)
            heads[words[0]] = words[1:]
        else:
            rows.append([_milliseconds(word, file, place) for word in words])
            if len(rows) > SITES_MAX:
                raise ConfigError(f"over {SITES_MAX} sites", file=file, key=place)
    weights = [_number(word, file, "weights") for word in heads["weights"]] if "weights" in heads else None
    return _sites(rows, tuple(heads.get("sites", ())), weights, file)


def _sites(rows: list[list[float]], names: tuple[str, ...], weights: list[float] | None, file: str) -> Sites:
    size = len(rows)
    if not size:
        raise ConfigError("no rows of round-trip times", file=file)
    is_triangle = len(rows[0]) == 1
    for number, row in enumerate(rows, start=1):
        wanted = number if is_triangle else size
        if len(row) != wanted:
            shape = "one more each row (a triangle)" if is_triangle else f"{size}, one for each row"
            raise ConfigError(f"{len(row)} values in row {number}; expected {shape}", file=file)
    if names and len(names) != size:
        raise ConfigError(f"{len(names)} sites are named and there are {size} rows", file=file, key="sites")
    if weights is not None and not (len(weights) == size and 0 < sum(weights) < math.inf):
        raise ConfigError(f"expected {size} weights, 0 or more, not all 0 nor infinite", file=file, key="weights")
    missing = [math.nan] * size
    return Sites([array("d", (row + missing)[:size]) for row in rows], names, tuple(weights) if weights else None)


def _number(word: str, file: str, place: str) -> float:
    try:
        value = float(word)
    except ValueError:
        raise ConfigError(f"{word!r} is no number", file=file, key=place) from None
    if not 0 <= value < math.inf:
        raise ConfigError(f"{word} is not 0 or more", file=file, key=place)
    return value


def _milliseconds(word: str, file: str, place: str) -> float:
    value = math.nan if word.lower() in MISSING else _number(word, file, place)
    if value > RTT_MAX_MS:
        raise ConfigError(f"{word} ms is no round-trip time (limit {RTT_MAX_MS:g})", file=file, key=place)
    return value


def _read_archive(path: Path, number: int) -> Sites:
    try:
        numpy: Any = importlib.import_module("numpy")
    except ImportError:
        message = 'a .npz file needs NumPy: install the extra "lab" (pip install "peerd[lab]"), or use the text format'
        raise ConfigError(message, file=str(path)) from None
    try:
        with path.open("rb") as file, numpy.load(file, allow_pickle=False) as archive:
            tables = {name: numpy.asarray(archive[name]) for name in ("rtt", "avg", "names", "pop") if name in archive}
        for name in tables.keys() - {"names"}:  # only arrays of integers and floats are accepted
            tables[name] = tables[name].astype("float64", casting="same_kind")
    except OSError:
        raise
    except Exception as error:  # whatever zipfile, zlib, NumPy and its parser of headers make of a damaged file
        raise ConfigError(f"not a NumPy archive of plain arrays: {error}", file=str(path)) from None
    values = tables.get("rtt", tables.get("avg"))
    if values is None:
        raise ConfigError('expected an array "rtt" or "avg"', file=str(path))
    slices = values if values.ndim == 3 else values[None]
    if not 0 <= number < len(slices):
        raise ConfigError(f"no slice {number}: there are {len(slices)}", file=str(path), key="topology.slice")
    values = slices[number]
    if values.ndim != 2 or values.shape[0] != values.shape[1] or not 0 < len(values) <= SITES_MAX:
        raise ConfigError(f"an array of shape {values.shape} is no latency matrix", file=str(path))
    if bool((values < 0).any()) or bool((values > RTT_MAX_MS).any()):
        raise ConfigError(f"round-trip times are from 0 to {RTT_MAX_MS:g} ms", file=str(path))
    names = tuple(map(str, tables["names"].reshape(-1))) if "names" in tables else ()
    people = tables["pop"].reshape(-1).tolist() if "pop" in tables else None
    weights = None if people is None else [max(value, 0.0) if value == value else 0.0 for value in people]
    return _sites(values.tolist(), names, weights, str(path))
