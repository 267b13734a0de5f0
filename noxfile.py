"""Everything that can be run in this repository, one session each: `./nox --list`.

Most sessions share one environment, `.nox/dev`, because it holds torch: each asks for the groups of packages
that it needs, and a group is installed again only when a file that decides its content has changed. What
`build` and `sdk_alone` prove is what an environment does not contain, so those have their own.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2024.10.9"
nox.options.sessions = ["lint", "test"]
nox.options.reuse_venv = "yes"
nox.options.default_venv_backend = "venv"

ROOT = Path(__file__).parent
DEV = ROOT / ".nox" / "dev"
PINNED = ("--disable-pip-version-check", "--constraint", "constraints.txt")
TEST_TOOLS = ("hypothesis", "pytest", "pytest-timeout", "pytest-trio")
SDK = "seedance_sdk[cli,otel,prometheus]"
WIRE_SCRIPTS = ("wire/compatibility.py", "wire/specification.py", "wire/conformance")
GROUPS = {
    "product": ("--editable", "wire", "--editable", SDK, "--editable", ".[demo,otel]", "rich"),
    # To build the distributions, compile the schema, check the SDK's types, attack the guarded socket.
    "test": (
        *(*TEST_TOOLS, "build", "setuptools", "kosoku", "trustme"),
        *("buf-bin", "grpcio-tools", "mypy", "mypy-protobuf"),
        *("openai", "langchain-openai"),  # ask the HTTP side as users do
        *("fastapi", "uvicorn"),  # run the example of docs/asyncio.md
        "opentelemetry-sdk",  # reads what the SDK exports
        "pexpect",  # types into the `seedance` command
        "playwright",  # drives a Chromium that is there already, over the playground
    ),
    "lint": (*TEST_TOOLS, "codespell", "import-linter", "mypy", "nox", "ruff", "types-protobuf"),
    "fuzz": ("atheris",),
}
# These write a module that every protobuf from the one in wire/pyproject.toml on reads; later ones would not.
GENERATORS = ("grpcio-tools==1.75.1", "mypy-protobuf==5.1.0")
DECIDING_FILES = ("constraints.txt", "pyproject.toml", "seedance_sdk/pyproject.toml", "wire/pyproject.toml")
# Tests make their models on the fly: one that reaches for a hub is a mistake, and fails at once.
OFFLINE = {"HF_HUB_OFFLINE": "1"}


def dev_python(session: nox.Session, *groups: str) -> str:
    """Return the interpreter of the shared environment after installing the named groups into it."""
    python = str(DEV / "bin" / "python")
    if _wanted("python") != _installed("python"):
        session.log("Making .nox/dev; the first installation takes a minute or two.")
        session.run(sys.executable, "-m", "venv", "--clear", str(DEV), external=True, silent=True)
        _remember("python")
    for group in groups:
        if _wanted(group) != _installed(group):
            session.log(f"Installing the {group} packages.")
            session.run(
                python, "-m", "pip", "install", "--quiet", *PINNED, *GROUPS[group], external=True, silent=True
            )
            _remember(group)
    return python


def _wanted(group: str) -> str:
    """Digest of all that decides what a group contains; `python` stands for the environment itself."""
    digest = hashlib.sha256(f"{sys.version} {ROOT} {GROUPS.get(group)}".encode())
    if group in GROUPS:
        for name in DECIDING_FILES:
            digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def _installed(group: str) -> str:
    stamp = DEV / f"installed-{group}"
    return stamp.read_text() if stamp.exists() else ""


def _remember(group: str) -> None:
    (DEV / f"installed-{group}").write_text(_wanted(group))


def _with_server(session: nox.Session, script: str) -> None:
    # After Ctrl-C nox would kill within half a second: the script needs longer to stop its server.
    python = dev_python(session, "product")
    session.run(python, script, *session.posargs, external=True, interrupt_timeout=60, terminate_timeout=10)


@nox.session(venv_backend="none")
def demo(session: nox.Session) -> None:
    """A real model answers token by token, then its numbers. `-- --model-path X` tries another one."""
    _with_server(session, "bench/demo.py")


@nox.session(venv_backend="none")
def serve(session: nox.Session) -> None:
    """Keep a server with the demo model up to play with. Arguments after `--` go to seedance-server."""
    _with_server(session, "bench/serve.py")


@nox.session(venv_backend="none")
def test(session: nox.Session) -> None:
    """The whole test suite. Arguments after `--` go to pytest, such as `-- -m 'not slow'`."""
    python = dev_python(session, "product", "test")
    session.run(python, "-m", "pytest", *session.posargs, env=OFFLINE, external=True)


@nox.session(venv_backend="none")
def faults(session: nox.Session) -> None:
    """Cut every byte, break 10,000 connections, kill a server 100 times; prints what was lost: nothing."""
    python = dev_python(session, "product", "test")
    session.run(python, "-m", "tests.faults.campaigns", *session.posargs, env=OFFLINE, external=True)


@nox.session(venv_backend="none")
def conformance(session: nox.Session) -> None:
    """Drive a client or a server by the specification: ours, or `-- --role client -- COMMAND…`."""
    python = dev_python(session, "product")
    session.run(python, "-m", "conformance", *session.posargs, env={"PYTHONPATH": "wire"}, external=True)


@nox.session(venv_backend="none")
def mutants(session: nox.Session) -> None:
    """Seed bugs that break the promise of exactly once, and print by which history each is caught."""
    python = dev_python(session, "product", "test")
    session.run(python, "-m", "tests.stateful.mutants", *session.posargs, env=OFFLINE, external=True)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Style, types, import rules and spelling. `-- --fix` mends what can be mended."""
    python = dev_python(session, "product", "lint")
    fix = "--fix" in session.posargs
    checks = (
        ("-m", "ruff", "check", *(["--fix"] if fix else [])),
        ("-m", "ruff", "format", *([] if fix else ["--check"])),
        ("-m", "codespell_lib", *(["--write-changes"] if fix else [])),
        ("-c", "from importlinter.cli import lint_imports_command as main; main()"),
        ("-m", "mypy"),
        ("-m", "mypy", "noxfile.py", "bench", *WIRE_SCRIPTS),
    )
    for check in checks:
        session.run(python, *check, external=True)


