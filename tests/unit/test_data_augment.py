"""Random crops and mirrors against a loop over the samples."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spat.datasets import crop_flip
from spat.datasets._augment import draws
from spat.errors import UserError


def crop_flip_slowly(x, down, right, mirror, pad):
    """One image at a time, one pixel at a time."""
    out = torch.zeros_like(x)
    n, _, h, w = x.shape
    for i in range(n):
        for row in range(h):
            for column in range(w):
                from_row = row + int(down[i]) - pad
                across = w - 1 - column if mirror[i] else column
                from_column = across + int(right[i]) - pad
                if 0 <= from_row < h and 0 <= from_column < w:
                    out[i, :, row, column] = x[i, :, from_row, from_column]
    return out


@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(*(st.integers(1, top) for top in (5, 3, 6, 7))),
    pad=st.integers(0, 5),
    seed=st.integers(0, 999),
    dtype=st.sampled_from([torch.uint8, torch.float32]),
)
def test_equals_the_slow_twin(shape, pad, seed, dtype):
    x = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    before = x.clone()
    fast = crop_flip(x, torch.Generator().manual_seed(seed), pad)
    down, right, mirror = draws(shape[0], torch.Generator().manual_seed(seed), pad)
    assert torch.equal(fast, crop_flip_slowly(x, down, right, mirror, pad))
    assert (fast.dtype, fast.shape) == (x.dtype, x.shape)
    assert torch.equal(x, before)


def test_draws_cover_every_shift_evenly():
    down, right, mirror = draws(9000, torch.Generator().manual_seed(0), 4)
    for drawn in (down, right):
        counts = torch.bincount(drawn, minlength=9)
        assert len(counts) == 9
        assert bool((counts > 850).all() and (counts < 1150).all())
    assert abs(mirror.float().mean() - 0.5) < 0.03
    assert not torch.equal(down, right)


def test_the_image_may_stay_as_it_is():
    """Of shifts of -1, 0, 1 and two mirrors, one in 18 changes nothing."""
    x = torch.arange(25, dtype=torch.uint8).view(1, 1, 5, 5).expand(400, 1, 5, 5)
    out = crop_flip(x, torch.Generator().manual_seed(0), 1)
    unchanged = (out == x).flatten(1).all(1).sum()
    assert 8 < int(unchanged) < 42


def test_only_the_given_generator_moves():
    torch.manual_seed(0)
    state, rng = torch.get_rng_state(), torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (6, 1, 8, 8), generator=rng).to(torch.uint8)
    first, second = crop_flip(x, rng), crop_flip(x, rng)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first, second)


def test_strided_images_are_fine():
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    packed = x.to(memory_format=torch.channels_last)
    one, other = (crop_flip(v, torch.Generator().manual_seed(3)) for v in (x, packed))
    assert torch.equal(one, other)


def test_negative_pad():
    with pytest.raises(UserError, match="pad must be 0 or more pixels, got -1"):
        crop_flip(torch.zeros(1, 1, 4, 4), torch.Generator(), -1)
