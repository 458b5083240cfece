"""What is wrong with a text that is no XML, in our words: those of libxml2 are for programmers who use it."""

from __future__ import annotations

from typing import Final

from lxml import etree

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


def why_malformed(error: Exception) -> str:
    """Say what is wrong, and where."""
    if not isinstance(error, etree.XMLSyntaxError):
        return "no well-formed XML: it is not text in its encoding"
    line, column = error.position
    why = _WHY.get(error.code, "it is malformed")
    return f"no well-formed XML: line {line}, column {column}: {why}"
