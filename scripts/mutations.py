"""The mutations that scripts/mutate.py makes: at least one for each mechanism that an episode or a result depends on."""

from __future__ import annotations

from mutate import Mutation

__all__ = ["MUTATIONS"]

MUTATIONS: tuple[Mutation, ...] = (
    # ------------------------------------------------------------------ worker processes
    Mutation(
        "shard-off-by-one",
        "mikasa_robo/workers/env.py",
        "bounds = [num_envs * i // num_workers for i in range(num_workers + 1)]",
        "bounds = [min(num_envs, num_envs * i // num_workers + (0 < i < num_workers)) for i in range(num_workers + 1)]",
        ("tests/test_workers.py::test_make_vec_still_works_and_names_its_replacement",),
    ),
    Mutation(
        "worker-env-idx-not-local",
        "mikasa_robo/workers/env.py",
        "split.append((rows.tolist(), (index[rows] - shard.start).tolist()))",
        "split.append((rows.tolist(), (index[rows] - shard.start).abs().clamp(max=0).tolist()))",
        ("tests/test_workers.py::test_every_result_is_that_of_one_process",),
    ),
    Mutation(
        "worker-returns-shared-memory",
        "mikasa_robo/workers/env.py",
        "leaves[path] = self._shared[path].clone()",
        "leaves[path] = self._shared[path]",
        ("tests/test_workers.py::test_what_was_returned_does_not_change_with_the_next_step",),
    ),
)
