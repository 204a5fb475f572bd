"""Metrics of a stream, as pure functions of arrays.

``R`` is the array of scores of one run, (K + 1, C + 2, K): stage (0 is before any training), checkpoint within the stage
(0 … C, and -1 after the stage's consolidation) and task. ``c = R[:, -1]`` (K + 1, K) is what was measured after each stage;
row ``s`` of ``c`` is stage s, and column k is the task that stage k + 1 trains. nan is what was not measured, and a metric
that needs it is nan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import LifelongError

__all__ = [
    "auc_libero",
    "bwt_gem",
    "bwt_nav",
    "cosine",
    "fwt_gem",
    "fwt_libero",
    "fwt_nav",
    "in_stage_means",
    "nbt_libero",
    "own_scores",
    "per",
    "spo_overlap",
    "top_n",
]

Array = NDArray[np.float64]


def _after(R: ArrayLike) -> Array:
    """c without stage 0, (K, K): row i is after task i."""
    return np.asarray(R, np.float64)[1:, -1]


def own_scores(R: ArrayLike) -> Array:
    """c_kk (K,): the score of each task right after its own stage."""
    return np.diagonal(_after(R)).copy()


def in_stage_means(R: ArrayLike) -> Array:
    """LIBERO's FWT_k (K,): the mean over checkpoints within stage k + 1, held flat after the first maximum.

    This is the area under the learning curve of a run that keeps its best checkpoint.
    """
    R = np.asarray(R, np.float64)
    means = []
    for k in range(R.shape[2]):
        curve = R[k + 1, :-1, k].copy()
        if not np.isnan(curve).any():
            best = int(curve.argmax())
            curve[best:] = curve[best]
        means.append(curve.mean())
    return np.array(means)


def fwt_libero(R: ArrayLike) -> float:
    """Forward transfer of LIBERO: how well and how soon each task is learnt, the mean of `in_stage_means`."""
    return float(in_stage_means(R).mean())


def _forgetting(R: ArrayLike) -> Array:
    """NBT_k (K,): how much lower task k scores after later stages than after its own, on average; 0 for the last."""
    c = _after(R)
    own = np.diagonal(c)
    return np.array([0.0 if k == len(c) - 1 else float((own[k] - c[k + 1 :, k]).mean()) for k in range(len(c))])


def nbt_libero(R: ArrayLike, *, without_last: bool = False) -> float:
    """Negative backward transfer of LIBERO: forgetting, so lower is better.

    Args:
        R: the scores.
        without_last: divide by K - 1 instead of K, as the last task cannot be forgotten.
    """
    each = _forgetting(R)
    if without_last:
        return float(each[:-1].mean()) if len(each) > 1 else 0.0
    return float(each.mean())


def auc_libero(R: ArrayLike) -> float:
    """Area under the success curve of LIBERO: each task's mean over its own stage and all later ones."""
    c, first = _after(R), in_stage_means(R)
    K = len(c)
    return float(np.mean([(first[k] + c[k + 1 :, k].sum()) / (K - k) for k in range(K)]))


def per(R: ArrayLike) -> float:
    """Performance of Continual NavBench: the mean score of all tasks after the last stage."""
    return float(_after(R)[-1].mean())


def bwt_nav(R: ArrayLike) -> float:
    """Backward transfer of Continual NavBench: score at the end minus score after the task's own stage."""
    return float((_after(R)[-1] - own_scores(R)).mean())


def fwt_nav(R: Mapping[int, Array], scratch: Mapping[int, Array]) -> dict[int, float]:
    """Forward transfer of Continual NavBench: score after the own stage minus that of a network trained from scratch.

    Args:
        R: scores by seed.
        scratch: likewise, of ``scn`` on the same stream.

    Raises:
        LifelongError: a seed has no run of scn.
    """
    missing = sorted(set(R) - set(scratch))
    if missing:
        raise LifelongError(f"fwt_nav needs scn runs of seeds {', '.join(map(str, missing))}, with the same arguments")
    return {seed: float((own_scores(scores) - own_scores(scratch[seed])).mean()) for seed, scores in R.items()}


def bwt_gem(R: ArrayLike) -> float:
    """Backward transfer of GEM (Lopez-Paz and Ranzato 2017): as `bwt_nav`, over all tasks but the last. nan for one task."""
    difference = (_after(R)[-1] - own_scores(R))[:-1]
    return float(difference.mean()) if len(difference) else float("nan")


def fwt_gem(R: ArrayLike) -> float:
    """Forward transfer of GEM: score right before the own stage minus that of the untrained network. nan for one task."""
    R = np.asarray(R, np.float64)
    c, untrained = _after(R), R[0, -1]
    before = np.array([c[k - 1, k] - untrained[k] for k in range(1, len(c))])
    return float(before.mean()) if len(before) else float("nan")


def top_n(scores: ArrayLike, truth: ArrayLike, allowed: Collection[int] | None = None, n: int = 1) -> NDArray[np.bool_]:
    """Whether the true label is among the ``n`` highest scores of each example, (N,).

    Among a task's own labels this is LLFL's standard accuracy (S); among all tasks' labels the generalised one (G).

    Args:
        scores: (N, L) of each example and label.
        truth: (N,) indices of the true labels.
        allowed: the labels that are candidates; by default all. Ties go to the label that is not the true one.
        n: how many may rank at most.
    """
    scores, truth = np.asarray(scores, np.float64), np.asarray(truth)
    candidates = np.ones(scores.shape[1], bool) if allowed is None else np.isin(np.arange(scores.shape[1]), [*allowed])
    own = scores[np.arange(len(scores)), truth]
    at_least = (scores >= own[:, None]) & candidates
    at_least[np.arange(len(scores)), truth] = False
    result: NDArray[np.bool_] = at_least.sum(axis=1) < n
    return result


def cosine(a: ArrayLike, b: ArrayLike) -> float:
    """Similarity of two tasks: the cosine of the means of their fact vectors, each (facts, D)."""
    x, y = np.mean(np.asarray(a, np.float64), axis=0), np.mean(np.asarray(b, np.float64), axis=0)
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


def spo_overlap(a: Sequence[Collection[str]], b: Sequence[Collection[str]]) -> float:
    """Overlap of two tasks' subjects, predicates and objects: the geometric mean of their Jaccard indices.

    A part that both lack counts as 1.

    >>> round(spo_overlap(({"dog", "man"}, {"ride"}, {"horse"}), ({"man"}, {"ride", "eat"}, {"horse", "cake"})), 3)
    0.5
    """
    indices = []
    for one, other in zip(a, b, strict=True):
        union = set(one) | set(other)
        indices.append(len(set(one) & set(other)) / len(union) if union else 1.0)
    return float(np.prod(indices) ** (1 / len(indices)))
