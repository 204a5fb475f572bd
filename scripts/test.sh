#!/usr/bin/env bash
# Sets up, then runs every check: format, lint, types, tests. Further arguments go to pytest:
#   bash scripts/test.sh -m "not slow" -k catalog
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
exec </dev/null # nothing here asks questions; whatever tried to would hang where there is no terminal

bash scripts/setup.sh
bin="$root/.venv/bin"
"$bin/ruff" format --check .
"$bin/ruff" check .
"$bin/mypy"
# A process for each core, up to eight: more want more memory than they save time. OMP_NUM_THREADS: torch's threads would only
# wait for each other.
OMP_NUM_THREADS=1 "$bin/python" -m pytest --numprocesses logical --maxprocesses 8 --dist loadgroup "$@"
