#!/usr/bin/env bash
# Runs the checks that need an NVIDIA GPU and prints a Markdown table of the results: a line for each check with ok, failed or
# skipped (and why). Takes a few minutes. The exit code is 1 if a check failed. Without a CUDA device all checks are skipped and
# the exit code is 0. Downloads nothing.
#
#   bash scripts/gpu_check.sh
#   bash scripts/gpu_check.sh > gpu.md
#
#   PYTHON=…      the interpreter in whose environment this project is installed, by default that of .venv
#   STEPS=8192    environment steps of each training
#   LIMIT=600     time limit of a check, in seconds
#   LOGS=…        folder for the output of each check, by default a new one below /tmp
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
exec </dev/null
python="${PYTHON:-$root/.venv/bin/python}"
steps="${STEPS:-8192}" limit="${LIMIT:-600}"
logs="${LOGS:-$(mktemp -d /tmp/gpu_check.XXXXXX)}"
mkdir -p "$logs"
failed=0 count=0

"$python" -c "import torch, sapien, mikasa_robo" || {
  echo "gpu_check: $python cannot import torch, sapien and mikasa_robo; run scripts/setup.sh first, or set PYTHON" >&2
  exit 2
}
no_cuda="$("$python" -c "
import torch
if torch.version.cuda is None:
    print('no CUDA: this torch was built without it')
elif not torch.cuda.is_available():
    print('no CUDA: torch sees no device')")"
library="$("$python" -c "
from mikasa_robo.sim import gpu_library
print(gpu_library.library_file())")"
no_drawing="$no_cuda"
[[ -n "$no_cuda" ]] || no_drawing="$("$python" -c "
from mikasa_robo.sim import render
problem = render.rendering_problem('cuda')
if problem is not None:
    print('SAPIEN cannot draw on the GPU:', problem)")"
no_physx="$no_cuda"
[[ -n "$no_physx" || -f "$library" ]] || no_physx="no PhysX GPU library: $library is missing"

# Prints how fast a training was, from the last line of its progress.csv.
speed='
import csv, sys
last = list(csv.DictReader(open(sys.argv[1])))[-1]
print("result:", last["steps_per_second"].split(".")[0], "env-steps/s")'

# check NAME WHY_NOT COMMAND...: runs the command, or skips it if WHY_NOT is not empty, and prints its line of the table. The
# text that the command prints after "result: " goes into the last column.
check() {
  local name="$1" why_not="$2" start=$SECONDS log code result
  shift 2
  if [[ -n "$why_not" ]]; then
    echo "| $name | skipped: $why_not | | |"
    return
  fi
  count=$((count + 1))
  log="$logs/$count.log"
  timeout "$limit" "$@" >"$log" 2>&1
  code=$?
  result="$(sed -n 's/^result: //p' "$log" | tail -n 1)"
  if [[ $code == 0 ]]; then
    echo "| $name | ok | $((SECONDS - start)) | $result |"
    return
  fi
  failed=1
  [[ $code != 124 ]] || result="not done after $limit s"
  echo "| $name | **failed** (exit code $code) | $((SECONDS - start)) | $result |"
  { echo "--- $name: the end of $log"; tail -n 25 "$log"; } >&2
}

# train ALGORITHM ARGUMENTS...: trains with the networks on CUDA over the simulator on CPU.
train() {
  local run algorithm="$1"
  shift
  run="$(mktemp -d "$logs/train.XXXXXX")"
  "$python" -m mikasa_robo.tools.cli train "$algorithm" --env-id RememberColor3-v0 --sim-backend physx_cpu --device cuda \
    --eval-episodes 16 --eval-num-envs 16 --no-video --run-dir "$run/run" "$@" || return
  "$python" -c "$speed" "$run/run/progress.csv"
}
ppo() { train ppo-mlp --total-timesteps "$steps" --num-envs 64 --num-steps 32 "$@"; }
# From images that the GPU draws; a quarter of the steps, because it draws each environment by a call of its own.
images() {
  train dagger --memory gru --obs rgb+joints --total-timesteps "$((steps / 4))" --num-envs 16 --num-steps 60 \
    --warm-start-steps 960 --warm-start-updates 10 --updates-per-rollout 10 --batch-episodes 4 --buffer-episodes 100
}
export -f train ppo images
export python steps logs speed

tests() {
  local code=0
  "$python" -m pytest -q -m gpu -p no:cacheprovider tests >"$logs/tests.log" 2>&1 || code=$?
  cat "$logs/tests.log"
  echo "result: $(tail -n 1 "$logs/tests.log")"
  return "$code"
}
export -f tests

echo "# What a GPU shows"
echo
echo "Printed by \`bash scripts/gpu_check.sh\`."
echo
"$python" - <<'PYTHON'
import platform
import subprocess
from importlib.metadata import version

import torch

names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
try:
    driver = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout.split()[0]
except (OSError, subprocess.SubprocessError, IndexError):
    driver = "none found"
print(f"- GPU: {', '.join(names) or 'none'}; driver: {driver}; CUDA of torch: {torch.version.cuda}")
print(f"- Python {platform.python_version()}, {platform.platform()}")
print("- " + ", ".join(f"{name} {version(name)}" for name in ("torch", "mani_skill", "sapien", "gymnasium", "mikasa-suite")))
PYTHON
echo
echo "| check | outcome | s | result |"
echo "|---|---|---|---|"
check "tests marked \`gpu\`" "$no_cuda" bash -c tests
check "training, networks on CUDA, physics on CPU" "$no_cuda" bash -c ppo
check "the same with \`--compile on\`" "$no_cuda" bash -c 'ppo --compile on'
check "the same with \`--compile cuda-graphs\`" "$no_cuda" bash -c 'ppo --compile cuda-graphs'
check "training from images, networks and rendering on the GPU, physics on CPU" "$no_drawing" bash -c images
for backend in physx_cpu physx_cuda; do
  why_not="$no_cuda"
  [[ $backend == physx_cpu ]] || why_not="$no_physx"
  check "RememberColor3, 64 environments, \`$backend\`" "$why_not" "$python" benchmarks/gpu_steps.py "$backend" 64
done
check "RememberColor3, 16 environments, images, \`physx_cpu\`" "$no_drawing" \
  "$python" benchmarks/gpu_steps.py physx_cpu 16 rgb+joints
check "RememberColor3, 1,024 environments, \`physx_cuda\`" "$no_physx" "$python" benchmarks/gpu_steps.py physx_cuda 1024
exit "$failed"
