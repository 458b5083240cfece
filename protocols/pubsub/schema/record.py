"""A schema as the ring keeps it: its document, and the proof of the node that made it. Pure.

Any node may write the record again, which keeps the schema alive; only its creator can have signed what it says.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from peerd.errors import ConfigError
from peerd.frozen import Frozen
from peerd.ids import ID_BYTES, NodeId, id_to_bytes
from peerd.limits import PROOF_BYTES_MAX
from protocols.pubsub.schema.document import DOCUMENT_BYTES_MAX
from protocols.pubsub.schema.event_schema import EventSchema

_HEAD: Final = struct.Struct(f">B{ID_BYTES}sH")
"""Whether the schema goes on (1) or is over (0), its creator, and the length of the proof; the document comes last."""
RECORD_BYTES_MAX: Final = _HEAD.size + PROOF_BYTES_MAX + DOCUMENT_BYTES_MAX
_TAG: Final = b"schema"


class SchemaRecord(Frozen):
    """A version of a schema, or, with ``is_over``, its creator's word that it has ended with this version."""

    schema: EventSchema
    creator: NodeId
    proof: bytes
    is_over: bool = False

    @staticmethod
    def signed(
        schema: EventSchema, creator: NodeId, sign: Callable[[bytes], bytes], *, is_over: bool = False
    ) -> SchemaRecord:
        """The record of this node's own schema."""
        return SchemaRecord(schema, creator, sign(_statement(schema, is_over)), is_over)

    @staticmethod
    def read(data: bytes, *, cutoff: float) -> SchemaRecord:
        """Read what `write` gave, or what a stranger did. Raises `ConfigError`. The proof is still to be checked."""
        if not _HEAD.size < len(data) <= RECORD_BYTES_MAX:
            raise ConfigError(f"the record of a schema has at most {RECORD_BYTES_MAX} bytes, and more than its head")
        going_on, creator, proof_length = _HEAD.unpack_from(data)
        begin = _HEAD.size + proof_length
        if going_on > 1 or proof_length > PROOF_BYTES_MAX or begin > len(data):
            raise ConfigError("a schema is kept with the id of the node that made it, and its proof")
        schema = EventSchema.from_json(data[begin:], cutoff=cutoff)
        return SchemaRecord(schema, NodeId(int.from_bytes(creator, "big")), data[_HEAD.size : begin], not going_on)

    def write(self) -> bytes:
        """Return it as it is kept."""
        head = _HEAD.pack(not self.is_over, id_to_bytes(self.creator), len(self.proof))
        return head + self.proof + self.schema.document.to_json()

    def is_proven(self, verify: Callable[[NodeId, bytes, bytes], bool]) -> bool:
        """Whether its creator has said this, and counts: a member that was denied does not any more."""
        return verify(self.creator, _statement(self.schema, self.is_over), self.proof)

    def why_not_after(self, old: SchemaRecord) -> str:
        """Empty if the same creator may have this follow, else what forbids it. Of another creator nothing follows."""
        if self.is_over or old.is_over:
            is_later = self.schema.version > old.schema.version
            is_end = self.is_over and self.schema.version == old.schema.version
            return "" if is_later or is_end else f"{old.schema.name} has ended with version {old.schema.version}"
        return self.schema.why_not_after(old.schema)


def _statement(schema: EventSchema, is_over: bool) -> bytes:
    return _TAG + (b"-" if is_over else b"+") + sha256(schema.document.to_json()).digest()
