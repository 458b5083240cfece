"""XML documents from the network: parsed once, without entities, files or sockets, within limits."""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

from lxml import etree

from protocols.dissemination.interests.errors import ItemError
from protocols.dissemination.messages import ITEM_BYTES_MAX

DEPTH_MAX: Final = 64
NODES_MAX: Final = 20_000
ELEMENT_BYTES_MIN: Final = len("<a/>")
ATTRIBUTES_MAX: Final = 256
"""Attributes of one element."""
PIECE_BYTES: Final = 768
"""Pieces of a document in which tags are counted."""
_PROLOGUE: Final = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s++|<\?.*?\?>|<!--.*?-->)*+", re.DOTALL)
_ENCODING: Final = re.compile(rb"<\?xml[^>]*?encoding\s*=\s*[\"']([^\"'>]*)", re.IGNORECASE)
_ENCODINGS: Final = re.compile(rb"utf-?8|us-ascii|ascii|iso-8859-\d+|latin-?1|windows-125\d", re.IGNORECASE)
"""All have the characters of ASCII where ASCII has them, so that what is looked for before parsing cannot hide."""

_PARSER: Final = etree.XMLParser(
    resolve_entities=False,
    no_network=True,
    load_dtd=False,
    dtd_validation=False,
    huge_tree=False,
    collect_ids=False,
    remove_comments=True,
    remove_pis=True,
)
_IS_TOO_DEEP: Final = etree.XPath(f"boolean({'/*' * (DEPTH_MAX + 1)})")

XML: Final = "http://www.w3.org/XML/1998/namespace"
"""What the prefix xml means everywhere."""

Document: TypeAlias = Any
"""The root element, as lxml has it."""


UNDECLARED: Final = "urn:x-undeclared"
"""The namespace that a prefix means which the document's first element does not declare."""


