"""A schema as people write it, in TOML or JSON, and as it is kept in its record. Pure.

What is checked here is the form. `protocols.pubsub.schema.event_schema` checks what it means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)

from peerd.errors import ConfigError
from peerd.invalid import reason
from peerd.lib.filter.schema import Type
from peerd.limits import KIB, NAME_LENGTH_MAX

ATTRIBUTES_MAX: Final = 63
"""Most attributes of a schema: all of them fit into one message, with the tree of those that name none."""
DOCUMENT_BYTES_MAX: Final = 24 * KIB
"""The largest schema, as JSON."""
VERSION_MAX: Final = (1 << 32) - 1
DESCRIPTION_CHARACTERS_MAX: Final = 256

Bound: TypeAlias = StrictInt | StrictFloat | StrictStr | AwareDatetime | None
Default: TypeAlias = StrictBool | StrictInt | StrictFloat | StrictStr | AwareDatetime | None
AbsentMeaning: TypeAlias = Literal["fails", "matches"]
Outside: TypeAlias = Literal["refuse", "clamp"]


class AttributeDocument(BaseModel):
    """One attribute. Which keys it needs depends on its type; `protocols.pubsub.schema.event_schema` says so."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.\-]*$", max_length=NAME_LENGTH_MAX)]
    type: Type
    low: Bound = None
    high: Bound = None
    network: Annotated[str, Field(max_length=64)] | None = None
    """Of an ip attribute: the domain."""
    reversed_of: Annotated[str, Field(max_length=NAME_LENGTH_MAX)] | None = None
    """The node fills in this other attribute's text, reversed, so that filters on its end become ranges."""
    default: Default = None
    """The value of events that have none."""
    routed: bool = True
    """Whether subscriptions may be placed by it. Each routed attribute costs every event a visit to its tree."""
    cutoff: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Longest range, as a share of the domain, that is kept as one point; instead of the configuration's."""
    description: Annotated[str, Field(max_length=DESCRIPTION_CHARACTERS_MAX)] = ""


class SchemaDocument(BaseModel):
    """A schema: a name, a version, and attributes in a fixed order, to which later versions may only append."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$", max_length=NAME_LENGTH_MAX)]
    version: Annotated[StrictInt, Field(ge=1, le=VERSION_MAX)] = 1
    attributes: Annotated[tuple[AttributeDocument, ...], Field(min_length=1, max_length=ATTRIBUTES_MAX)]
    absent: AbsentMeaning = "fails"
    """What a condition is on an attribute that an event does not have: false, or true. Both are in the thesis."""
    outside: Outside = "refuse"
    """What becomes of an event with a value outside its domain: it is refused, or routed as the nearest value is."""
    signed: bool = False
    """Events carry a proof of who published them, which leaves and subscribers check."""
    description: Annotated[str, Field(max_length=DESCRIPTION_CHARACTERS_MAX)] = ""

    def to_json(self) -> bytes:
        """Write it as it is kept; the same document gives the same bytes."""
        return json.dumps(self.model_dump(mode="json", exclude_defaults=True), separators=(",", ":")).encode()


def read_document(document: object, *, file: str | None = None) -> SchemaDocument:
    """Check the form of a parsed document. Raises `ConfigError` with the key."""
    if not isinstance(document, Mapping):
        raise ConfigError("a schema is an object with a name and attributes", file=file)
    try:
        made = SchemaDocument.model_validate(dict(document))
    except ValidationError as error:
        raise _first_of(error, document, file) from None
    size = len(made.to_json())
    if size > DOCUMENT_BYTES_MAX:
        raise ConfigError(f"a schema has at most {DOCUMENT_BYTES_MAX} bytes as JSON, not {size}", file=file)
    return made


def document_from_json(data: bytes) -> SchemaDocument:
    """Read what `SchemaDocument.to_json` wrote, or what a stranger did. Raises `ConfigError`."""
    if len(data) > DOCUMENT_BYTES_MAX:
        raise ConfigError(f"a schema has at most {DOCUMENT_BYTES_MAX} bytes as JSON, not {len(data)}")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise ConfigError("a schema is JSON") from None
    return read_document(document)


def _first_of(error: ValidationError, document: Mapping[str, Any], file: str | None) -> ConfigError:
    """Say what is wrong first, and where: an attribute is called by its name, if it has one."""
    first = error.errors(include_url=False)[0]
    where = [str(part) for part in first["loc"] if part not in _TAGS]
    if len(where) > 1 and where[0] == "attributes":
        listed = document.get("attributes")
        own = listed[int(where[1])] if isinstance(listed, list | tuple) and where[1].isdigit() else None
        name = own.get("name") if isinstance(own, Mapping) else None
        where[1] = name if isinstance(name, str) and len(name) <= NAME_LENGTH_MAX else f"number {int(where[1]) + 1}"
    return ConfigError(reason(first), file=file, key=".".join(where) or None)


_TAGS: Final = frozenset({"int", "float", "str", "bool", "datetime"})
"""How the validator names the alternatives of a union: no keys of the document."""
