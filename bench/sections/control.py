"""Small control messages from one daemon to another, and msgpack alone with the same array in one process."""

from __future__ import annotations

import time
from typing import Final

import msgpack

from bench.measure import Bench, at_least, ratios
from bench.pair import Pair, pair
from bench.workload import SEEN_EVERY, probe
from peerd.ids import NodeId
from peerd.messages import encode_body

SHARE_AIM: Final = 0.1


def run(bench: Bench) -> None:
    """One way, pipelined; a message counts once its handler at the other side has run."""
    count = bench.scale.of(400, 100, 4) * SEEN_EVERY
    plain: list[float] = []
    secure: list[float] = []
    alone: list[float] = []
    with pair(tls=False) as bare, pair(tls=True) as encrypted:
        for pumpers in (bare, encrypted):
            _rate(pumpers, 4 * SEEN_EVERY)
        for number in range(bench.runs):
            bench.progress(f"run {number + 1} of {bench.runs}")
            alone.append(_msgpack_rate(count))
            plain.append(_rate(bare, count))
            secure.append(_rate(encrypted, count))
    size = len(encode_body(probe(NodeId(1), 1)))
    bench.row("validated messages, no TLS", "1/s", plain, note=f"{size} bytes, two daemons, one way, pipelined")
    bench.row("validated messages, TLS 1.3", "1/s", secure)
    bench.row("msgpack alone: pack and unpack", "1/s", alone, note="the same array, one process, no validation")
    bench.row("messages / msgpack alone, no TLS", "x", ratios(plain, alone), at_least(SHARE_AIM))


def _rate(pumpers: Pair, count: int) -> float:
    return count / float(pumpers.ask("pump", count=count)["duration_s"])


def _msgpack_rate(count: int) -> float:
    message = probe(NodeId((1 << 127) + 99), 5)
    array = msgpack.unpackb(encode_body(message), use_list=False)
    pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack
    began = time.perf_counter()
    for _ in range(count):
        msgpack.unpackb(pack(array), use_list=False)
    return count / (time.perf_counter() - began)
