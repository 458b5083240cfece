"""Damage that knows the format: valid encodings in, encodings that are wrong in one or a few places out.

Blind bit flips die in the first check of a decoder. These edits keep the rest of an encoding well-formed, so that what
is wrong reaches the checks behind. Everything is drawn from one `random.Random`: a seed repeats it.
"""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgpack

Random = random.Random

EDITS_MAX: Final = 4
"""Most edits of one case; half of all cases have one."""
NESTING_MAX: Final = 1_100
"""Just beyond the depth at which msgpack and Python's JSON give up by themselves."""
COPIES_MAX: Final = 3_000


class Raw(bytes):
    """Bytes that stand where an encoded value belongs."""


class Pairs(list[tuple[Any, Any]]):
    """A map as msgpack and JSON write it: keys may be of any type, and come twice."""


INTEGERS: Final = (0, 1, -1, 2, 15, 16, 127, 128, 255, 256, 65535, 65536, 2**31, 2**32, 2**53, 2**63 - 1, -(2**63))
FLOATS: Final = (0.0, -0.0, 0.5, -1.5, 1e-320, 1e308, -1e308, float("inf"), float("-inf"), float("nan"), 2.0**63)
TEXTS: Final = ("", "x", "\0", "a\nb", "ä", "‮", "😀", "x" * 300, "../../etc", "%s%n", "count", "None", "\ufeff")
BLOBS: Final = (b"", b"\0", b"\xff", bytes(15), bytes(16), bytes(17), bytes(32), bytes(64), b"\x90", b"\x81\xa0\x00")
BROKEN: Final = (
    b"\xc1",  # never used
    b"\xdd\xff\xff\xff\xff",  # an array of four thousand million
    b"\xdf\xff\xff\xff\xff",  # a map of as many
    b"\xc6\xff\xff\xff\xff",  # bytes, as many
    b"\xdb\x7f\xff\xff\xff",
    b"\xc7\x0c\xff" + bytes(12),  # a timestamp
    b"\xd4\x05\x00",  # an extension
    b"\xa2\xc3\x28",  # text that is no UTF-8
    b"\xa3\xed\xa0\x80",  # a lone surrogate
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",  # 2**64 - 1
    b"\xd3\x00\x00\x00\x00\x00\x00\x00\x01",  # a small number, written long
    b"\xca\x7f\xc0\x00\x00",  # NaN of 32 bits
    b"\x82\xa1a\x01\xa1a\x02",  # a key that comes twice
    b"\x81\x01\x02",  # a key that is no text
    b"\x81\x90\x02",  # a key that is an array
    b"\x80",
    b"\x93\x80\x80\x80",
)


def scalar(rng: Random) -> Any:
    """Any value that is no container, most of them at an edge."""
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind == 1:
        return rng.choice(INTEGERS) + rng.choice((0, 0, -1, 1)) if rng.random() < 0.9 else rng.getrandbits(62)
    if kind == 2:
        return rng.choice(FLOATS)
    if kind == 3:
        return rng.choice(TEXTS)
    if kind == 4:
        return rng.choice(BLOBS)
    if kind == 5:
        return rng.randbytes(rng.randrange(40))
    return Raw(rng.choice(BROKEN)) if kind == 6 else rng.choice(([], {}, [[]], [None], [0] * 17))


def edited(rng: Random, tree: Any) -> Any:
    """The tree with one place changed. Lists and maps on the way are copied, nothing is changed in place."""
    if isinstance(tree, dict | Pairs) and tree and rng.random() < 0.85:
        return _map_edit(rng, Pairs(tree.items() if isinstance(tree, dict) else tree))
    if type(tree) is list and tree and rng.random() < 0.8:
        place = rng.randrange(len(tree))
        if rng.random() < 0.25:
            return _list_edit(rng, tree, place)
        return [*tree[:place], edited(rng, tree[place]), *tree[place + 1 :]]
    return _replaced(rng, tree)


