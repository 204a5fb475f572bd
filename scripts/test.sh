#!/usr/bin/env bash
# Runs the setup, then every check: format, lint, types, tests. The tests run in two rounds, first those without pytest's mark
# `slow`, then those with it. Arguments go to pytest:
#   bash scripts/test.sh -m "not slow" -k catalog
#   bash scripts/test.sh --cpu-times              # ends each round with the CPU seconds of each file
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
exec </dev/null # a command that asks a question would wait forever if there is no terminal

# Each round has its own -m, which must be combined with the user's, because pytest uses only the last -m.
marks="" rest=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    -m) marks="${2:?"-m needs an expression, such as -m 'not slow'"}"; shift ;;
    -m?*) marks="${1#-m}"; marks="${marks#=}" ;;
    *) rest+=("$1") ;;
  esac
  shift
done

bash scripts/setup.sh
# The setup has just drawn a picture. Otherwise each process of the tests would draw one first, which takes seconds. With an
# NVIDIA GPU they do, because the setup may have drawn on it, and only tests marked `gpu` see it.
if [[ "$(cat .venv/.mikasa-rendering 2>/dev/null)" == "rendering: works" ]] && ! nvidia-smi >/dev/null 2>&1; then
  export MIKASA_RENDERING=works
fi
bin="$root/.venv/bin"
"$bin/ruff" format --check .
"$bin/ruff" check .
# Not for Python 3.10: the stubs of its NumPy are older, and mypy reports a hundred errors that are none with newer ones.
if "$bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  "$bin/python" -m mypy # not "$bin/mypy", whose first line names the old place after the folder was moved
fi

# One process for each core, at most eight, because more cost more memory than they save time. OMP_NUM_THREADS=1, because with
# one process for each core further torch threads would only wait for each other.
NO_TESTS=5 INTERRUPTED=2
status=$NO_TESTS
for round in "not slow" slow; do
  code=0
  OMP_NUM_THREADS=1 "$bin/python" -m pytest --numprocesses logical --maxprocesses 8 --dist loadgroup \
    -m "${marks:+($marks) and }$round" ${rest[@]+"${rest[@]}"} || code=$?
  [[ $code != "$INTERRUPTED" ]] || exit "$code"
  # A round without tests is a failure only if the other has none either. A failure of either round counts.
  if [[ $code != "$NO_TESTS" && ($status == "$NO_TESTS" || $status == 0) ]]; then
    status=$code
  fi
done
exit "$status"
