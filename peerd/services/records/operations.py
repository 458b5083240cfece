"""Operations that plugins of this node have under way: sent to the root, and again until it answers or time is up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from peerd.api import Part, RecordOutcome, RecordResult, handles, on_timer
from peerd.errors import Unavailable
from peerd.messages import PeerRef
from peerd.services.records import messages
from peerd.services.records.messages import RecordAnswer, RecordRequest
from peerd.services.records.owners import SHARED
from peerd.services.records.record import Record
from peerd.services.records.state import RecordState

OPERATIONS_MAX: Final = 4096
ATTEMPTS_MAX: Final = 255

OUTCOMES: Final = {
    messages.STORED: RecordOutcome.STORED,
    messages.FOUND: RecordOutcome.FOUND,
    messages.ABSENT: RecordOutcome.ABSENT,
    messages.CONFLICT: RecordOutcome.CONFLICT,
    messages.QUOTA: RecordOutcome.QUOTA,
    messages.OWNED: RecordOutcome.OWNED,
}
"""What ends an operation; NOT_ROOT does not, it is tried again."""
VERBS: Final = {messages.GET: "get", messages.PUT: "put", messages.DELETE: "delete"}


@dataclass(slots=True)
class Operation:
    """An operation that has no answer yet."""

    request: RecordRequest
    on_result: Callable[[RecordResult], None]
    deadline: float
    pause_s: float
    refused: int = 0
    """Attempts that were answered with NOT_ROOT; each attempt is counted once."""
    detail: str = ""
    result: RecordResult | None = None
    """The result, when it is known before anything was sent: the operation was refused here."""


class Operations(Part):
    """The operations of this node's plugins. Results go back through the host, never within the plugin's own call."""

    def __init__(self, state: RecordState) -> None:
        self._state = state
        self._host = state.host
        self._pending: dict[int, Operation] = {}
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._pending)

    def inherit(self, failed: Operations) -> None:
        """Go on with the numbers of an instance that failed, and end what it had under way."""
        self._sequence = failed._sequence
        self._pending = failed._pending
        for sequence, operation in self._pending.items():
            operation.result = operation.result or RecordResult(RecordOutcome.UNKNOWN, detail="restarted")
            self._host.set_timer("operation", 0.0, sequence)

    def next_sequence(self) -> int:
        """The next number of an operation in this boot of the node."""
        self._sequence += 1
        return self._sequence

    def start(
        self,
        request: RecordRequest,
        on_result: Callable[[RecordResult], None],
        timeout_s: float | None,
        refusal: str | None = None,
    ) -> None:
        """Send it; with ``refusal`` a limit is broken already, and the answer is QUOTA.

        Raises `Unavailable` when `OPERATIONS_MAX` are under way.
        """
        if len(self._pending) >= OPERATIONS_MAX:
            raise Unavailable(f"{OPERATIONS_MAX} operations on records are under way already")
        config = self._state.config
        limit_s = config.operation_timeout if timeout_s is None else timeout_s
        request = replace(request, nonce=self._host.rng.getrandbits(64))
        operation = Operation(request, on_result, self._host.now() + limit_s, config.retry_min)
        self._pending[request.sequence] = operation
        if refusal is not None:
            operation.result = RecordResult(RecordOutcome.QUOTA, detail=refusal)
            self._host.set_timer("operation", 0.0, request.sequence)
        else:
            self._send(operation)

    def _send(self, operation: Operation) -> None:
        now, config = self._host.now(), self._state.config
        pause_s = operation.pause_s * self._host.rng.uniform(0.75, 1.25)
        operation.pause_s = min(config.retry_max, 2 * operation.pause_s)
        self._host.set_timer("operation", max(0.0, min(pause_s, operation.deadline - now)), operation.request.sequence)
        self._host.route(operation.request.key, operation.request)

    @on_timer("operation")
    def _retry(self, sequence: int) -> None:
        """There is no answer yet: send the operation again, or give it up."""
        operation = self._pending[sequence]
        if operation.result is not None:
            self._finish(sequence, operation.result)
        elif self._host.now() >= operation.deadline:
            attempts = operation.request.attempt + 1
            never_reached = operation.refused == attempts and attempts <= ATTEMPTS_MAX
            outcome = RecordOutcome.NOT_ROOT if never_reached else RecordOutcome.UNKNOWN
            self._finish(sequence, RecordResult(outcome, detail=operation.detail))
        else:
            attempt = min(operation.request.attempt + 1, ATTEMPTS_MAX)
            operation.request = replace(operation.request, attempt=attempt)
            self._send(operation)

    @handles(RecordAnswer)
    def _answered(self, answer: RecordAnswer, source: PeerRef) -> None:
        """Somebody answered as the root; late and repeated answers are ignored."""
        operation = self._pending.get(answer.sequence)
        is_asked = operation is None or operation.request.nonce == answer.nonce
        if answer.sequence > self._sequence or not is_asked:  # made up (or this node has restarted since)
            self._host.count("peerd_records_refusals_total", reason="not_asked")
            return
        if operation is None or operation.result is not None:
            return
        outcome = OUTCOMES.get(answer.status)
        refusal = self._refusal(operation.request, answer) if outcome is RecordOutcome.FOUND else None
        if refusal is not None:
            self._host.count("peerd_records_refusals_total", reason=refusal)
            operation.detail = refusal
            return
        if outcome is None:
            operation.refused += operation.refused == answer.attempt  # the answers come in the order of the attempts
            operation.detail = answer.detail
            return
        self._host.cancel_timer("operation", answer.sequence)
        owner = operation.request.owner if outcome is RecordOutcome.STORED else answer.owner
        result = RecordResult(
            outcome,
            answer.version,
            answer.value,
            answer.remaining_s,
            answer.copies,
            answer.detail,
            None if owner == SHARED else owner,
        )
        self._finish(answer.sequence, result)

    def _refusal(self, asked: RecordRequest, answer: RecordAnswer) -> str | None:
        """``None`` if what is said to be found was asked for, its writer has signed it, and its plugin allows it."""
        if answer.request is None or answer.version is None or answer.value is None:
            return "forged"
        if asked.owner not in (None, answer.owner):
            return "forged"
        now = self._host.now()
        record = self._state.within_signed_life(
            Record(
                asked.namespace,
                asked.key,
                answer.version,
                answer.value,
                now + answer.remaining_s,
                now,
                answer.request,
                asked.item,
                answer.owner,
                answer.write,
            )
        )
        if record.expires_at <= now or not (record.is_consistent and self._state.is_genuine(record)):
            return "forged"
        return None if self._state.is_allowed(record) else "not_allowed"

    def forget(self, namespace: str) -> None:
        """Drop the operations of a plugin that is gone."""
        for sequence in [one for one, each in self._pending.items() if each.request.namespace == namespace]:
            self._host.cancel_timer("operation", sequence)
            del self._pending[sequence]

    def _finish(self, sequence: int, result: RecordResult) -> None:
        operation = self._pending.pop(sequence)
        request = operation.request
        self._host.count("peerd_records_operations_total", verb=VERBS[request.verb], outcome=result.outcome.value)
        self._host.record_upcalls.ended(request.namespace, operation.on_result, result)