def _list_edit(rng: Random, tree: list[Any], place: int) -> Any:
    kind = rng.randrange(7)
    if kind == 0:
        return tree[:place] + tree[place + 1 :]
    if kind == 1:
        return [*tree[:place], scalar(rng), *tree[place:]]
    if kind == 2:
        return [*tree[:place], tree[place], *tree[place:]]
    if kind == 3:
        return tree[:place]
    if kind == 4:
        return tree[::-1]
    if kind == 5:
        copies = min(COPIES_MAX, 1 << rng.randrange(12))
        return [*tree[:place], *[tree[place]] * copies, *tree[place + 1 :]]
    other = rng.randrange(len(tree))
    swapped = list(tree)
    swapped[place], swapped[other] = tree[other], tree[place]
    return swapped


def _map_edit(rng: Random, pairs: Pairs) -> Any:
    place = rng.randrange(len(pairs))
    key, value = pairs[place]
    kind = rng.randrange(8)
    if kind == 0:
        del pairs[place]
    elif kind == 1:
        pairs.append((key, value))
    elif kind == 2:
        pairs[place] = edited(rng, key), value
    elif kind == 3:
        pairs.append((rng.choice(TEXTS), scalar(rng)))
    else:
        pairs[place] = key, edited(rng, value)
    return pairs


def _replaced(rng: Random, value: Any) -> Any:
    kind = rng.randrange(6)
    if kind == 0:
        depth = NESTING_MAX if rng.random() < 0.02 else 1 << rng.randrange(7)
        for _ in range(depth):
            value = [value]
        return value
    if kind == 1:
        return _other_type(rng, value)
    if kind in (2, 3) and not isinstance(value, list | dict | Pairs | Raw | None):
        return _near(rng, value)
    return scalar(rng)


def _other_type(rng: Random, value: Any) -> Any:
    match value:
        case bool():
            return int(value)
        case int():
            return rng.choice((float(value), str(value), value != 0))
        case float():
            return rng.choice((str(value), [value], int(value) if abs(value) < 2**63 else 0))
        case str():
            return rng.choice((value.encode("utf-8", "surrogatepass"), list(value[:50]), {value: value}))
        case bytes():
            return rng.choice((value.decode("latin-1"), list(value[:50])))
        case list() if not isinstance(value, Pairs):
            return {str(key): each for key, each in enumerate(value)}
        case _:
            return scalar(rng)


def _near(rng: Random, value: Any) -> Any:
    """A value of the same type, not far away."""
    match value:
        case bool():
            return not value
        case int():
            return rng.choice((value + 1, value - 1, -value, value * 2, value ^ 1 << rng.randrange(64))) % 2**63
        case float():
            return rng.choice((-value, value * 1e300, value + 1, value / 3))
        case bytes():
            inner = _unpacked(value) if rng.random() < 0.5 else None
            return pack(edited(rng, inner)) if inner is not None else damaged(rng, value)
        case str():
            return text(rng, value)
        case _:
            return scalar(rng)


def _unpacked(data: bytes) -> Any:
    """The tree of a msgpack array (a message within a message); ``None`` for anything else."""
    try:
        tree = msgpack.unpackb(data, raw=False, strict_map_key=False, max_ext_len=0)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException):
        return None
    return tree if isinstance(tree, list) else None


