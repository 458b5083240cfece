"""A member that says anything: messages of every type, valid in form, at any time, to nodes that are in the middle of
their work. Whatever it says costs it its link at most: no handler and no timer raises anything else.

What the mutations of `tests.fuzz.mutate` do for decoders this does for what stands behind them. The ids, peers and
rounds that it names are those of the ring most of the time, or else nothing that it says would be looked at.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import suppress
from random import Random

from peerd.errors import ProtocolError, Unavailable
from peerd.ids import key_of
from peerd.messages import Message, decode_body
from peerd.sim.simulation import Simulation
from peerd.wire.frames import CORRELATION, FLAG_REPLY, FLAG_REQUEST
from tests.fuzz.instances import Vocabulary, encoded_instance
from tests.support.aggregation import SUM, Round, aggregation_ring
from tests.support.golden import all_messages

NODES = 6
MESSAGES_AT_ONCE = 12
ROUND_EVERY = 8 * MESSAGES_AT_ONCE
STEP_S = 0.2
TOPIC_KEY = key_of("topic")
_NOT_OF_THE_NODE = frozenset({"Hello", "HelloAck", "HelloRefused", "Goodbye", "LinkHeartbeat"})
"""The driver answers these; a node never gets them."""


def episode(seed: int, messages: int) -> str | None:
    """Run one ring in which a member says so much; what was raised, or ``None``."""
    rng = Random(f"member {seed}")
    simulation = aggregation_ring(NODES, seed)
    simulation.misbehaviour_is_failure = False
    kinds = [kind for kind in all_messages() if kind.__name__ not in _NOT_OF_THE_NODE]
    said: list[str] = []
    rounds: list[bytes] = []
    try:
        for number in range(0, messages, MESSAGES_AT_ONCE):
            if number % ROUND_EVERY == 0:
                rounds.append(_work(rng, simulation))
            words = _vocabulary(simulation, kinds, rounds[-4:])
            said = [_say_anything(rng, simulation, words) for _ in range(MESSAGES_AT_ONCE)]
            simulation.run_for(rng.choice((0.0, STEP_S, STEP_S, 3.0)))
            for place in simulation.live_nodes():
                place.node.validate()
    except Exception as error:  # whatever it is, it is what is looked for
        where = traceback.extract_tb((error.__cause__ or error).__traceback__)[-1]
        return "\n    ".join([f"{type(error).__name__}: {error!s:.800} ({where.filename}:{where.lineno})", *said])
    return None


def _work(rng: Random, simulation: Simulation) -> bytes:
    """What honest users do meanwhile: a round, a record. Returns the id of the round."""
    for place in simulation.live_nodes():
        host = place.node.hosts["aggregation"]
        with suppress(Unavailable):
            host.records.put(TOPIC_KEY, b"value", 60.0, _whatever)
    with suppress(Unavailable):
        return Round(simulation, rng.randrange(NODES), 30.0).round_id
    return bytes(16)


def _whatever(*_: object) -> None:
    """Honest users hear something, or nothing."""


def _vocabulary(simulation: Simulation, kinds: Sequence[type[Message]], rounds: Sequence[bytes]) -> Vocabulary:
    peers = [place.peer for place in simulation.nodes]
    ids = [*(peer.id for peer in peers), TOPIC_KEY]
    return Vocabulary(peers, ids, [*rounds, SUM.to_wire(), b"", b"value"], kinds)


def _say_anything(rng: Random, simulation: Simulation, words: Vocabulary) -> str:
    """One message of the last node to another, however it comes: alone, as a request or as a reply.

    It is handed over although the liar was banned long ago: a stranger with a new certificate would be let in.
    """
    *honest, liar = simulation.nodes
    victim = rng.choice(honest)
    kind = rng.choice(words.kinds)
    body = encoded_instance(rng, kind, words)
    flags = rng.choice((0, 0, FLAG_REQUEST, FLAG_REPLY))
    head = CORRELATION.pack(rng.randrange(1, 200)) if flags else b""
    victim.node.frame_received(liar.peer, (kind.TYPE_ID, flags, head + body))
    try:
        told = repr(decode_body(kind, body))
    except ProtocolError as error:
        told = f"{kind.__name__}, which is refused: {error}"
    return f"to {victim.index}, flags {flags}: {told:.600}"
