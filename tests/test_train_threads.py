"""Threads that compute parts of a gradient give the gradient of the whole."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mikasa_robo.baselines.threads import MOST_PARTS, BatchThreads


class Net(nn.Module):
    """With a convolution, whose gradient may have another memory layout than its weights, and an unused layer."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out, self.unused = nn.Conv2d(3, 16, 3), nn.Linear(16, 1), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.conv(x).tanh().mean(dim=(2, 3))).squeeze(1)


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("size", "given", "used"), [(10, 1, 1), (10, 2, 2), (10, 16, MOST_PARTS), (3, 8, 3)])
def test_parts_add_up_to_the_gradient_of_the_batch(size: int, given: int, used: int) -> None:
    torch.manual_seed(0)
    net, x = Net(), torch.randn(size, 8, 8, 3).permute(0, 3, 1, 2)
    net(x).square().sum().backward()
    expected = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    torch.set_num_threads(given)
    seen: list[tuple[Any, int]] = []

    def loss(rows: slice) -> tuple[Tensor, Tensor]:
        seen.append((threading.current_thread(), torch.get_num_threads()))
        y = net(x[rows])
        return y.square().sum(), torch.stack([y.sum(), torch.ones(()) * len(y)]).detach()

    with BatchThreads(net) as threads:
        figures = threads.backward(size, loss)
    assert torch.get_num_threads() == given
    assert len(seen) == used
    assert len({thread for thread, _ in seen}) <= used
    assert {count for _, count in seen} == {given // min(given, MOST_PARTS)}
    assert figures[1] == size
    for parameter, gradient in zip(net.parameters(), expected, strict=True):
        if gradient is None:
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, gradient)
            assert parameter.grad is not None
            assert parameter.grad.stride() == parameter.stride(), "a fused optimiser reads both in one order"


def test_an_error_in_a_thread_is_raised() -> None:
    torch.set_num_threads(2)

    def loss(rows: slice) -> tuple[Tensor, Tensor]:
        if rows.start:
            raise ValueError("second half")
        return torch.zeros(()), torch.zeros(1)

    with pytest.raises(ValueError, match="second half"), BatchThreads(Net()) as threads:
        threads.backward(4, loss)
    assert torch.get_num_threads() == 2


def test_compiled_networks_are_run_as_a_whole() -> None:
    torch.set_num_threads(2)
    with BatchThreads(Net(), "on") as threads:
        assert threads.run(6, lambda rows: (rows.start, rows.stop)) == [(0, 6)]
        assert torch.get_num_threads() == 2
    with BatchThreads(Net()) as threads:
        assert threads.run(6, lambda rows: (rows.start, rows.stop)) == [(0, 3), (3, 6)]
        assert threads.run(0, lambda rows: (rows.start, rows.stop)) == [(0, 0)]
