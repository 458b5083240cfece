"""Following an answer that comes with progress: a bar on a terminal, nothing in a pipe."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol, TypeVar

from peerd.cli.options import ask
from peerd.cli.output import stderr
from peerd.errors import Unavailable

if TYPE_CHECKING:
    from peerd.client import Client


class FollowedLine(Protocol):
    """A line of a stream that shows progress."""

    @property
    def type(self) -> str: ...


ProgressLine = TypeVar("ProgressLine", bound=FollowedLine)
AnswerLine = TypeVar("AnswerLine", bound=FollowedLine)
How = tuple[float, float, str]
"""How much is done, of how much in all, and the text to show with it."""


def follow(
    socket: str | None,
    stream: Callable[[Client], AsyncGenerator[ProgressLine | AnswerLine, None]],
    answer_type: type[AnswerLine],
    how: Callable[[ProgressLine], How],
    label: str,
) -> AnswerLine:
    """Show the progress of a stream on standard error, and return its answer. Raises what the client raises."""

    async def run(client: Client) -> AnswerLine:
        with stderr().status(label) as status:
            async with aclosing(stream(client)) as lines:
                async for line in lines:
                    if isinstance(line, answer_type):
                        return line
                    done, total, text = how(line)  # type: ignore[arg-type]  # what is no answer is progress
                    status.update(f"{label}: {text}", done, total)
        raise Unavailable("the answer did not come; ask again")

    return ask(socket, run, waiting="")
