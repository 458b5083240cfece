"""Building blocks in one process: what a message costs, and what an aggregate of a megabyte costs."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import xxhash
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate

from bench.counters import QUERY, count_for, counters, partial, write_csv
from bench.measure import Bench
from bench.workload import Probe, probe
from peerd.errors import Bug
from peerd.identity.authority import ClusterAuthority
from peerd.identity.node_identity import read_identity
from peerd.identity.statements import Denied, Statements
from peerd.ids import NodeId
from peerd.limits import MIB
from peerd.messages import decode_body, encode_body, unpack
from peerd.sim.identity import SimulatedKeys
from peerd.wire.codec import decode, encode
from protocols.aggregation.extraction import extract
from protocols.aggregation.partial import Partial, merge

SAMPLE_S: Final = 0.2
STATEMENT_BYTES: Final = 200


Calls = dict[tuple[str, str], tuple[Callable[[], object], str]]
"""Name and unit of a row to the call and the remark."""


def run(bench: Bench) -> None:
    """Every row is measured once before any is measured again."""
    with tempfile.TemporaryDirectory(prefix="peerd-bench-") as folder:
        value = os.urandom(bench.scale.of(64, 16, 1) * MIB)
        groups = count_for(bench.scale.of(MIB, MIB, 16 * 1024))
        calls: Calls = {
            **_message_calls(),
            **_partial_calls(groups, Path(folder)),
            **_statement_calls(),
            ("XXH3", "ms/MiB"): (lambda: xxhash.xxh3_128(value).digest(), "one thread"),
        }
        factors = {"us": 1e6, "ms": 1e3, "ms/MiB": 1e3 * MIB / len(value)}
        sample_s = bench.scale.of(SAMPLE_S, SAMPLE_S / 2, 0.001)
        samples: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
        for number in range(bench.runs):
            bench.progress(f"run {number + 1} of {bench.runs}")
            for key, (call, _) in calls.items():
                samples[key].append(_duration_s(call, sample_s) * factors[key[1]])
    for (name, unit), (_, note) in calls.items():
        bench.row(name, unit, samples[name, unit], note=note)


def _message_calls() -> Calls:
    message = probe(NodeId((1 << 127) + 99), 5)
    body, frame = encode_body(message), encode(message)
    return {
        ("message: encode", "us"): (lambda: encode_body(message), f"{len(body)} bytes: two ids and seven numbers"),
        ("message: unpack only", "us"): (lambda: unpack(body), "strict msgpack, nothing validated"),
        ("message: decode and validate", "us"): (lambda: decode_body(Probe, body), ""),
        ("message: frame to handler", "us"): (lambda: decode(frame), ""),
    }


def _partial_calls(groups: int, folder: Path) -> Calls:
    read, yours = partial(counters(groups, 1), 1), partial(counters(groups, 2), 2)
    encoded = yours.encode()
    mine, theirs = (Partial.decode(each.encode(), QUERY) for each in (read, yours))
    known = list(counters(groups // 20, 3).items())
    half = {f"other/{key}" if number % 2 else key: value for number, (key, value) in enumerate(known)}
    others = Partial.decode(partial(half, 3).encode(), QUERY)
    write_csv(counters(groups, 1), folder / "counters.csv")
    objects = replace(QUERY, files="*.ndjson", format="ndjson")
    lines = [json.dumps({"time": 1.7e9, "key": key, "host": "a", "value": value}) for key, value in known]
    (folder / "some.ndjson").write_text("\n".join(lines * 20) + "\n", "utf-8")
    return {
        ("partial: read from a file", "ms"): (lambda: extract(QUERY, folder), f"CSV of {groups:,} rows"),
        ("partial: read from NDJSON", "ms"): (
            lambda: extract(objects, folder),
            f"{20 * len(known):,} lines of 4 members",
        ),
        ("partial: encode what was read", "ms"): (read.encode, f"{len(encoded) / MIB:.2f} MiB, {groups:,} groups"),
        ("partial: decode and validate", "ms"): (lambda: Partial.decode(encoded, QUERY), ""),
        ("partial: merge", "ms"): (lambda: merge(mine, theirs), "the same keys in both"),
        ("partial: merge, other keys", "ms"): (lambda: merge(mine, others), "a twentieth as many, half of them new"),
        ("partial: encode what was merged", "ms"): (mine.encode, ""),
    }


def _statement_calls() -> Calls:
    """What a node says through others; see docs/identity.md."""
    authority, key = ClusterAuthority.create("bench"), Ed25519PrivateKey.generate()
    certificate = load_pem_x509_certificate(authority.issue(key.public_key())).public_bytes(Encoding.DER)
    signer = read_identity(certificate).node_id
    statement = os.urandom(STATEMENT_BYTES)
    roots, nobody = authority.roots, Denied(frozenset(), frozenset())

    def statements() -> Statements:
        return Statements("bench", key, certificate, roots=lambda: roots, denied=lambda: nobody)

    one, simulated = statements(), SimulatedKeys(1)
    proof, simulated_proof = one.sign("bench", statement), simulated.sign(signer, "bench", statement)
    if not statements().verify(signer, "bench", statement, proof):
        raise Bug("a proof does not verify")
    size = f"{STATEMENT_BYTES} bytes, proof of {len(proof)}"
    return {
        ("statement: sign", "us"): (lambda: one.sign("bench", statement), size),
        ("statement: verify", "us"): (lambda: one.verify(signer, "bench", statement, proof), "certificate known"),
        ("statement: verify, new signer", "us"): (
            lambda: statements().verify(signer, "bench", statement, proof),
            "certificate parsed and checked first",
        ),
        ("statement: verify, simulated", "us"): (
            lambda: simulated.verify(signer, "bench", statement, simulated_proof),
            "keyed hash",
        ),
    }


def _duration_s(call: Callable[[], object], sample_s: float) -> float:
    """Seconds a call, over at least ``sample_s``."""
    calls, batch = 0, 1
    began = time.perf_counter()
    while (elapsed_s := time.perf_counter() - began) < sample_s:
        for _ in range(batch):
            call()
        calls += batch
        batch = min(2 * batch, 1000)
    return elapsed_s / calls
