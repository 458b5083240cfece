"""``python -m peerd.testing MODULE FILE FUNCTION SEED``: one of the two processes of `peerd.testing.determinism`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from peerd.errors import Bug
from peerd.sim.simulation import Simulation


def _module(name: str, file: str) -> ModuleType:
    """Import a module by its name, or by its file if it is a test module that is not on the path."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
    spec = importlib.util.spec_from_file_location(name, Path(file))
    if spec is None or spec.loader is None:
        raise Bug(f"there is no module {name}, and {file} is none")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main(arguments: Sequence[str]) -> int:
    """Run, and print the trace hash."""
    name, file, function, seed = arguments
    simulation: Simulation = getattr(_module(name, file), function)(int(seed))
    print(simulation.digest())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
