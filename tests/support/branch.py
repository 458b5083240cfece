"""Try something on what took long to make, and leave it as it is: a child process does it, and tells what came of it.

A simulated ring cannot be copied, because its callbacks hold parts of it. A fork of the whole process is such a copy,
made in milliseconds. The child only computes: it touches no file, no lock and no thread of its parent.
"""

from __future__ import annotations

import gc
import os
import pickle
import traceback
import warnings
from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec, TypeVar, cast

from peerd.errors import Bug

Result = TypeVar("Result")
P = ParamSpec("P")


def in_a_branch(work: Callable[[], Result]) -> Result:
    """What the function returns, which must be picklable; nothing else that it does is seen here. Raises `Bug`."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the thread that pytest-xdist has; the child needs none
        child = os.fork()
    if child == 0:
        _answer(writer, work)
    os.close(writer)
    with open(reader, "rb") as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    if not answer:
        raise Bug("the child process ended without an answer")
    result, problem = pickle.loads(answer)
    if problem:
        raise Bug(f"in a child process:\n{problem}")
    return cast(Result, result)


def branched(test: Callable[P, None]) -> Callable[P, None]:
    """A test that runs in a branch: what its fixtures give, and other tests get as well, stays as it is."""

    @wraps(test)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        in_a_branch(lambda: test(*arguments, **options))

    return run


def _answer(writer: int, work: Callable[[], Result]) -> NoReturn:
    """In the child: work, answer, and end without what else a process does at its end."""
    gc.disable()
    try:
        answer = pickle.dumps((work(), ""))
    except BaseException:  # the parent raises it
        answer = pickle.dumps((None, traceback.format_exc()))
    with open(writer, "wb") as answers:
        answers.write(answer)
    os._exit(0)
