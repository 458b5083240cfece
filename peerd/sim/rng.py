"""The tree of random generators: one root seed, one generator for each (node, purpose).

An extra draw in one place must not change the numbers in another, so no generator is shared: each is seeded with the
SHA-256 of the root seed and of the path that names it. No global generator and no hash of a string is used, so a run is
the same under every ``PYTHONHASHSEED``.
"""

from __future__ import annotations

import hashlib
import random

from peerd.ids import ID_BITS, NodeId


def fork(seed: int, *path: int | str) -> random.Random:
    """The generator of one purpose, e.g. ``fork(7, "node", 3, "overlay")``."""
    text = "/".join(str(step) for step in (seed, *path))
    return random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest(), "big"))


def random_id(generator: random.Random) -> NodeId:
    """A uniform point on the ring."""
    return NodeId(generator.getrandbits(ID_BITS))
