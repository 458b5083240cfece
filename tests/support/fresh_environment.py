"""Virtual environments made without a network: our wheels are really built and installed, and their dependencies are
found where they are installed already.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
PROJECT_FILES = ("peerd", "protocols", "pyproject.toml", "README.md", "LICENSE")
BUILD_S = 120.0
COMMAND_S = 280.0


def build_wheel(project: Path, into: Path, names: Sequence[str] | None = None) -> Path:
    """The wheel of the project in a folder, made from a copy, as setuptools writes beside its sources.

    ``names``: copy only these files and folders.
    """
    copy = into / f"{project.name}-sources"
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
    for path in [project / name for name in names] if names is not None else sorted(project.iterdir()):
        if path.is_dir():
            shutil.copytree(path, copy / path.name, ignore=ignore)
        else:
            copy.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    command = [sys.executable, "-c", BUILD, str(into)]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stderr
    return into / done.stdout.splitlines()[-1]


def build_peerd(into: Path) -> Path:
    """Our own wheel."""
    return build_wheel(ROOT, into, PROJECT_FILES)


class FreshEnvironment:
    """A virtual environment in ``directory`` with these wheels and nothing else of ours."""

    def __init__(self, directory: Path, wheels: Sequence[Path]) -> None:
        self.directory = directory
        # Where ours has pip it is seen as well, as a dependency is; to install another takes seconds.
        venv.create(directory, with_pip=importlib.util.find_spec("pip") is None, symlinks=True)
        self._bin = directory / "bin"
        self._see_dependencies()
        names = [str(wheel) for wheel in wheels]
        done = self.python("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile", *names)
        assert done.returncode == 0, done.stderr

    def _see_dependencies(self) -> None:
        """Add their folder at the end of the import path. Editable installs in it have no effect."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = self.directory / "lib" / version / "site-packages"
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(self, program: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run one of its programs to its end."""
        return self._run([str(self._bin / program), *arguments], cwd)

    def shell(self, commands: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Lines of a shell that has the environment's programs, up to the first one that fails."""
        return self._run(["bash", "-euc", commands], cwd)

    def _run(self, command: Sequence[str], cwd: Path | None) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PEERD_", "PYTHON"))}
        return subprocess.run(
            command,
            cwd=cwd or self.directory,
            env={**inherited, "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )

    def python(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Its Python."""
        return self.run("python", *arguments, cwd=cwd)

    def peerd(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Its peerd; fails, with what it said, unless the exit code is 0."""
        done = self.run("peerd", *arguments, cwd=cwd)
        told = f"peerd {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, told
        return done
