"""The generated module and its schema."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

import seedance_wire
from seedance_wire import seedance_pb2 as pb

SCHEMA = Path(__file__).parents[2] / "wire" / "seedance.proto"


@pytest.mark.slow
def test_generated_module_is_the_schemas(tmp_path: Path) -> None:
    """Whoever changes the schema generates the module again."""
    pytest.importorskip("grpc_tools", reason="grpcio-tools is needed to compile the schema")
    compiled = tmp_path / "set"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{SCHEMA.parent}", f"--descriptor_set_out={compiled}"]
    subprocess.run([*command, SCHEMA.name], check=True, cwd=SCHEMA.parent, timeout=60)
    (expected,) = FileDescriptorSet.FromString(compiled.read_bytes()).file
    for message in expected.message_type:
        _drop_json_names(message)
    actual = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(actual)
    assert actual == expected


@pytest.mark.slow
def test_type_stubs_are_the_schemas(tmp_path: Path) -> None:
    """The stubs that mypy reads are of the same schema."""
    pytest.importorskip("grpc_tools", reason="grpcio-tools is needed to compile the schema")
    plugin = Path(sys.executable).with_name("protoc-gen-mypy")
    if not plugin.exists():
        pytest.skip("mypy-protobuf is needed to generate the stubs")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{SCHEMA.parent}", f"--mypy_out=quiet:{tmp_path}"]
    command += [f"--plugin=protoc-gen-mypy={plugin}", SCHEMA.name]
    subprocess.run(command, check=True, cwd=SCHEMA.parent, timeout=60, env={"PATH": str(plugin.parent)})
    committed = Path(seedance_wire.__file__).with_name("seedance_pb2.pyi").read_text()
    assert (tmp_path / "seedance_pb2.pyi").read_text() == committed


def test_generated_module_is_of_the_oldest_protobuf_that_is_allowed() -> None:
    """A later generator writes a module that users of an older protobuf cannot import: `./nox -s generate`."""
    generator = re.search(r"# Protobuf Python Version: (\S+)", Path(pb.__file__).read_text())
    oldest = re.search(r'"protobuf>=([\d.]+)', (SCHEMA.parent / "pyproject.toml").read_text())
    assert generator is not None
    assert oldest is not None
    assert generator[1] == oldest[1]


def test_schema_comments_every_field() -> None:
    """The schema is read by people of other languages."""
    for line in SCHEMA.read_text().splitlines():
        if line.rstrip().endswith(";") and " = " in line and not line.startswith(("syntax", "package")):
            pytest.fail(f"no comment: {line}")


def _drop_json_names(message: object) -> None:
    for field in message.field:  # type: ignore[attr-defined]
        field.ClearField("json_name")
    for nested in message.nested_type:  # type: ignore[attr-defined]
        _drop_json_names(nested)
