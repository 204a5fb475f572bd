"""Linear read-outs: how well a linear model tells the cue from a policy's recurrent state.

Source: "Understanding intermediate layers using linear classifier probes" (Alain and Bengio, arXiv 1610.01644).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from mikasa_robo.baselines.spaces import Obs, State
from mikasa_robo.statistics import wilson_interval

from .probe_cues import cue_parts
from .probe_play import Batch, flatten_rows

__all__ = ["LEAST_EPISODES", "Recorder", "accuracy", "r_squared", "read_out"]

FOLDS = 5
LEAST_EPISODES = 20
"""With fewer episodes nothing is read out."""
PENALTY = 1e-3
"""Weight of half the squared weights of a logistic regression, beside the mean loss; rows have a mean square of 1."""
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
"""Penalties of a ridge regression to choose from, as multiples of the mean square of a row."""
KEPT = 0.9
"""A cue counts as written once the score has come so far from chance to its best."""


class Recorder:
    """Keeps what is in the state, what is on view and what is to be remembered, at some steps of some batches.

    Args:
        task: the environment.
        times: at which t.
    """

    def __init__(self, task: Any, times: Sequence[int]) -> None:
        self._task = task
        self._rows: dict[int, list[dict[str, Tensor]]] = {t: [] for t in times}
        self._kept = torch.zeros(0, dtype=torch.bool)

    def running(self, batch: Batch, running: Tensor) -> None:
        """Episodes (N,) bool of the batch that are running now; call it before each step."""
        self._kept = batch.kept(running)

    def __call__(self, t: int, obs: Obs, state: State) -> None:
        """Step t of a batch; see `probe_play.After`."""
        if t not in self._rows:
            return
        rows = {"state": flatten_rows(state), "observation": flatten_rows(_numbers(obs))}
        rows |= {f"cue {k}": part.values for k, part in enumerate(cue_parts(self._task))}
        self._rows[t].append({name: value[self._kept.to(value.device)].cpu() for name, value in rows.items()})

    def at(self, t: int) -> dict[str, Tensor]:
        """The rows (E, D) at t of all episodes that were running: "state", "observation", "cue 0", "cue 1" and so on.

        Empty where no batch has come so far.
        """
        rows = self._rows[t]
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]} if rows else {}


def _numbers(obs: Obs) -> Obs:
    """An observation without its images: a linear model of pixels tells little."""
    if not isinstance(obs, dict):
        return obs.reshape(len(obs), -1) if obs.ndim <= 3 else obs[:, :0]
    kept = {name: value for name, value in obs.items() if value.ndim <= 3}
    return kept or {"": torch.zeros(len(next(iter(obs.values()))), 0)}


def read_out(recorder: Recorder, times: Sequence[int], task: Any) -> list[dict[str, Any]]:
    """How well each part of the cue can be read out at each of ``times``, for JSON.

    The score is the accuracy of a logistic regression for class indices, and R² of a ridge regression for numbers, on
    episodes that the model was not fitted to (5-fold cross-validation over episodes). Steps at which there is nothing to
    tell apart, because a part is the same in all episodes, are left out.
    """
    results = []
    for k, part in enumerate(cue_parts(task)):
        curve = []
        for t in times:
            rows = recorder.at(t)
            if not rows or len(rows["state"]) < LEAST_EPISODES:
                continue
            values = rows[f"cue {k}"]
            if (values != values[:1]).any():
                curve.append({"t": t, **_scores(rows, values, part.discrete)})
        entry: dict[str, Any] = {"cue": part.name, "score": "accuracy" if part.discrete else "R2"}
        if part.discrete:
            # no curve: too few episodes were running, or they did not differ
            classes = max((int(recorder.at(row["t"])[f"cue {k}"].max()) + 1 for row in curve), default=0)
            entry |= {"classes": classes, "chance": 1 / classes if classes else None}
        else:
            entry["chance"] = 0.0
        entry |= {"changes": part.changes, **_summary(curve)}
        if part.changes:
            entry["written_at"] = None
        results.append({**entry, "curve": curve})
    return results


def _scores(rows: dict[str, Tensor], cue: Tensor, discrete: bool) -> dict[str, Any]:
    n = len(cue)
    score = accuracy if discrete else r_squared
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    result: dict[str, Any] = {"episodes": n, "state": score(rows["state"], cue)}
    result["observation"] = score(rows["observation"], cue)
    result["shuffled"] = score(rows["state"], cue[order])
    if discrete:
        low, high = wilson_interval(round(result["state"] * n), n)
        majority = torch.stack([one_hot(column).sum(dim=0).max() for column in cue.T]).to(torch.float64).mean() / n
        result |= {"low": low, "high": high, "majority": float(majority)}
    return result


def _summary(curve: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """When the cue is written, if it ever is, and how much of the best score is left at the last step."""
    if not curve:
        return {"written_at": None, "best": None, "last": None}
    best = max(row["state"] for row in curve)
    floor = max(max(row.get("majority", 0.0), row["shuffled"]) for row in curve)
    clear = best - floor > 0.1
    written = next((row["t"] for row in curve if row["state"] >= floor + KEPT * (best - floor)), None)
    return {"written_at": written if clear else None, "best": best, "last": curve[-1]["state"]}


def accuracy(x: Tensor, y: Tensor) -> float:
    """Share of the class indices y (E, d) that a logistic regression of x (E, D) finds, on episodes left out of the fit."""
    hits = torch.zeros(y.shape)
    for train, test in _folds(len(x)):
        a, b = _project(x[train], x[test])
        for column in range(y.shape[1]):
            hits[test, column] = (_classify(a, y[train, column], b) == y[test, column]).to(torch.float32)
    return float(hits.mean())


def r_squared(x: Tensor, y: Tensor) -> float:
    """1 - (squared error of a ridge regression of x (E, D)) / (variance of y (E, d)), on episodes left out of the fit.

    The mean over the columns of y that vary; below 0 where the model is worse than the mean.
    """
    y = y.to(torch.float64)
    y = y[:, y.std(dim=0) > 1e-6]
    if not y.shape[1]:
        return 0.0
    predicted = torch.zeros_like(y)
    for train, test in _folds(len(x)):
        a, b = _project(x[train], x[test])
        predicted[test] = _regress(a, y[train], b)
    error = (predicted - y).square().sum(dim=0) / (y - y.mean(dim=0)).square().sum(dim=0)
    return float((1 - error).mean())


def _folds(n: int) -> list[tuple[Tensor, Tensor]]:
    """Indices to fit and to test with; every row is tested once. The same for the same n."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    parts = torch.tensor_split(order, FOLDS)
    return [(torch.cat([*parts[:k], *parts[k + 1 :]]), parts[k]) for k in range(FOLDS)]


