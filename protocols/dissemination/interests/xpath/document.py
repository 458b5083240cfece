"""XML documents from the network: parsed once, without entities, files or sockets, within limits."""

from __future__ import annotations

import re
from typing import Final

from lxml import etree

from protocols.dissemination.interests.errors import ItemError

DOCUMENT_BYTES_MAX: Final = 1 << 20
DEPTH_MAX: Final = 64
NODES_MAX: Final = 20_000
ATTRIBUTES_MAX: Final = 256
"""Attributes of one element."""
_DOCTYPE: Final = re.compile(rb"<!\s*(DOCTYPE|ENTITY)", re.IGNORECASE)

Document = etree._Element
"""The root element."""


def parse(data: bytes) -> Document:
    """Parse a document. Raises `ItemError` for one that is malformed, has a DOCTYPE, or is above a limit."""
    if len(data) > DOCUMENT_BYTES_MAX:
        raise ItemError(f"a document of {len(data)} bytes is too large: at most {DOCUMENT_BYTES_MAX}")
    if _DOCTYPE.search(data) or b"\0" in data:  # in UTF-16 the words could hide from the search
        raise ItemError("a document with a DOCTYPE, or in an encoding of two bytes, is not taken")
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        root = etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise ItemError(f"no well-formed XML: {error}") from error
    _check(root)
    return root


def _check(root: Document) -> None:
    nodes, level = 0, [root]
    depth = 0
    while level:
        depth += 1
        if depth > DEPTH_MAX:
            raise ItemError(f"the document is nested deeper than {DEPTH_MAX}")
        nodes += len(level)
        if nodes > NODES_MAX:
            raise ItemError(f"the document has more than {NODES_MAX} elements")
        if any(len(element.attrib) > ATTRIBUTES_MAX for element in level):
            raise ItemError(f"an element has more than {ATTRIBUTES_MAX} attributes")
        level = [child for element in level for child in element]
