"""The table ``[topology]`` of a scenario: how far apart nodes are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from peerd.sim.latency import ConstantLatency, EuclideanLatency, LatencyModel, SphereLatency
from peerd.sim.tables import Seconds, Table
from peerd.sim.topology.graph import RouterLatency, TransitStub, TransitStubLatency, read_routers
from peerd.sim.topology.sites import LOCAL_RTT_S, SiteLatency, read_sites

FOLDER: Final = "folder"
"""Key of the validation context that says where the scenario's file is."""


def _beside_scenario(path: str, info: ValidationInfo) -> str:
    if "\0" in path:
        raise ValueError("no file has a NUL in its name")
    folder = info.context.get(FOLDER) if isinstance(info.context, dict) else None
    return str(Path(folder) / path) if folder is not None and path else path


_KEYS: Final = {
    "constant": {"latency_s"},
    "euclidean": {"side_s", "minimum_s", "torus"},
    "sphere": {"half_turn", "minimum_s"},
    "matrix": {"matrix_s", "file", "slice", "local_rtt", "scale_mean_rtt"},
    "transit-stub": {"transit_stub"},
    "inet": {"file", "local_rtt", "scale_mean_rtt"},
}


class Topology(Table):
    """How far apart nodes are."""

    model: Literal["euclidean", "constant", "sphere", "matrix", "transit-stub", "inet"] = Field(
        default="euclidean",
        description="Random points of a square or a sphere, one constant, a matrix of sites, or a graph of routers.",
    )
    latency_s: Seconds = Field(default=0.02, ge=0, le=60, description="constant: the one-way delay.")
    side_s: Seconds = Field(default=0.08, ge=0, le=60, description="euclidean: side of the square, one-way.")
    torus: bool = Field(default=False, description="euclidean: whether opposite sides touch, so that there is no edge.")
    half_turn: Seconds = Field(
        default=0.1, ge=0, le=60, description="sphere: one-way delay between opposite points (half the earth in fibre)."
    )
    minimum_s: Seconds = Field(default=0.001, ge=0, le=60, description="euclidean, sphere: added to every delay.")
    matrix_s: tuple[tuple[Seconds, ...], ...] = Field(
        default=(), description="matrix: one-way delays between sites, a row a site; nodes take sites in turn."
    )
    file: Annotated[str, AfterValidator(_beside_scenario)] = Field(
        default="", description="matrix, inet: the file to read instead, relative to the scenario's."
    )
    slice: int = Field(default=0, ge=0, description="matrix: which slice of an archive that has several.")
    local_rtt: Seconds = Field(
        default=LOCAL_RTT_S, ge=0, le=60, description="matrix, inet: least round trip, of two nodes at one place."
    )
    scale_mean_rtt: Seconds | None = Field(
        default=None,
        gt=0,
        le=60,
        description="matrix with file: scale round trips so that their mean over pairs of sites is this; absent: as "
        "they are. inet: the same over pairs of routers; always given, as lengths in such a file have no unit.",
    )
    transit_stub: TransitStub = Field(default=TransitStub(), description="transit-stub: the generator's parameters.")

    @model_validator(mode="after")
    def _check_keys(self) -> Topology:
        strange = sorted(self.model_fields_set - _KEYS[self.model] - {"model"})
        if strange:
            raise ValueError(f"{strange[0]} says nothing to the model {self.model!r}")
        if self.model == "matrix" and bool(self.matrix_s) == bool(self.file):
            raise ValueError("the model 'matrix' takes one of matrix_s and file")
        if self.matrix_s and self.model_fields_set & {"slice", "scale_mean_rtt"}:
            raise ValueError("slice and scale_mean_rtt go with file, not with matrix_s")
        if self.model == "inet" and (not self.file or self.scale_mean_rtt is None):
            raise ValueError("the model 'inet' takes a file and scale_mean_rtt")
        return self

    def build(self, seed: int) -> LatencyModel:
        """Make the model. Raises `ConfigError` for a malformed matrix, or a file that cannot be used."""
        match self.model:
            case "constant":
                return ConstantLatency(self.latency_s)
            case "euclidean":
                return EuclideanLatency(seed, self.side_s, self.minimum_s, is_torus=self.torus)
            case "sphere":
                return SphereLatency(seed, self.half_turn, self.minimum_s)
            case "transit-stub":
                return TransitStubLatency(seed, self.transit_stub)
            case "matrix" if self.file:
                sites = read_sites(Path(self.file), self.slice)
                return SiteLatency.of(sites, seed, self.local_rtt, self.scale_mean_rtt)
            case "matrix":
                return SiteLatency(self.matrix_s, self.local_rtt / 2)
            case "inet":
                assert self.scale_mean_rtt is not None  # `_check_keys`
                return RouterLatency(read_routers(Path(self.file)), seed, self.scale_mean_rtt, self.local_rtt)
