"""``peerd filter``: look at filters, compare them, try them on events. Needs no daemon.

Exit codes: 0 yes (valid, covers, overlaps, matches), 1 no, 2 the filter, the schema or an event cannot be used.
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peerd.cli.files import read_text
from peerd.cli.options import Output, OutputOption
from peerd.cli.output import RowWriter, print_data, print_facts, print_table, stdout
from peerd.errors import ExitCode
from peerd.lib.filter.errors import FilterError, FilterTooLarge
from peerd.words import counted

if TYPE_CHECKING:
    from peerd.lib.filter.evaluate import Explanation
    from peerd.lib.filter.normal import NormalForm
    from peerd.lib.filter.schema import Schema
    from peerd.lib.filter.tree import Node

app = typer.Typer(
    help="Check, explain, compare and try filters. Exit code 0: yes, 1: no, 2: an argument cannot be used.",
    no_args_is_help=True,
)

FilterArgument = Annotated[
    str, typer.Argument(metavar="FILTER", help="The filter's text, or its JSON: a policy {...}, CloudEvents [...].")
]
SchemaOption = Annotated[
    Path | None,
    typer.Option("--schema", metavar="FILE", help='Types of the attributes: {"price": "decimal"} in JSON, or TOML.'),
]


class Written(StrEnum):
    """In which form `normalize` and `check` write a filter."""

    TEXT = "text"
    POLICY = "policy"
    CLOUDEVENTS = "cloudevents"


@app.command()
def check(
    filter: FilterArgument,
    schema: SchemaOption = None,
    to: Annotated[Written, typer.Option("--to", help="The form to write the filter in.")] = Written.TEXT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say whether a filter is valid, which attributes it reads, and whether it can be routed and indexed."""
    from peerd.lib.filter.json_forms import JsonForm, to_json
    from peerd.lib.filter.tree import atoms, names

    node = _read(filter, _schema(schema))
    written = to_json(node, JsonForm(to.value))
    conjuncts, refusal = None, ""
    try:
        conjuncts = len(_normal(node).conjuncts)
    except FilterTooLarge as error:
        refusal = error.message
    facts = {
        "filter": written,
        "attributes": list(names(node)),
        "conditions": sum(1 for _ in atoms(node)),
        "alternatives": conjuncts,
    }
    if print_data(output, {**facts, "normal_form_refused": refusal or None}):
        return
    shown = {
        **facts,
        "filter": written if isinstance(written, str) else json.dumps(written, ensure_ascii=False),
        "attributes": ", ".join(names(node)) or "none",
        "alternatives": refusal if conjuncts is None else conjuncts,
    }
    print_facts(stdout(), shown.items())


@app.command()
def explain(
    filter: FilterArgument,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="A JSON object; - reads it from standard input.")],
    schema: SchemaOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say why an event matches or not: the conditions that decide, and the values that they met."""
    types = _schema(schema)
    found = _explained(_read(filter, types), _event(sys.stdin.read() if event == "-" else event, types))
    if not print_data(output, {"matches": found.matches, "truth": found.truth, "reasons": _reasons(found)}):
        print_facts(stdout(), [("matches", "yes" if found.matches else "no"), ("truth", _word(found.truth))])
        rows = [(reason.atom, _word(reason.truth), reason.value) for reason in found.reasons]
        print_table(stdout(), ("condition", "truth", "value"), rows)
    raise typer.Exit(ExitCode.OK if found.matches else ExitCode.FAILURE)


@app.command()
def normalize(filter: FilterArgument, schema: SchemaOption = None, output: OutputOption = Output.TABLE) -> None:
    """Write the normal form: alternatives, and for each condition whether messages can be routed by it."""
    from peerd.lib.filter.normal import mark_of
    from peerd.lib.filter.rewrite import node_of_test
    from peerd.lib.filter.write import write

    form = _normal(_read(filter, _schema(schema)))
    rows = [
        (number, write(node_of_test(test)), str(mark_of(test)))
        for number, conjunct in enumerate(form.conjuncts, 1)
        for test in conjunct.tests
    ]
    if output is not Output.TABLE:
        numbers = range(1, len(form.conjuncts) + 1)
        tests = {
            number: [{"condition": text, "mark": mark} for at, text, mark in rows if at == number] for number in numbers
        }
        told = [{"alternative": number, "condition": text, "mark": mark} for number, text, mark in rows]
        print_data(output, {"alternatives": list(tests.values())}, told)
    elif not rows:
        typer.echo("matches everything" if form.conjuncts else "matches nothing")
    else:
        print_table(stdout(), ("alternative", "condition", "routing"), rows)


@app.command()
def covers(
    wide: Annotated[str, typer.Argument(metavar="A")],
    narrow: Annotated[str, typer.Argument(metavar="B")],
    schema: SchemaOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say whether A matches every event that B matches. "yes" is certain; docs/filters.md says when "no" is."""
    from peerd.lib.filter.relations import covers

    types = _schema(schema)
    _answer("covers", covers(_read(wide, types), _read(narrow, types)), output)


