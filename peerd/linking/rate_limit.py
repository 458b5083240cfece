"""The decaying misbehaviour score that ends in a ban. Times are given, never read: easy to test."""

from __future__ import annotations

from typing import Final

from peerd.ids import NodeId

SCORE_HALF_LIFE_S: Final = 300.0
SCORE_LIMIT: Final = 100.0
"""At this score a peer is banned: eleven malformed messages within a minute."""
BAN_MIN_S: Final = 60.0
BAN_MAX_S: Final = 3600.0
SCORED_PEERS_MAX: Final = 1024
POINTS: Final = {"flood": 5.0, "bad_signature": 50.0}
POINTS_DEFAULT: Final = 10.0


class MisbehaviourScores:
    """Points against peers, halved every five minutes; bans double from a minute to an hour.

    Local only: a score is never told to others, so that no peer can have another one banned by what it says.
    """

    def __init__(self) -> None:
        self._scores: dict[NodeId, tuple[float, float]] = {}
        self._bans: dict[NodeId, tuple[float, float]] = {}

    def add(self, peer: NodeId, reason: str, now: float) -> bool:
        """Add the points of one misbehaviour; returns whether the peer is banned now."""
        score, since = self._scores.pop(peer, (0.0, now))
        score = score * 0.5 ** ((now - since) / SCORE_HALF_LIFE_S) + POINTS.get(reason, POINTS_DEFAULT)
        if score < SCORE_LIMIT:
            self._scores[peer] = (score, now)
            _keep_newest(self._scores)
            return self.is_banned(peer, now)
        _, length_s = self._bans.pop(peer, (0.0, BAN_MIN_S / 2))
        length_s = min(2 * length_s, BAN_MAX_S)
        self._bans[peer] = (now + length_s, length_s)
        _keep_newest(self._bans)
        return True

    def points(self, peer: NodeId, now: float) -> float:
        """The score now: 0 for a peer that behaves, `SCORE_LIMIT` for one that is banned."""
        if self.is_banned(peer, now):
            return SCORE_LIMIT
        score, since = self._scores.get(peer, (0.0, now))
        return float(score * 0.5 ** ((now - since) / SCORE_HALF_LIFE_S))

    def is_banned(self, peer: NodeId, now: float) -> bool:
        """Whether its connections are refused at the moment."""
        ban = self._bans.get(peer)
        return ban is not None and now < ban[0]


def _keep_newest(table: dict[NodeId, tuple[float, float]]) -> None:
    while len(table) > SCORED_PEERS_MAX:
        del table[next(iter(table))]
