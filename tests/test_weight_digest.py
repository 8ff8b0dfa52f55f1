"""The digest of named weights."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tbrl.engine.digest import WeightDigest


def digest_of(**tensors: torch.Tensor) -> str:
    digest = WeightDigest()
    for name, tensor in tensors.items():
        digest.add(name, tensor)
    return digest.hexdigest()


def test_order_of_arrival_does_not_matter_and_names_do() -> None:
    a, b = torch.arange(6.0), torch.ones(3)
    assert digest_of(a=a, b=b) == digest_of(b=b, a=a)
    assert digest_of(a=a, b=b) != digest_of(a=b, b=a)


def test_dtype_and_shape_are_part_of_it() -> None:
    a = torch.arange(6.0)
    assert digest_of(a=a) != digest_of(a=a.reshape(2, 3))
    assert digest_of(a=a) != digest_of(a=a.to(torch.bfloat16))


@given(st.integers(2, 200), st.integers(0, 10**6), st.sampled_from([torch.float32, torch.bfloat16]))
def test_a_changed_element_or_two_swapped_ones_change_it(
    size: int, seed: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(size, generator=generator).to(dtype)
    i, j = seed % size, (seed + 1) % size
    changed = values.clone()
    changed[i] = values[i] + 1
    swapped = values.clone()
    swapped[i], swapped[j] = values[j], values[i]
    assert digest_of(w=values) != digest_of(w=changed)
    if values[i] != values[j]:
        assert digest_of(w=values) != digest_of(w=swapped)


def test_a_view_and_its_copy_are_equal() -> None:
    wide = torch.arange(12.0).reshape(3, 4)
    assert digest_of(w=wide.t()) == digest_of(w=wide.t().contiguous())


def test_tap_passes_weights_through_unchanged() -> None:
    digest = WeightDigest()
    tensors = {"a": torch.ones(2), "b": torch.zeros(3)}
    assert dict(digest.tap(tensors.items())) == tensors
    assert digest.hexdigest() == digest_of(**tensors)