def namespaces_of(root: Document, prefixes: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """What prefixes mean in a document: what its first element declares, in the order of the prefixes."""
    declared = root.nsmap
    return tuple((each, declared.get(each, XML if each == "xml" else UNDECLARED)) for each in sorted(prefixes))


def parse(data: bytes) -> Document:
    """Parse a document. Raises `ItemError` for one that is malformed, has a DOCTYPE, or is above a limit."""
    if len(data) > ITEM_BYTES_MAX:
        raise ItemError(f"a document of {len(data)} bytes is too large: at most {ITEM_BYTES_MAX}")
    _check_prologue(data)
    try:
        root = etree.fromstring(data, _PARSER)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise ItemError(_why_malformed(error)) from error
    if root.getroottree().docinfo.internalDTD is not None:
        raise ItemError(_NO_DOCTYPE)
    _check(root, data)
    return root


def _check_prologue(data: bytes) -> None:
    """Refuse a DOCTYPE before a parser reads it: entities, and the files that it names, come only with it."""
    if b"\0" in data:
        raise ItemError("a document has no zero bytes; encodings of two bytes a character are not taken")
    if data.startswith(b"<") and not data.startswith((b"<?", b"<!")):
        return  # it begins with an element, as most do
    encoding = _ENCODING.match(data.removeprefix(b"\xef\xbb\xbf"))
    if encoding is not None and _ENCODINGS.fullmatch(encoding[1]) is None:
        raise ItemError(f"the encoding {encoding[1][:40].decode('latin-1')!r} is not taken; use UTF-8")
    prologue = _PROLOGUE.match(data)
    rest = data[prologue.end() :] if prologue is not None else data
    if rest.startswith(b"<!"):
        raise ItemError(_NO_DOCTYPE)
    if not rest.startswith(b"<"):
        raise ItemError("no well-formed XML: it does not begin with an element, or not in an encoding that is taken")


_NO_DOCTYPE: Final = "a document with a DOCTYPE is not taken"


def _check(root: Document, data: bytes) -> None:
    """Refuse a document above a limit. Signs are counted first: few of them say that most documents are below."""
    if _may_be_too_deep(data) and _IS_TOO_DEEP(root):
        raise ItemError(f"the document is nested deeper than {DEPTH_MAX}")
    if len(data) > NODES_MAX * ELEMENT_BYTES_MIN and sum(1 for _ in root.iter()) > NODES_MAX:
        raise ItemError(f"the document has more than {NODES_MAX} elements")
    if data.count(b"=") > ATTRIBUTES_MAX and any(len(element.attrib) > ATTRIBUTES_MAX for element in root.iter()):
        raise ItemError(f"an element has more than {ATTRIBUTES_MAX} attributes")


def _may_be_too_deep(data: bytes) -> bool:
    """Count the tags of a well-formed document, piece by piece, which takes half as long as to look at its elements.

    An element that is closed by its own tag (``<a/>``) counts as open from there on, so the true depth may be smaller.
    """
    begin = data.find(b"?>") if data.startswith(b"<?") else 0
    if data.find(b"?", begin + 1) >= 0 and data.find(b"<?", begin) >= 0:
        return True  # not each < begins a tag
    if b"!" in data and b"<!" in data:
        return True
    opened = 0
    for start in range(begin, len(data), PIECE_BYTES):
        end = start + PIECE_BYTES
        signs, closing = data.count(b"<", start, end), data.count(b"</", start, end + 1)
        if opened + signs - closing > DEPTH_MAX:
            return True
        opened += signs - 2 * closing
    return False


# What is wrong, in our words: those of libxml2 are for programmers who use it.

_Codes = etree.ErrorTypes
_WHY: Final = {
    _Codes.ERR_DOCUMENT_END: "something stands behind the end of the document's first element",
    _Codes.ERR_DOCUMENT_EMPTY: "there is no element",
    _Codes.ERR_TAG_NOT_FINISHED: "an element is not closed",
    _Codes.ERR_GT_REQUIRED: "a tag does not end",
    _Codes.ERR_TAG_NAME_MISMATCH: "a closing tag is not that of the element which is open",
    _Codes.ERR_UNDECLARED_ENTITY: "a name after & stands for nothing: there are &lt; &gt; &amp; &quot; &apos; only",
    _Codes.ERR_ENTITYREF_SEMICOL_MISSING: "what begins with & does not end with ;",
    _Codes.ERR_NAME_REQUIRED: "a name is missing, or begins with a character that names do not begin with",
    _Codes.ERR_ATTRIBUTE_REDEFINED: "an element has an attribute twice",
    _Codes.ERR_ATTRIBUTE_NOT_STARTED: "an attribute's value does not stand in quotation marks",
    _Codes.ERR_ATTRIBUTE_WITHOUT_VALUE: "an attribute has no value",
    _Codes.ERR_LT_IN_ATTRIBUTE: "there is a < in an attribute's value: write &lt;",
    _Codes.ERR_INVALID_CHAR: "there is a character that XML does not have",
    _Codes.ERR_INVALID_ENCODING: "the bytes are not those of its encoding",
    _Codes.ERR_MISPLACED_CDATA_END: "there is a ]]> outside of a CDATA section",
    _Codes.ERR_HYPHEN_IN_COMMENT: "there is a -- in a comment",
    _Codes.ERR_COMMENT_NOT_FINISHED: "a comment does not end",
    _Codes.ERR_CDATA_NOT_FINISHED: "a CDATA section does not end",
    _Codes.ERR_VERSION_MISSING: "the first line does not say which version of XML this is",
    _Codes.ERR_RESERVED_XML_NAME: "a line that begins with <?xml stands elsewhere than at the beginning",
    _Codes.ERR_RESOURCE_LIMIT: "elements are nested too deep, or a name or value is too long",
    _Codes.NS_ERR_UNDEFINED_NAMESPACE: "a prefix stands for no namespace: xmlns:PREFIX is missing",
}


def _why_malformed(error: Exception) -> str:
    """Say what is wrong, and where."""
    if not isinstance(error, etree.XMLSyntaxError):
        return "no well-formed XML: it is not text in its encoding"
    line, column = error.position
    why = _WHY.get(error.code, "it is malformed")
    return f"no well-formed XML: line {line}, column {column}: {why}"
