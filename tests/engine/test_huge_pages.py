import mmap

import pytest
import torch

from seedance_server.engine import huge_pages
from seedance_server.engine.huge_pages import prefer_huge_pages


@pytest.fixture
def wishes(monkeypatch):
    """What the system is asked for: (address, bytes, advice)."""
    asked = []
    monkeypatch.setattr(huge_pages, "_madvise", lambda: lambda *wish: asked.append(wish))
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 14, raising=False)
    return asked


def test_whole_pages_of_a_tensor_are_wished_for(wishes):
    """What lies beside the tensor in its first and last page is somebody else's."""
    tensor = torch.empty(5 * mmap.PAGESIZE, dtype=torch.uint8)[100:]
    prefer_huge_pages(tensor)
    ((start, length, advice),) = wishes
    assert start % mmap.PAGESIZE == length % mmap.PAGESIZE == 0
    assert tensor.data_ptr() <= start < start + length <= tensor.data_ptr() + tensor.nbytes
    assert advice == 14


def test_nothing_is_wished_for_where_it_means_nothing(wishes, monkeypatch):
    """On a device, in less than a page, or on a system that doesn't know of it."""
    prefer_huge_pages(torch.empty(2**22, device="meta"))
    prefer_huge_pages(torch.empty(8))
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    prefer_huge_pages(torch.empty(2**22))
    assert wishes == []


def test_wish_changes_no_content():
    """The real call, where the system has it."""
    tensor = torch.arange(2**20)
    prefer_huge_pages(tensor)
    assert torch.equal(tensor, torch.arange(2**20))
