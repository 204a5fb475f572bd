#!/usr/bin/env bash
# Installs this project into a new environment of each Python version that it supports, and there lists the tasks, steps
# environments of both suites, trains for a moment and evaluates the policy. Prints a Markdown table; the exit code is 1 if
# something failed. It downloads PyTorch for each version, which without MIKASA_TORCH_INDEX is several gigabytes of CUDA.
#
#   bash scripts/test_matrix.sh                 every row: 3.10, 3.11, 3.12, and lerobot (beside LeRobot, on Python 3.12)
#   bash scripts/test_matrix.sh 3.10 lerobot    only these rows; then a missing interpreter is a failure, not a skipped row
#   bash scripts/test_matrix.sh --dry-run       print what would be done
#
#   PYTHON_3_10=…           the interpreter for 3.10, and so on; by default python3.10 in PATH or of pyenv
#   MIKASA_TORCH_INDEX=…    an extra index for PyTorch, such as https://download.pytorch.org/whl/cpu
#   WORK=…                  where the environments are made, by default a new folder below /tmp. They get a new folder in it,
#                           which is deleted in the end; nothing else there is touched.
#   LOGS=…                  folder for the output of each row, by default WORK/logs
#   ROOM=20                 gigabytes that have to be free before a row begins
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
exec </dev/null
all=(3.10 3.11 3.12 lerobot)
lerobot="lerobot==0.6.1"
extras="train,report"

dry_run="" rows=()
for word in "$@"; do
  if [[ "$word" == --dry-run ]]; then
    dry_run=1
  elif [[ " ${all[*]} " == *" $word "* ]]; then
    rows+=("$word")
  else
    echo "test_matrix: unknown argument '$word'; use --dry-run, or some of ${all[*]}" >&2
    exit 2
  fi
