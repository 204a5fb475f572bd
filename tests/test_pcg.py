"""The random numbers of the environments are those of numpy's default generator, whatever is drawn together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mikasa_robo.core.pcg import BatchedPCG64

CPU = torch.device("cpu")


def test_numbers_are_numpys_to_the_last_bit_in_any_portions() -> None:
    keys = [(seed, i) for seed in (0, 1, 5, 2**40 + 3, 2**130) for i in (0, 1, 77)]
    places = torch.randperm(40, generator=torch.Generator().manual_seed(0))[: len(keys)]
    generators = BatchedPCG64(40, CPU)
    generators.seed(places, keys)
    expected = [np.random.default_rng(np.random.SeedSequence(key)) for key in keys]
    for columns in (1, 7, 0, 50, 13, 300):
        numbers = generators.random(places, columns)
        assert numbers.dtype == torch.float64
        assert numbers.shape == (len(keys), columns)
        assert np.array_equal(numbers.numpy(), np.stack([e.random(columns) for e in expected])), columns


def test_each_generator_goes_on_by_itself() -> None:
    generators, twin = BatchedPCG64(6, CPU), BatchedPCG64(6, CPU)
    everybody = torch.arange(6)
    for one in (generators, twin):
        one.seed(everybody, [(3, i) for i in range(6)])
    whole = twin.random(everybody, 9)
    first = generators.random(torch.tensor([4, 1]), 5)
    assert torch.equal(first, whole[[4, 1], :5])
    before = generators.state
    assert torch.equal(generators.random(torch.tensor([1]), 4), whole[[1], 5:])
    changed = (generators.state != before).any(dim=1)
    assert changed.tolist() == [False, True, False, False, False, False]
    generators.seed(torch.tensor([1, 0]), [(3, 1), (9, 9)])
    assert torch.equal(generators.random(torch.tensor([1]), 9), whole[[1]])
    assert not torch.equal(generators.random(torch.tensor([0]), 9), whole[[0]])


def test_unseeded_generators_differ() -> None:
    numbers = BatchedPCG64(50, CPU).random(torch.arange(50), 4)
    assert len(torch.unique(numbers)) == 200
    assert not torch.equal(numbers, BatchedPCG64(50, CPU).random(torch.arange(50), 4))


def test_numbers_are_uniform() -> None:
    generators = BatchedPCG64(200, CPU)
    generators.seed(torch.arange(200), [(s,) for s in range(200)])
    numbers = generators.random(torch.arange(200), 500)
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    assert float(numbers.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(numbers.var()) == pytest.approx(1 / 12, abs=0.002)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_numbers() -> None:
    keys = [(s, i) for s in range(20) for i in range(5)]
    numbers = []
    for device in (CPU, torch.device("cuda")):
        generators = BatchedPCG64(100, device)
        index = torch.arange(100, device=device)
        generators.seed(index, keys)
        numbers.append([generators.random(index, columns).cpu() for columns in (3, 40)])
    assert all(torch.equal(a, b) for a, b in zip(*numbers, strict=True))
