"""``peerd tree``: the tree that keeps the subscriptions of a schema, as text, as a graph, and as a picture."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from peerd.cli.options import SocketOption, ask
from peerd.cli.output import print_json, stdout
from protocols.pubsub.front.tree_drawing import as_dot, as_svg, as_text


class Drawing(StrEnum):
    """How the tree is shown."""

    TEXT = "text"
    DOT = "dot"
    JSON = "json"
    SVG = "svg"


def tree(
    schema: Annotated[str, typer.Argument(metavar="SCHEMA")],
    attribute: Annotated[
        str, typer.Argument(metavar="[ATTRIBUTE]", help="Default: the first. '*': subscriptions without any range.")
    ] = "",
    output: Annotated[
        Drawing, typer.Option("-o", "--output", help="Text; a graph for dot; JSON; the square, cut up, as SVG.")
    ] = Drawing.TEXT,
    socket: SocketOption = None,
) -> None:
    """Draw the tree of an attribute: its leaves, how many subscriptions each holds, its load, and its owner.

    Examples: peerd tree stocks price; peerd tree stocks price -o svg > tree.svg; peerd tree stocks -o dot | dot -Tpng
    """
    from protocols.pubsub.front.client import PubSubClient

    view = ask(socket, lambda client: PubSubClient(client).tree(schema, attribute), "asking the roots of the cells")
    if output is Drawing.JSON:
        print_json(view.model_dump(mode="json", by_alias=True))
        return
    draw = {Drawing.TEXT: as_text, Drawing.DOT: as_dot, Drawing.SVG: as_svg}[output]
    stdout().print(draw(view))
