"""What the papers say of each experiment, for the pages of ``peerd lab report``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CODD_SAYS: Final[Mapping[str, str]] = {
    "dissemination/default": (
        "reorganisation saves over 50 % of the overhead of inner nodes (figure 11); it is much less than Siena's "
        "(12), falls until the end of the run (17), and depth is better with reorganisation (9); the latter 60 % "
        "of moves make the mover's parent better (18)"
    ),
    "dissemination/nodes": (
        "with reorganisation depth grows like log n, and the overhead at a much lower rate; without it depth grows "
        "linearly"
    ),
    "dissemination/fan-out": "the overhead is much less than Siena's",
    "dissemination/xml": "below 10 % overhead at low fan-outs, for three sets of documents",
    "dissemination/frequency": (
        "from 20 to 200 it makes little difference how often a node asks; 500 and 1,000 are worse"
    ),
    "dissemination/top": "10 to 20 moves of a batch are close to no limit",
    "dissemination/threshold": "a higher threshold makes fewer moves, most of all where much is wanted",
    "dissemination/delta": (
        "a delta of 20 % makes moves much fewer (figure 22), and the overhead hardly worse (24); the latter 60 % "
        "of the moves make the asker's share less (23)"
    ),
}

ZHOU_SAYS: Final[Mapping[str, str]] = {
    "dissemination/coherency-decisions": (
        "a decision takes 0.6 microseconds for a node with 100 objects, in C, whatever the number of children"
    ),
    "dissemination/coherency-load": (
        "greedy is as good as annealing; DiTA loses more than twice as much at load 1, and much more with load; "
        "the source alone does not depend on the load, and overtakes DiTA and the random tree"
    ),
    "dissemination/coherency-adapting": (
        "after about 30 rounds a random tree has come from more than 3 (load 1) and 4 (load 5) times the annealed "
        "tree's loss to 1.3 times, and with more rounds to the annealed tree"
    ),
    "dissemination/coherency-change": (
        "the change makes DiTA's and the annealed tree drastically worse; the adaptive tree comes back to where it was"
    ),
    "dissemination/coherency-objects-load": "it is as with one object",
    "dissemination/coherency-objects": (
        "with 500 objects the source alone loses 200 % more than with 100, the other trees some 15 % more"
    ),
    "dissemination/coherency-objects-adapting": "the random tree becomes as good as the annealed one",
    "dissemination/coherency-trees": (
        "a tree for each object loses less at every load, the more so the slower servers are"
    ),
    "dissemination/coherency-interest": (
        "a tree for each object loses less, the more so the fewer objects a server wants"
    ),
    "dissemination/coherency-building": (
        "annealing is better and much slower; with the second set of parameters more than twice as costly as greedy"
    ),
    "dissemination/coherency-objects-change": (
        "both become worse at the change; the adaptive tree comes back to where it was, and the other one does not"
    ),
    "dissemination/coherency-tau": "0.2 is taken, without a figure for it",
}
