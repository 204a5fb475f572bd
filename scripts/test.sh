#!/usr/bin/env bash
# Runs the setup, then every check: format, lint, types, tests. Slow tests come last. Arguments go to pytest:
#   bash scripts/test.sh -m "not slow" -k catalog
#   bash scripts/test.sh --cpu-times              # ends with the CPU seconds of each file
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
exec </dev/null # a command that asks a question would wait forever if there is no terminal

bash scripts/setup.sh
# The setup has just drawn a picture. Otherwise each process of the tests would draw one first, which takes seconds. With an
# NVIDIA GPU they do, because the setup may have drawn on it, and only tests marked `gpu` see it.
if [[ "$(cat .venv/.mikasa-rendering 2>/dev/null)" == "rendering: works" ]] && ! nvidia-smi >/dev/null 2>&1; then
  export MIKASA_RENDERING=works
fi
bin="$root/.venv/bin"
"$bin/ruff" format --check .
"$bin/ruff" check .
"$bin/ruff" check --preview --select PLW1514 . # text files are UTF-8, whatever the locale is
# Not for Python 3.10: the stubs of its NumPy are older, and mypy reports a hundred errors that are none with newer ones.
if "$bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  "$bin/python" -m mypy # not "$bin/mypy", whose first line names the old place after the folder was moved
fi

# One process for each core, at most eight, because more cost more memory than they save time. OMP_NUM_THREADS=1, because with
# one process for each core further torch threads would only wait for each other.
OMP_NUM_THREADS=1 exec "$bin/python" -m pytest --numprocesses logical --maxprocesses 8 --dist loadgroup "$@"
