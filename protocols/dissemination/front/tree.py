"""``peerd stream tree``: the tree of a stream, as text, as a graph, and as a picture."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from peerd.cli.options import SocketOption, ask
from peerd.cli.output import print_json, stdout
from peerd.errors import ExitCode


class StreamDrawing(StrEnum):
    """How the tree is shown."""

    TEXT = "text"
    DOT = "dot"
    MERMAID = "mermaid"
    SVG = "svg"
    JSON = "json"


def tree(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Its name.")],
    output: Annotated[
        StreamDrawing, typer.Option("-o", "--output", help="Text; a graph for dot or mermaid; a picture; JSON.")
    ] = StreamDrawing.TEXT,
    wide: Annotated[bool, typer.Option("--wide", help="All of each node's interests and figures.")] = False,
    socket: SocketOption = None,
) -> None:
    """Draw the tree of a stream: who gets it from whom, how much passes, and the spurious share of each node.

    Spurious is what a node receives only to pass it on. Exit code 3 when some nodes did not answer.

    Examples: peerd stream tree news; peerd stream tree news -o svg > t.svg; peerd stream tree news -o dot | dot -Tpng
    """
    from protocols.dissemination.front.client import DisseminationClient
    from protocols.dissemination.front.tree_drawing import as_dot, as_mermaid, as_svg, as_text

    view = ask(socket, lambda client: DisseminationClient(client).tree(stream), "asking the nodes of the tree")
    match output:
        case StreamDrawing.JSON:
            print_json(view)
        case StreamDrawing.TEXT:
            stdout().print(as_text(view, is_wide=wide))
        case StreamDrawing.DOT:
            stdout().print(as_dot(view))
        case StreamDrawing.MERMAID:
            stdout().print(as_mermaid(view))
        case StreamDrawing.SVG:
            stdout().print(as_svg(view))
    if view.missing:
        raise typer.Exit(ExitCode.PARTIAL)