@nox.session(venv_backend="none")
def fuzz(session: nox.Session) -> None:
    """Coverage-guided fuzzing of every parser for a bounded time. Arguments go to fuzz/run.py."""
    session.run(dev_python(session, "product", "fuzz"), "fuzz/run.py", *session.posargs, external=True)


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Measure: `-- NAME…` picks benchmarks, else `load`; see bench/README.md. Options follow the names."""
    _with_server(session, "bench/__main__.py")


@nox.session
def generate(session: nox.Session) -> None:
    """Make again what is made from the schema and the rules: the protobuf module, parts of PROTOCOL.md."""
    session.install("--quiet", "--disable-pip-version-check", *GENERATORS, "./wire")
    plugin = Path(session.bin) / "protoc-gen-mypy"
    home = "wire/seedance_wire"
    outputs = (f"--python_out={home}", f"--mypy_out=quiet:{home}", f"--plugin=protoc-gen-mypy={plugin}")
    session.run("python", "-m", "grpc_tools.protoc", "-Iwire", *outputs, "seedance.proto")
    session.run("python", "wire/specification.py", env={"PYTHONPATH": "wire"})


@nox.session
def build(session: nox.Session) -> None:
    """Wheel and sdist of the three distributions, into dist/."""
    session.install("--quiet", *PINNED, "build")
    for project in ("wire", "seedance_sdk", "."):
        session.run("python", "-m", "build", "--outdir", "dist", project, silent=True)
    for path in sorted((ROOT / "dist").iterdir()):
        session.log(f"dist/{path.name}  {path.stat().st_size:,} bytes")


@nox.session
def sdk_alone(session: nox.Session) -> None:
    """The SDK's tests where only the SDK is installed: proof that it needs neither torch nor the server."""
    session.install("--quiet", *PINNED, "./wire", f"./{SDK}", "opentelemetry-sdk", *TEST_TOOLS)
    # In a copy without our packages: the tests import what was installed, and nothing else is in reach.
    alone = Path(session.create_tmp()) / "alone"
    shutil.rmtree(alone, ignore_errors=True)
    ours = shutil.ignore_patterns("__pycache__", "seedance_wire")
    for name in ("docs", "tests", "wire", "fuzz"):
        shutil.copytree(ROOT / name, alone / name, ignore=ours)
    (alone / "seedance_sdk").mkdir()
    shutil.copy(ROOT / "seedance_sdk" / "README.md", alone / "seedance_sdk")
    shutil.copy(ROOT / "pyproject.toml", alone)
    session.chdir(alone)
    session.run(
        "python",
        "-c",
        "import importlib.util as u; assert not any(map(u.find_spec, ['torch', 'seedance_server']))",
    )
    session.run(
        "python", "-m", "pytest", "tests/sdk", "tests/wire", "tests/docs/test_pages.py", *session.posargs
    )
