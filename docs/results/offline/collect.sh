#!/usr/bin/env bash
# The data of table.toml: 250 episodes of the expert of each task whose ID fits the pattern, by default of all 32 (about 400 MB).
#   bash docs/results/offline/collect.sh 'RememberColor*'
# What is there already is left as it is; what was interrupted goes on.
set -euo pipefail
pattern="${1:-*}"
here="$(dirname "${BASH_SOURCE[0]}")"
sed -n '/^tasks = \[/,/^\]/s/^ *"\(.*\)",$/\1/p' "$here/table.toml" | while read -r task; do
  # shellcheck disable=SC2053  # it is a pattern
  [[ $task == $pattern ]] || continue
  arm=held
  [[ $task == Intercept* ]] && arm=free # as in table.toml
  out="runs/offline/data/$task"
  [[ -e $out/manifest.json ]] && continue
  mkdir -p "$(dirname "$out")"
  mikasa collect --env-id "$task" --arm "$arm" --episodes 250 --noise 0.1 --no-states --out "$out"
done
