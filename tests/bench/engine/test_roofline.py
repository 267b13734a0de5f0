"""The least time of a step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from engine.peaks import Machine
from engine.roofline import Products, floor_ms

CONFIG = SimpleNamespace(
    hidden_size=10,
    intermediate_size=40,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=5,
    num_hidden_layers=2,
    vocab_size=100,
)


def test_products_are_those_of_every_layer_and_the_head() -> None:
    """Queries, keys and values together; gate and up together; the head last."""
    products = Products.of(CONFIG)
    assert products.shapes == (*((30, 10), (10, 20), (80, 10), (10, 40)) * 2, (100, 10))
    assert products.weights == 2 * (300 + 200 + 800 + 400) + 1000


def test_products_of_a_model_that_names_no_head_size_divide_its_width() -> None:
    """Older configurations leave it out."""
    config = SimpleNamespace(**{**vars(CONFIG), "head_dim": None, "num_attention_heads": 5})
    assert Products.of(config).shapes[0] == ((5 + 2) * 2, 10)


@pytest.mark.parametrize(("rows", "floor"), [(1, 2.0), (4, 2.0), (8, 4.0)])
def test_floor_is_reading_for_few_rows_and_multiplying_for_many(rows: int, floor: float) -> None:
    """A step can't be faster than its slower half."""
    products = Products(((10, 100),))  # 1000 numbers
    machine = Machine(bytes_per_s=1e6, operations_per_s=4e6)
    assert floor_ms(machine, products, rows) == pytest.approx(floor)
