#!/usr/bin/env bash
# Sets up, then runs every check: format, lint, types, tests. The slow tests (pytest's mark `slow`) come last. Further
# arguments go to pytest:
#   bash scripts/test.sh -m "not slow" -k catalog
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
exec </dev/null # nothing here asks questions; whatever tried to would hang where there is no terminal

# Both rounds of tests have a -m of their own, which has to be joined with the user's: pytest keeps only the last one.
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
bin="$root/.venv/bin"
"$bin/ruff" format --check .
"$bin/ruff" check .
"$bin/mypy"

# A process for each core, up to eight: more want more memory than they save time. OMP_NUM_THREADS: torch's threads would only
# wait for each other.
NO_TESTS=5 INTERRUPTED=2
status=$NO_TESTS
for round in "not slow" slow; do
  code=0
  OMP_NUM_THREADS=1 "$bin/python" -m pytest --numprocesses logical --maxprocesses 8 --dist loadgroup \
    -m "${marks:+($marks) and }$round" ${rest[@]+"${rest[@]}"} || code=$?
  [[ $code != "$INTERRUPTED" ]] || exit "$code"
  # No tests in one round is a failure only if there are none in the other; a failure of either round counts.
  if [[ $code != "$NO_TESTS" && ($status == "$NO_TESTS" || $status == 0) ]]; then
    status=$code
  fi
done
exit "$status"