done
named=${#rows[@]}
[[ $named -gt 0 ]] || rows=("${all[@]}")

version_of() { if [[ "$1" == lerobot ]]; then echo 3.12; else echo "$1"; fi; }

# Prints an interpreter of that version; fails if there is none. pyenv's shims exist for versions that are not selected.
find_python() {
  local version="$1" variable="PYTHON_${1/./_}" candidate
  local candidates=("${!variable:-}" "python$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python)
  [[ -z "${!variable:-}" ]] || candidates=("${!variable}")
  for candidate in "${candidates[@]}"; do
    if [[ -n "$candidate" ]] &&
      [[ "$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" == "$version" ]]; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

if [[ -n "$dry_run" ]]; then
  echo "| row | interpreter | constraints | packages |"
  echo "|---|---|---|---|"
  for row in "${rows[@]}"; do
    python="$(find_python "$(version_of "$row")")" || python="none"
    if [[ "$row" == lerobot ]]; then constraints=constraints-lerobot.txt packages=" $lerobot"; else constraints=constraints.txt packages=""; fi
    echo "| $row | $python | $constraints | mikasa-suite[$extras]$packages |"
  done
  exit 0
fi

work="${WORK:-$(mktemp -d /tmp/test_matrix.XXXXXX)}" || exit 2
logs="${LOGS:-$work/logs}"
mkdir -p -- "$work" "$logs" || exit 2
# Absolute, because the rows change the folder.
work="$(cd -- "$work" >/dev/null && pwd)" && logs="$(cd -- "$logs" >/dev/null && pwd)" || exit 2
# All that is deleted is in a folder that nobody else has made: WORK may be anything, also a folder with a "source" in it.
own="$(mktemp -d "$work/matrix.XXXXXX")" || exit 2
trap 'rm -rf "$own"' EXIT
# The project is installed from a copy, as a user would have it, and because a build writes into the folder it builds from.
source="$own/source"
mkdir "$source" || exit 2
git -C "$root" ls-files -z -c -o --exclude-standard | (cd "$root" && xargs -0 sh -c 'for f; do [ ! -e "$f" ] || printf "%s\0" "$f"; done' _) |
  tar -C "$root" --null -T - -cf - | tar -C "$source" -xf - || exit 2

step_both='
import gymnasium, torch
import mikasa_base, mikasa_robo
env = mikasa_robo.make_env("RememberColor3-v0", 2, sim_backend="physx_cpu")
env.reset(seed=0)
assert env.step(torch.as_tensor(env.action_space.sample()))[0].isfinite().all()
env.close()
env = gymnasium.make("MemoryLengthEasy-v0")
env.reset(seed=0)
env.step(env.action_space.sample())
'
# Beside LeRobot: its features are those of an environment that it has stepped itself.
step_lerobot='
import importlib.metadata, torch
import mikasa_robo
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
env = mikasa_robo.make_env("RememberColor3-v0", 2, sim_backend="physx_cpu")
obs, _ = env.reset(seed=0)
state, action = obs.shape[1], env.single_action_space.shape[0] if hasattr(env, "single_action_space") else env.unwrapped.single_action_space.shape[0]
policy = ACTPolicy(ACTConfig(
    input_features={"observation.state": PolicyFeature(FeatureType.STATE, (state,)),
                    "observation.environment_state": PolicyFeature(FeatureType.ENV, (state,))},
    output_features={"action": PolicyFeature(FeatureType.ACTION, (action,))},
    chunk_size=4, n_action_steps=4, device="cpu", pretrained_backbone_weights=None)).eval()
for _ in range(4):
    obs, *_ = env.step(policy.select_action({"observation.state": obs, "observation.environment_state": obs}))
assert obs.isfinite().all()
print("lerobot", importlib.metadata.version("lerobot"))
env.close()
'

failed=0 cells="" stopped=""
# stage NAME COMMAND...: runs the command unless an earlier stage of the row failed; adds ok, failed or - to the row's cells.
stage() {
  local name="$1"
  shift
  if [[ -n "$stopped" ]]; then
    cells+=" - |"
    return
  fi
  { echo "== $name: $*" && "$@"; } >>"$log" 2>&1 && cells+=" ok |" && return
  cells+=" **failed** |" stopped=1 failed=1
}

versions='
import platform
from importlib.metadata import version
print(platform.python_version(), *(version(name) for name in ("torch", "numpy", "gymnasium")), sep=" | ")'

echo "| row | Python | torch | NumPy | Gymnasium | install | pip check | list | both suites | train | eval | seconds |"
echo "|---|---|---|---|---|---|---|---|---|---|---|---:|"
for row in "${rows[@]}"; do
  start=$SECONDS cells="" stopped="" log="$logs/$row.log" venv="$own/venv-$row" run="$own/run-$row"
  : >"$log"
  if ! python="$(find_python "$(version_of "$row")")"; then
    echo "| $row | no interpreter | | | | | | | | | | |"
    [[ $named == 0 ]] || failed=1
    continue
  fi
  if [[ "$(df -Pk "$work" | awk 'NR == 2 { print int($4 / 1048576) }')" -lt "${ROOM:-20}" ]]; then
    echo "| $row | less than ${ROOM:-20} GB free in $work | | | | | | | | | | |"
    failed=1
    continue
  fi
  constraints="$source/constraints.txt" packages=("$source[$extras]") index=()
  [[ -z "${MIKASA_TORCH_INDEX:-}" ]] || index=(--extra-index-url "$MIKASA_TORCH_INDEX")
  [[ "$row" != lerobot ]] || constraints="$source/constraints-lerobot.txt" packages+=("$lerobot")
  install() {
    "$python" -m venv "$venv" &&
      "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-input -c "$constraints" \
        ${index[@]+"${index[@]}"} "${packages[@]}"
  }
  # From a folder without the sources, so that it is the installed copy that is used.
  mkdir -p "$run" && cd "$run" || exit 2
  stage install install
  found="$("$venv/bin/python" -c "$versions" 2>>"$log")" || found="$("$python" -c 'import platform; print(platform.python_version())') | | | "
  stage check "$venv/bin/python" -m pip check
  stage list "$venv/bin/mikasa" list
  if [[ "$row" == lerobot ]]; then
    stage step "$venv/bin/python" -c "$step_both$step_lerobot"
  else
    stage step "$venv/bin/python" -c "$step_both"
  fi
  stage train "$venv/bin/mikasa" train ppo-mlp --env-id RememberColor3-v0 --num-envs 4 --num-steps 16 --total-timesteps 128 \
    --eval-episodes 2 --eval-num-envs 2 --no-video --run-dir "$run/train"
  stage eval "$venv/bin/mikasa" eval --checkpoint "$run/train/checkpoint.pt" --episodes 2 --num-envs 2 --out "$run/eval.json"
  cd "$root" || exit 2
  "$venv/bin/python" -m pip freeze >"$logs/$row.freeze" 2>/dev/null
  rm -rf "$venv" "$run"
  echo "| $row | $found |$cells $((SECONDS - start)) |"
done
[[ $failed == 0 ]] || echo "test_matrix: the output is in $logs" >&2
exit "$failed"
