"""The simulator with a ring of real nodes, beside a bare heap that encodes, decodes and validates the same message."""

from __future__ import annotations

from typing import Final

from bench.measure import Bench, at_least, ratios
from bench.processes import Children, Conversation
from bench.workload import MESSAGES
from peerd.ids import NodeId
from peerd.messages import encode_body

NODES: Final = 1000
RATE_AIM: Final = 100_000.0
SHARE_AIM: Final = 1 / 3
RING_TIMEOUT_S: Final = 600.0


def run(bench: Bench) -> None:
    """A process of its own, so that its memory is the simulation's."""
    nodes = bench.scale.of(NODES, NODES, 8)
    messages = bench.scale.of(300_000, 100_000, 500)
    rates: dict[str, list[float]] = {kind: [] for kind in MESSAGES}
    bare: dict[str, list[float]] = {kind: [] for kind in MESSAGES}
    with Children() as children:
        worker = Conversation(children, "bench.simulated", [str(nodes)])
        bench.progress(f"a ring of {nodes:,} nodes")
        ring = worker.ask("ring", timeout_s=RING_TIMEOUT_S)
        for number in range(bench.runs):
            bench.progress(f"run {number + 1} of {bench.runs}")
            for kind in MESSAGES:
                bare[kind].append(_rate(worker.ask("bare", kind=kind, messages=messages)))
                rates[kind].append(_rate(worker.ask("deliver", kind=kind, messages=messages)))
        worker.finish()
    for kind, make in MESSAGES.items():
        size = len(encode_body(make(NodeId((1 << 127) + 99), 100_000)))
        is_aimed_at = kind == "small"
        note = f"{nodes:,} nodes, one core, {size} bytes; encoded, decoded, validated"
        bench.row(f"{kind} messages delivered", "1/s", rates[kind], at_least(RATE_AIM) if is_aimed_at else None, note)
        bench.row(
            f"{kind} messages, bare heap", "1/s", bare[kind], note="heap, encode, decode, validate; no node, no network"
        )
        share = ratios(rates[kind], bare[kind])
        bench.row(f"{kind}: simulator / bare heap", "x", share, at_least(SHARE_AIM) if is_aimed_at else None)
    bench.row("memory a node", "KiB", [ring["node_kib"]], note="resident, after all have joined; one ring")
    bench.row(
        "ring of all nodes, wall clock", "s", [ring["duration_s"]], note=f"{ring['messages']:,} messages; one ring"
    )


def _rate(answer: dict[str, float]) -> float:
    return answer["messages"] / answer["duration_s"]
