#!/usr/bin/env bash
# Makes .venv at the root of the checkout, installs this project into it (editable, extra `dev`) and installs a Vulkan driver
# if SAPIEN cannot render. It can be run again: steps that are done are skipped.
#
#   bash scripts/setup.sh                     set everything up
#   bash scripts/setup.sh --check-rendering   only check whether SAPIEN can render; exit code 0 if so, else 1
#
#   PYTHON=python3.12                         the interpreter that .venv is made from, or that is checked
#   MIKASA_TORCH_INDEX=https://download.pytorch.org/whl/cpu
#                                             an extra index for PyTorch; PyPI's Linux wheel includes CUDA
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"
stamp="$venv/.mikasa-setup"

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Prints one line that says whether SAPIEN can render; succeeds if it can.
check_rendering() {
  local python="$1" answer
  # Mesa's software driver is SAPIEN's "cpu".
  if answer="$("$python" - cuda cpu <"$root/mikasa_robo/sim/draw_box.py" 2>&1)"; then
    echo "rendering: works"
  else
    # The exception is the last line; the lines above it are the driver's messages.
    echo "rendering: does not work because $(tail -n 1 <<<"${answer:-"$python says nothing"}")"
    return 1
  fi
}

if [[ "${1:-}" == "--check-rendering" ]]; then
  check_rendering "${PYTHON:-$venv/bin/python}"
  exit
elif [[ $# -gt 0 ]]; then
  fail "unknown argument '$1'; the only one is --check-rendering"
fi

# ---- Python -----------------------------------------------------------------------------------------------------------
python="${PYTHON:-python3}"
command -v "$python" >/dev/null || fail "'$python' does not exist; install Python 3.10, 3.11 or 3.12, or set PYTHON to its path"
# PYTHON decides only what a new .venv is made from. One that is there is not replaced: somebody may have installed things in it.
version='import sys; print("%d.%d" % sys.version_info[:2])'
if [[ -x "$venv/bin/python" ]] && has="$("$venv/bin/python" -c "$version" 2>/dev/null)"; then
  case "$has" in
    3.10 | 3.11 | 3.12) ;;
    *) fail "$venv is of Python $has; move it away, and set PYTHON to an interpreter of version 3.10, 3.11 or 3.12" ;;
  esac
  if [[ -n "${PYTHON:-}" && "$has" != "$("$python" -c "$version")" ]]; then
    fail "$venv is of Python $has, and PYTHON=$PYTHON is another version; move $venv away, or leave PYTHON out"
  fi
fi
fingerprint="$(cat "$root/pyproject.toml" "$root/constraints.txt" "${BASH_SOURCE[0]}" | cksum) $root"

if [[ -x "$venv/bin/python" && "$(cat "$stamp" 2>/dev/null)" == "$fingerprint" ]]; then
  say "$venv is up to date"
else
  # Without pip it is what an attempt left that was stopped, or that lacked python3-venv. It is completed: nothing in it is lost.
  if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' ||
      fail "$("$python" --version) cannot be used; set PYTHON to an interpreter of version 3.10, 3.11 or 3.12"
    say "making $venv with $("$python" --version)"
    "$python" -m venv "$venv" ||
      fail "'$python -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv, then run this again"
  fi
  rm -f "$stamp"
  torch_index=()
  if [[ -n "${MIKASA_TORCH_INDEX:-}" ]]; then
    torch_index=(--extra-index-url "$MIKASA_TORCH_INDEX")
  elif [[ "$(uname -s)" == Linux ]] && ! nvidia-smi >/dev/null 2>&1; then
    say "no NVIDIA GPU found; if pip downloads gigabytes of CUDA for PyTorch, stop it and run this again with"
    say "  MIKASA_TORCH_INDEX=https://download.pytorch.org/whl/cpu"
  fi
  # --no-compile: to compile all 24,000 files takes 40 s of one core, and most are never imported. Python compiles the others
  # when they are first imported.
  pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-input --no-compile
    -c "$root/constraints.txt")
  say "installing PyTorch"
  # The array is written in this way because bash 4.3 and older treat an empty one as unset.
  "${pip[@]}" ${torch_index[@]+"${torch_index[@]}"} torch
  say "installing mikasa-suite and its development tools"
  "${pip[@]}" -e "$root[dev]"
  printf '%s\n' "$fingerprint" >"$stamp"
fi

# ---- Rendering --------------------------------------------------------------------------------------------------------
# SAPIEN renders with Vulkan. `state` observations do not need it, so a failure here does not fail the setup.
why_no_driver=""
install_driver() {
  if compgen -G '/usr/share/vulkan/icd.d/nvidia*.json' >/dev/null || compgen -G '/etc/vulkan/icd.d/nvidia*.json' >/dev/null; then
    why_no_driver="the GPU has its own Vulkan driver, with which SAPIEN cannot render; fix or update that driver"
    return 1
  fi
  if ! command -v apt-get >/dev/null; then
    why_no_driver="there is no apt-get; install a Vulkan driver by hand (Mesa 23 or newer, its lavapipe is enough)"
    return 1
  fi
  local ID="" VERSION_CODENAME="" suite=()
  # shellcheck disable=SC1091
  . /etc/os-release
  if [[ "$ID" == debian && "$VERSION_CODENAME" == bookworm ]]; then
    suite=(-t bookworm-backports) # Mesa 22.3, Debian 12's own, does not work with SAPIEN; version 25 of the backports does
  fi
  if [[ "$(id -u)" != 0 ]]; then
    why_no_driver="this needs root: sudo bash scripts/setup.sh, or ask for the packages mesa-vulkan-drivers and libvulkan1"
    [[ ${#suite[@]} == 0 ]] || why_no_driver+=" from bookworm-backports"
    return 1
  fi
  say "installing Mesa's Vulkan driver"
  if [[ ${#suite[@]} != 0 ]] && ! grep -rqsE '^[^#]*bookworm-backports' /etc/apt/sources.list /etc/apt/sources.list.d; then
    cat >/etc/apt/sources.list.d/bookworm-backports.sources <<'SOURCES'
Types: deb
URIs: http://deb.debian.org/debian
Suites: bookworm-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
  fi
  local log
  if ! log="$(apt-get update -qq 2>&1 </dev/null &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq ${suite[@]+"${suite[@]}"} --no-install-recommends \
      mesa-vulkan-drivers libvulkan1 2>&1 </dev/null)"; then
    why_no_driver="apt-get failed: $(tail -n 1 <<<"$log")"
    return 1
  fi
}

if ! rendering="$(check_rendering "$venv/bin/python")"; then
  if install_driver; then
    rendering="$(check_rendering "$venv/bin/python")" || true
  else
    say "no Vulkan driver installed: $why_no_driver"
    say "state observations work without one; images and videos do not"
  fi
fi
say "$rendering"
printf '%s\n' "$rendering" >"$venv/.mikasa-rendering"

# ---- EGL --------------------------------------------------------------------------------------------------------------
# MuJoCo renders MemoryMaze with it; nothing else here needs it.
if [[ "$(uname -s)" == Linux ]] && ! { ldconfig -p 2>/dev/null || true; } | grep -q 'libEGL\.so\.1'; then
  if [[ "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
    say "installing libegl1"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libegl1; } \
      >/dev/null 2>&1 </dev/null || say "libegl1 could not be installed: MemoryMaze needs it, or MUJOCO_GL=osmesa or glfw"
  else
    say "no libEGL.so.1: MemoryMaze needs it (sudo apt-get install libegl1), or MUJOCO_GL=osmesa or glfw"
  fi
fi