def _project(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Standardise the columns, then rotate them to the span of the rows to fit, which loses nothing to a linear model.

    Returns:
        (n, r) and (m, r) float64 with r < n; rows to fit have a mean square of 1.
    """
    a, b = train.to(torch.float64), test.to(torch.float64)
    mean, std = a.mean(dim=0), a.std(dim=0)
    scale = torch.where(std > 1e-6, std, torch.inf)  # a column that does not vary tells nothing
    a, b = (a - mean) / scale, (b - mean) / scale
    gram = a @ a.T
    values, vectors = torch.linalg.eigh(gram)
    kept = values > 1e-9 * values.clamp(min=1e-9).max()
    values, vectors = values[kept], vectors[:, kept]
    size = (values.sum() / len(a)).sqrt().clamp(min=1e-9)
    return vectors * values.sqrt() / size, b @ a.T @ vectors / values.sqrt() / size


def _classify(x: Tensor, y: Tensor, test: Tensor) -> Tensor:
    """Class indices (m,) of ``test`` (m, r), by a multinomial logistic regression that is fitted to x (n, r), y (n,)."""
    classes = int(y.max()) + 1
    weight = torch.zeros(x.shape[1], classes, dtype=x.dtype, requires_grad=True)
    bias = torch.zeros(classes, dtype=x.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=60, tolerance_grad=1e-4, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(x @ weight + bias, y) + PENALTY / 2 * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return (test @ weight + bias).detach().argmax(dim=1)


def _regress(x: Tensor, y: Tensor, test: Tensor) -> Tensor:
    """Numbers (m, d) for ``test`` (m, r), by a ridge regression of y (n, d) on x (n, r).

    The penalty is the one with the least error of leaving one row out, which has a closed form.
    """
    mean = y.mean(dim=0)
    square = x.square().sum(dim=0)  # the columns are orthogonal
    best, result = torch.inf, mean.expand(len(test), -1)
    for ridge in RIDGES:
        gain = 1 / (square + ridge)
        hat = x * gain @ x.T
        left_out = (y - mean - hat @ (y - mean)) / (1 - hat.diagonal() - 1 / len(x)).clamp(min=1e-6)[:, None]
        error = float(left_out.square().mean())
        if error < best:
            best, result = error, mean + test @ (gain[:, None] * (x.T @ (y - mean)))
    return result