@app.command()
def overlaps(
    left: Annotated[str, typer.Argument(metavar="A")],
    right: Annotated[str, typer.Argument(metavar="B")],
    schema: SchemaOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say whether some event can match both. "no" is certain; docs/filters.md says when "yes" is."""
    from peerd.lib.filter.relations import overlaps

    types = _schema(schema)
    _answer("overlaps", overlaps(_read(left, types), _read(right, types)), output)


@app.command()
def test(
    filter: FilterArgument,
    schema: SchemaOption = None,
    why: Annotated[bool, typer.Option("--why", help="Also say of every event why it matches or not.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Read events as JSON lines from standard input and print those that match, as they came. Exit 1: none did."""
    types = _schema(schema)
    node = _read(filter, types)
    count = matched = 0
    writer = RowWriter(output)
    for number, line in enumerate(sys.stdin, 1):
        if not line.strip():
            continue
        count += 1
        found = _explained(node, _event(line, types, f"line {number}: "))
        matched += found.matches
        if output is not Output.TABLE:
            verdict = {"line": number, "matches": found.matches, "truth": found.truth}
            writer.write({**verdict, "reasons": _reasons(found)} if why else verdict)
        elif found.matches or why:
            typer.echo(line.rstrip("\n"))
            if why:
                typer.echo("\n".join(f"  {part}" for part in str(found).splitlines()))
    typer.echo(f"{matched} of {counted(count, 'event')} match", err=True)
    raise typer.Exit(ExitCode.OK if matched else ExitCode.FAILURE)


# --- reading --------------------------------------------------------------------------------------------------------


def _read(text: str, schema: Schema | None) -> Node:
    """A filter in any of its forms. Raises `FilterError`, which ends with exit code 2."""
    from peerd.lib.filter.json_forms import from_json
    from peerd.lib.filter.limits import TEXT_BYTES_MAX
    from peerd.lib.filter.parse import parse

    if not text.lstrip().startswith(("{", "[")):
        return parse(text, schema=schema)
    if len(text) > 4 * TEXT_BYTES_MAX:
        raise FilterTooLarge("TEXT_BYTES_MAX", f"a filter in JSON has at most {4 * TEXT_BYTES_MAX} bytes")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FilterError(f"the filter is not valid JSON: {error}") from error
    node = from_json(document)
    return node if schema is None else schema.apply(node)


def _schema(file: Path | None) -> Schema | None:
    from peerd.lib.filter.schema import Schema

    if file is None:
        return None
    text = read_text(file)
    try:
        if file.suffix == ".toml":
            import tomllib

            return Schema.read(tomllib.loads(text))
        return Schema.read(json.loads(text))
    except FilterError as error:
        raise FilterError(f"{file}: {error.message}") from error
    except (ValueError, RecursionError) as error:
        raise FilterError(f"{file}: not valid {'TOML' if file.suffix == '.toml' else 'JSON'}: {error}") from error


def _event(text: str, schema: Schema | None, where: str = "") -> dict[str, Any]:
    try:
        event = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FilterError(f"{where}the event is not valid JSON: {error}") from error
    if not isinstance(event, dict):
        raise FilterError(f"{where}an event is a JSON object")
    return event if schema is None else schema.read_event(event)


def _normal(node: Node) -> NormalForm:
    from peerd.lib.filter.normal import normal_form

    return normal_form(node)


def _explained(node: Node, event: dict[str, Any]) -> Explanation:
    from peerd.lib.filter.evaluate import explain

    return explain(node, event)


def _reasons(found: Explanation) -> list[dict[str, Any]]:
    return [{"condition": reason.atom, "truth": reason.truth, "value": reason.value} for reason in found.reasons]


def _word(truth: bool | None) -> str:
    return "unknown" if truth is None else "true" if truth else "false"


def _answer(question: str, is_so: bool, output: Output) -> None:
    if not print_data(output, {question: is_so}):
        typer.echo("yes" if is_so else "no")
    raise typer.Exit(ExitCode.OK if is_so else ExitCode.FAILURE)
