"""The three distributions, built from a copy of the tree, and environments to install them in."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parents[2]
PROJECTS = {"seedance_wire": "wire", "seedance_sdk": "seedance_sdk", "seedance_server": "."}
# What builds and environments leave in a tree; a build must not see what an earlier one left.
LEFT_BEHIND = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist", "tests")


@frozen
class Built:
    """What one distribution's build gave.

    Attributes:
        wheel: The wheel.
        sdist: The source distribution that the wheel was built from.
    """

    wheel: Path
    sdist: Path


@frozen
class Environment:
    """A virtual environment that holds some of our wheels and borrows everything else from this one."""

    python: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run its interpreter outside our tree, so that nothing is imported from there."""
        return subprocess.run(
            [self.python, *arguments],
            cwd=self.python.parent,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def build_one(project: Path, out: Path, *options: str) -> None:
    """Build a project without the network: with the build tools installed here."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), *options, str(project)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def build_all(directory: Path) -> dict[str, Built]:
    """Build sdist and wheel of each distribution."""
    tree = directory / "seedance"
    shutil.copytree(ROOT, tree, ignore=LEFT_BEHIND)
    found = {}
    for name, project in PROJECTS.items():
        out = directory / name
        build_one(tree / project, out)
        [wheel], [sdist] = out.glob("*.whl"), out.glob("*.tar.gz")
        found[name] = Built(wheel=wheel, sdist=sdist)
    return found


def install(directory: Path, *wheels: Path) -> Environment:
    """Make an environment and install these wheels alone into it.

    The packages that ours need are not downloaded again: a path file lends those of this environment. Ours
    come first on the path, and this environment's own links to our tree are not followed from there.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True, timeout=120)
    environment = Environment(directory / "bin" / "python")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        environment.python,
        "--disable-pip-version-check",
        "--quiet",
    ]
    subprocess.run([*pip, "install", "--no-index", "--no-deps", *wheels], check=True, timeout=120)
    paths = sysconfig.get_paths(vars={"base": str(directory), "platbase": str(directory)}, scheme="venv")
    Path(paths["purelib"], "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return environment
