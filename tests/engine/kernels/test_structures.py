import ctypes
import re
from pathlib import Path

import pytest

from seedance_server.engine.kernels import structures
from seedance_server.engine.sampling_params import MAX_TOP_LOGPROBS

HEADERS = Path(structures.__file__).parent
# As the headers write them, and how many bytes each takes.
SIZES = {"int64_t": 8, "double": 8, "float": 4, "int32_t": 4, "Activation": 4}
LENGTHS = {None: 1, "kMostReported": MAX_TOP_LOGPROBS}


def _declared(name):
    """Fields of a struct as its header declares them: [(name, size in bytes or the struct's name)]."""
    texts = (path.read_text() for path in HEADERS.glob("*.h"))
    [body] = [
        match[1]
        for text in texts
        if (match := re.search(rf"struct {name} {{\n(.*?)\n(?:\n|}};)", text, re.DOTALL))
    ]
    lines = (re.match(r"  (?:const )?(\w+)(\*?) (\w+)(?:\[(\w+)\])?;", line) for line in body.splitlines())
    return [
        (line[3], 8 if line[2] else SIZES[line[1]] * LENGTHS[line[4]] if line[1] in SIZES else line[1])
        for line in lines
        if line
    ]


@pytest.mark.parametrize("name", [name for name in structures.__all__ if not name.isupper()])
def test_structure_is_field_for_field_that_of_its_header(name):
    """A field out of place would be read as another one."""
    ours = [
        (field, kind.__name__ if issubclass(kind, ctypes.Structure) else ctypes.sizeof(kind))
        for field, kind in getattr(structures, name)._fields_
    ]
    assert ours == _declared(name)
