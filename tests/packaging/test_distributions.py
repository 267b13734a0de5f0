"""What is built can be installed and used without this repository, and holds what it should hold."""

from __future__ import annotations

import email
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

from seedance_server.engine.kernels.compiler import find_compiler
from tests.packaging.building import PROJECTS, ROOT, Built, Environment, build_all, build_one, install

pytestmark = pytest.mark.slow

HEAVY = {"torch", "transformers", "gguf", "accelerate", "numpy"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    return build_all(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def sdk_alone(built: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    wheels = (built["seedance_wire"].wheel, built["seedance_sdk"].wheel)
    return install(tmp_path_factory.mktemp("sdk") / "env", *wheels)


@pytest.fixture(scope="module")
def server(built: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    wheels = (built["seedance_wire"].wheel, built["seedance_server"].wheel)
    return install(tmp_path_factory.mktemp("server") / "env", *wheels)


def _requirements(wheel: Path) -> set[str]:
    """Names that a wheel requires, extras included."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    return {re.split(r"[^A-Za-z0-9_.-]", line)[0].lower() for line in metadata.get_all("Requires-Dist", [])}


@pytest.mark.parametrize("name", PROJECTS)
def test_wheel_holds_its_package_and_nothing_else(built: dict[str, Built], name: str):
    """A wheel brings code, its typing marker and its papers; no tests, no project files."""
    with zipfile.ZipFile(built[name].wheel) as archive:
        files = [Path(file) for file in archive.namelist()]
    code = [file for file in files if file.parts[0] == name]
    compiled = {Path("seedance_server/engine/kernels/cpu.so")}
    page = {file for file in code if file.parent == Path("seedance_server/playground")}
    rest = set(code) - compiled - page
    assert all(file.suffix in {".py", ".pyi"} or file.name == "py.typed" for file in rest)
    assert {file.parts[0] for file in files} == {name, f"{name}-0.1.0.dist-info"}
    assert Path(name, "py.typed") in code
    written = {path.name for path in (ROOT / PROJECTS[name]).glob("**/*.py") if path.parent.name == name}
    assert {file.name for file in code if file.suffix == ".py"} >= written


def test_server_wheel_brings_the_whole_page(built: dict[str, Built]):
    """The playground is served from what was installed: each file is in wheel and sdist."""
    page = Path("seedance_server/playground")
    written = {str(page / path.name) for path in (ROOT / page).iterdir() if path.is_file()}
    assert {Path(name).suffix for name in written} == {".py", ".html", ".css", ".js", ".svg"}
    with zipfile.ZipFile(built["seedance_server"].wheel) as archive:
        assert written <= set(archive.namelist())
    with tarfile.open(built["seedance_server"].sdist) as archive:
        assert {f"seedance_server-0.1.0/{name}" for name in written} <= set(archive.getnames())


def test_server_wheel_is_named_after_the_kernels_in_it(built: dict[str, Built]):
    """With a compiler the wheel brings the library, and installs only where that can run."""
    wheel = built["seedance_server"].wheel
    with zipfile.ZipFile(wheel) as archive:
        has_kernels = "seedance_server/engine/kernels/cpu.so" in archive.namelist()
    assert has_kernels == (find_compiler() is not None)
    assert wheel.name.endswith("py3-none-any.whl") == (not has_kernels)
    assert "py3-none-" in wheel.name


def test_server_wheel_is_pure_python_where_no_compiler_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: dict[str, Built]
):
    """Nobody needs a compiler to build or install the server; built from the sdist, as an installer does."""
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    with tarfile.open(built["seedance_server"].sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    build_one(tmp_path / "seedance_server-0.1.0", tmp_path / "out", "--wheel")
    assert [wheel.name for wheel in (tmp_path / "out").iterdir()] == [
        "seedance_server-0.1.0-py3-none-any.whl"
    ]


@pytest.mark.parametrize("name", PROJECTS)
def test_wheel_and_sdist_carry_the_licence(built: dict[str, Built], name: str):
    """The licence travels with every copy, and it is one text."""
    licence = (ROOT / "LICENSE").read_bytes()
    with zipfile.ZipFile(built[name].wheel) as archive:
        assert archive.read(f"{name}-0.1.0.dist-info/licenses/LICENSE") == licence
    with tarfile.open(built[name].sdist) as archive:
        member = archive.extractfile(f"{name}-0.1.0/LICENSE")
        assert member is not None
        assert member.read() == licence


def test_sdk_wheel_requires_nothing_heavy(built: dict[str, Built]):
    """`pip install seedance-sdk` never brings torch."""
    required = _requirements(built["seedance_sdk"].wheel) | _requirements(built["seedance_wire"].wheel)
    assert "seedance-wire" in required
    assert required & HEAVY == set()


def test_sdk_works_without_the_server_when_installed_from_its_wheels(sdk_alone: Environment):
    """The documented imports come from the installed wheel, and bring neither the server nor torch."""
    done = sdk_alone.run(
        "-c",
        "import sys, seedance_sdk\n"
        "from seedance_sdk import AsyncSeedanceClient, SeedanceClient\n"
        "from seedance_sdk.testing import *\n"
        "print(seedance_sdk.__file__)\n"
        "print(sorted({'torch', 'transformers', 'seedance_server'} & set(sys.modules)))",
    )
    assert done.returncode == 0, done.stderr
    file, heavy = done.stdout.splitlines()
    assert Path(file).is_relative_to(sdk_alone.python.parents[1])
    assert heavy == "[]"


def test_sdk_command_exists_when_installed_from_its_wheels(sdk_alone: Environment):
    """`pip install 'seedance-sdk[cli]'` gives the command, all of it."""
    command = sdk_alone.python.with_name("seedance")
    assert command.exists()
    done = sdk_alone.run(str(command), "doctor", "--url", "ws://127.0.0.1:1", "--json")
    assert done.returncode == 1, done.stderr
    assert '"topic": "TCP"' in done.stdout


def test_server_command_exists_when_installed_from_its_wheels(server: Environment):
    """`pip install seedance-server` gives the command that the README names."""
    command = server.python.with_name("seedance-server")
    assert command.exists()
    assert server.run(str(command), "--version").stdout.startswith("seedance-server ")


def test_server_help_is_complete_when_installed_from_its_wheels(server: Environment):
    """`--help` shows each setting of the configuration with its flag and its environment twin."""
    done = server.run(str(server.python.with_name("seedance-server")), "--help")
    assert done.returncode == 0, done.stderr
    listed = server.run(
        "-c",
        "from seedance_server.flags import settings\n"
        "for setting in settings().values(): print(setting.flag, setting.environment)",
    )
    assert listed.returncode == 0, listed.stderr
    wanted = set(listed.stdout.split())
    assert {"--model-path", "--port", "--max-conns", "SEEDANCE_PORT"} <= wanted
    assert {word for word in wanted if not re.search(rf"{re.escape(word)}(?![\w-])", done.stdout)} == set()


def test_server_refuses_in_one_line_when_the_model_is_missing(server: Environment):
    """An expected start-up failure of the installed command is one line and status 2."""
    done = server.run(
        str(server.python.with_name("seedance-server")), "--model-path", "/nowhere", "--port", "0"
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("seedance-server: error: ")]
    assert "/nowhere" in line
