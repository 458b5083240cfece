"""Many expressions are matched together, and one that fails ends itself only. Pure.

Expressions are other people's, and whatever matches many of them at once (an index, an automaton) is complicated. An
exception in it must cost neither the others their item nor the sender his place in the stream, so it is the boundary at
which such an exception ends: each expression is then tried by itself, and who owns the set is told which of them fail.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Final, Generic, TypeVar

from peerd.frozen import Frozen

K = TypeVar("K", bound=Hashable)
C = TypeVar("C")
V = TypeVar("V")

WHY_LENGTH_MAX: Final = 200


class Apart(Frozen, Generic[K]):
    """What came of a match. ``failed``: expressions that cannot be tried at all, each with the reason.

    ``fault``: why they could not be tried together; empty where they could.
    """

    met: Collection[K]
    failed: tuple[tuple[K, str], ...] = ()
    fault: str = ""


def match_apart(
    together: Callable[[C], Collection[K]], keys: Iterable[K], alone: Callable[[K, C], bool], content: C
) -> Apart[K]:
    """Match all together; where that raises, each of ``keys`` by itself."""
    try:
        return Apart(together(content))
    except MemoryError:
        raise  # that is nobody's expression
    except Exception as error:  # the boundary between expressions: told to whoever owns them, who counts it
        fault = why_failed(error)
    met: list[K] = []
    failed: list[tuple[K, str]] = []
    for key in keys:
        try:
            if alone(key, content):
                met.append(key)
        except MemoryError:
            raise
        except Exception as error:  # as above: this expression ends, and its owner is told why
            failed.append((key, why_failed(error)))
    return Apart(met, tuple(failed), fault)


def compared(ask: Callable[[C, C], V], one: C, other: C, unknown: V) -> V:
    """What is asked of two expressions, or ``unknown`` where that raises: neither's owner is to pay for the other's."""
    try:
        return ask(one, other)
    except MemoryError:
        raise
    except Exception:  # as above; what is asked is a hint, and matching will find the one that fails
        return unknown


def why_failed(error: Exception) -> str:
    """What the owner of an expression is told."""
    return f"{type(error).__name__}: {error}"[:WHY_LENGTH_MAX]
