"""Typed reading of parsed JSON."""

import json
import math

import pytest
from hypothesis import given

from seedance_wire.json_fields import Fields, Json, as_integer, hexadecimal, integer, number, real, unreal
from seedance_wire.validity import InvalidFieldError
from tests.strategies import any_float, i64, json_values, u64


@given(i64 | u64)
def test_integer_survives_a_reader_that_keeps_53_bits(value: int) -> None:
    """What is written as a number is exact as a double; what is not is written as digits."""
    written = integer(value)
    assert as_integer("f", json.loads(json.dumps(written))) == value
    if not isinstance(written, str):
        assert int(float(value)) == value


@pytest.mark.parametrize(("value", "written"), [(2**53, 2**53), (2**53 + 1, str(2**53 + 1)), (None, None)])
def test_integer_changes_form_above_two_to_the_53(value: int | None, written: int | str | None) -> None:
    """The bound is JavaScript's, inclusive."""
    assert integer(value) == written


@pytest.mark.parametrize(
    "value", [True, 1.0, "01", "+1", " 1", "1 ", "", "-", "1e3", "٣", "9" * 21, None, [], {}]
)
def test_as_integer_refuses_what_only_resembles_one(value: Json) -> None:
    """Booleans, fractions, padded, foreign or endless digits."""
    with pytest.raises(InvalidFieldError):
        as_integer("f", value)


@given(any_float)
def test_unreal_carries_every_float(value: float) -> None:
    """Infinities and NaN travel as words."""
    read = real("f", json.loads(json.dumps(unreal(value), allow_nan=False)))
    assert read == value or (math.isnan(read) and math.isnan(value))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, "1", "NaN", True, None, [1]])
def test_number_refuses_what_is_not_a_finite_number(value: Json) -> None:
    """NaN is no JSON; neither are words where the protocol wants a number."""
    with pytest.raises(InvalidFieldError):
        number("f", value)


@pytest.mark.parametrize("value", ["0", "0g", "٣٣", " 00", 12, None])
def test_hexadecimal_refuses_everything_but_pairs_of_digits(value: Json) -> None:
    """`bytes.fromhex` allows spaces; the protocol does not."""
    with pytest.raises(InvalidFieldError):
        hexadecimal("f", value)
    assert hexadecimal("f", "00fF") == b"\x00\xff"


@given(json_values)
def test_fields_raise_only_invalid_field_for_anything(value: Json) -> None:
    """Every way of reading, on every value, gives the type that it promises or names the field."""
    readers = {
        "text": str,
        "integer": int,
        "optional_text": str | None,
        "optional_integer": int | None,
        "optional_number": float | None,
        "real": float,
        "flag": bool,
        "hexadecimal": bytes,
        "array": list,
        "texts": tuple,
        "integers": tuple,
        "object": Fields,
    }
    for name, kind in readers.items():
        fields = Fields({"f": value}, "m")
        try:
            result = getattr(fields, name)("f")
        except InvalidFieldError as error:
            assert error.field.startswith("m.f")  # noqa: PT017
        else:
            assert isinstance(result, kind)
        fields.close()


def test_fields_name_the_path_of_what_is_wrong() -> None:
    """A person can find it."""
    fields = Fields({"a": [{"b": 1}, {"b": "x"}]})
    with pytest.raises(InvalidFieldError) as caught:
        [entry.integer("b") for entry in fields.objects("a")]
    assert caught.value.field == "a[1].b"


def test_fields_close_refuses_what_was_never_read() -> None:
    """A misspelt name is not ignored, and a long one is not repeated whole."""
    fields = Fields({"a": 1, "b" * 1000: 2})
    assert fields.optional("a") == 1
    with pytest.raises(InvalidFieldError) as caught:
        fields.close()
    assert caught.value.field == "b" * 64


@pytest.mark.parametrize("value", [None, [], "x", 1])
def test_fields_are_of_an_object(value: Json) -> None:
    """Anything else has no members."""
    with pytest.raises(InvalidFieldError):
        Fields(value)