def pack(tree: Any) -> bytes:
    """msgpack of a tree, which may hold `Raw` and `Pairs`."""
    if type(tree) is Raw:
        return bytes(tree)
    if isinstance(tree, Pairs | dict):
        pairs = tree.items() if isinstance(tree, dict) else tree
        body = b"".join(pack(key) + pack(value) for key, value in pairs)
        return _head(len(tree), 0x80, 16, 0xDE) + body
    if isinstance(tree, list):
        depth = 0
        while type(tree) is list and len(tree) == 1:  # deep nesting is packed without recursion
            tree, depth = tree[0], depth + 1
        inner = _head(len(tree), 0x90, 16, 0xDC) + b"".join(map(pack, tree)) if type(tree) is list else pack(tree)
        return b"\x91" * depth + inner
    if type(tree) is int and not -(2**63) <= tree < 2**64:
        return pack(tree.to_bytes(tree.bit_length() // 8 + 1, "big", signed=True))
    if type(tree) is str:
        encoded = tree.encode("utf-8", "surrogatepass")
        return (
            bytes([0xA0 + len(encoded)]) if len(encoded) < 32 else b"\xdb" + len(encoded).to_bytes(4, "big")
        ) + encoded
    packed: bytes = msgpack.packb(tree)
    return packed


def _head(length: int, short: int, below: int, long: int) -> bytes:
    if length < below:
        return bytes([short + length])
    return (
        bytes([long]) + length.to_bytes(2, "big") if length < 1 << 16 else bytes([long + 1]) + length.to_bytes(4, "big")
    )


def damaged(rng: Random, data: bytes) -> bytes:
    """Bytes with some bits, bytes or stretches changed."""
    content = bytearray(data)
    for _ in range(1 + rng.randrange(3)):
        place = rng.randrange(len(content) + 1)
        kind = rng.randrange(7)
        if kind == 0 and place < len(content):
            content[place] ^= 1 << rng.randrange(8)
        elif kind == 1 and place < len(content):
            content[place] = rng.choice((0, 1, 0x7F, 0x80, 0xC1, 0xFF, rng.randrange(256)))
        elif kind == 2:
            del content[place:]
        elif kind == 3:
            del content[place : place + 1 + rng.randrange(8)]
        elif kind == 4:
            content[place:place] = rng.randbytes(1 + rng.randrange(8))
        elif kind == 5:
            content[place:place] = content[rng.randrange(len(content) + 1) :][: rng.randrange(64)]
        else:
            content += rng.randbytes(rng.randrange(16))
    return bytes(content)


def packed(rng: Random, data: bytes) -> bytes:
    """A msgpack encoding with edits of its tree, and now and then with damaged bytes on top."""
    tree = _unpacked(data)
    if tree is None:
        return damaged(rng, data)
    for _ in range(_how_many(rng)):
        tree = edited(rng, tree)
    made = pack(tree)
    return damaged(rng, made) if rng.random() < 0.2 else made


def stream(rng: Random, data: bytes) -> bytes:
    """The same for values that follow one another without an array round them, as in a partial."""
    values = list(msgpack.Unpacker(io.BytesIO(data), raw=False, strict_map_key=False, max_buffer_size=len(data) + 1))
    for _ in range(_how_many(rng)):
        changed = edited(rng, values)
        values = changed if isinstance(changed, list) else [changed]
    made = b"".join(map(pack, values))
    return damaged(rng, made) if rng.random() < 0.2 else made


def json_text(rng: Random, document: str) -> str:
    """A JSON document with edits of its tree, written as JSON (with NaN, and keys twice), or with damaged text."""
    tree = json.loads(document)
    for _ in range(_how_many(rng)):
        tree = edited(rng, tree)
    written = _as_json(tree)
    return text(rng, written) if rng.random() < 0.2 else written


def _as_json(tree: Any) -> str:
    depth = 0
    while type(tree) is list and len(tree) == 1:  # deep nesting is written without recursion
        tree, depth = tree[0], depth + 1
    return "[" * depth + _as_shallow_json(tree) + "]" * depth


def _as_shallow_json(tree: Any) -> str:
    if isinstance(tree, bytes):  # Raw too
        return json.dumps(tree.decode("latin-1"))
    if isinstance(tree, Pairs | dict):
        pairs = tree.items() if isinstance(tree, dict) else tree
        return "{" + ",".join(f"{_as_key(key)}:{_as_json(value)}" for key, value in pairs) + "}"
    return "[" + ",".join(map(_as_json, tree)) + "]" if isinstance(tree, list) else json.dumps(tree)


def _as_key(key: Any) -> str:
    return json.dumps(key if isinstance(key, str) else type(key).__name__)


_WORDS: Final = re.compile(r"\w+|\s+|[^\w\s]+")
_OPENING: Final = {"(": ")", "[": "]", "{": "}", "NOT ": "", "-": "", '"': '"', "'": "'"}
_ODD: Final = ("\0", "\n", "\t", "\ud800", "😀", "٣", "ß", "İ", "\u2028", "\\", '"', "'", "\x7f", "1e999", "9" * 400)


def text(rng: Random, given: str, words: Sequence[str] = ()) -> str:
    """A text with words moved, lost, repeated, nested or replaced. ``words``: what its grammar knows."""
    parts = _WORDS.findall(given)
    for _ in range(_how_many(rng)):
        place = rng.randrange(len(parts) + 1)
        kind = rng.randrange(9)
        if kind == 0:
            del parts[place : place + 1 + rng.randrange(3)]
        elif kind == 1 and parts:
            parts.insert(place, rng.choice(parts))
        elif kind == 2:
            parts.insert(place, rng.choice(_ODD))
        elif kind == 3 and words:
            parts[place : place + 1] = [rng.choice(words)]
        elif kind == 4 and words:
            parts.insert(place, f" {rng.choice(words)} ")
        elif kind == 5:
            opening = rng.choice(list(_OPENING))
            depth = 1 << rng.randrange(10 if rng.random() < 0.2 else 4)
            parts = [
                *parts[:place],
                opening * depth,
                *parts[place : place + 3],
                _OPENING[opening] * depth,
                *parts[place + 3 :],
            ]
        elif kind == 6:
            parts = parts[:place] + parts[place:] * (1 << rng.randrange(8 if rng.random() < 0.1 else 3))
        elif kind == 7 and place < len(parts):
            parts[place] = str(rng.choice(INTEGERS)) if parts[place].isdigit() else parts[place].swapcase()
        elif place < len(parts) and parts[place]:
            characters = list(parts[place])
            characters[rng.randrange(len(characters))] = chr(
                rng.choice((rng.randrange(32, 127), rng.randrange(0xD7FF)))
            )
            parts[place] = "".join(characters)
    return "".join(parts)


def der(rng: Random, data: bytes) -> bytes:
    """A DER encoding with one element changed and all lengths above it right."""
    return _der_edit(rng, data) if rng.random() < 0.7 else damaged(rng, data)


def _der_edit(rng: Random, data: bytes) -> bytes:
    elements = _der_elements(data)
    if elements is None or not elements:
        return damaged(rng, data) if data else rng.randbytes(3)
    place = rng.randrange(len(elements))
    tag, content = elements[place]
    kind = rng.randrange(10)
    if kind == 0:
        elements[place] = rng.randrange(256), content
    elif kind == 1:
        del elements[place]
    elif kind == 2:
        elements.insert(place, elements[place])
    elif kind == 3 and not tag & 0x20:
        elements[place] = tag, rng.choice((b"", damaged(rng, content), content * 2, rng.randbytes(20)))
    else:
        elements[place] = tag, _der_edit(rng, content) if tag & 0x20 or tag == 0x04 else damaged(rng, content)
    return b"".join(bytes([tag]) + _der_length(len(content)) + content for tag, content in elements)


def _der_length(length: int) -> bytes:
    if length < 0x80:
        return bytes([length])
    size = (length.bit_length() + 7) // 8
    return bytes([0x80 | size]) + length.to_bytes(size, "big")


def _der_elements(data: bytes) -> list[tuple[int, bytes]] | None:
    """(tag, content) of what follows one another; ``None`` when it is no DER."""
    elements, position = [], 0
    while position < len(data):
        if position + 2 > len(data):
            return None
        tag, length = data[position], data[position + 1]
        position += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[position : position + size], "big")
            position += size
        if position + length > len(data):
            return None
        elements.append((tag, data[position : position + length]))
        position += length
    return elements


def _how_many(rng: Random) -> int:
    return 1 if rng.random() < 0.5 else rng.randrange(1, EDITS_MAX + 1)


Mutation = Callable[[Random, bytes], bytes]
