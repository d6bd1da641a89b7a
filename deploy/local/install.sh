#!/usr/bin/env bash
# Makes .venv: `install.sh run` from requirements.lock (and -gpu.lock where there is an NVIDIA GPU),
# `install.sh dev` from all three locks. Works on Debian 12 and Ubuntu 24.04 with nothing installed
# but make and Python; what the system lacks is installed where that is allowed.
#   PYTHON=python3.12        the interpreter to use
#   TORCH_INDEX_URL=...      an extra package index for torch, to choose its CPU build
set -euo pipefail
cd "$(dirname "$0")/../.."
source deploy/local/functions.sh

need() { # COMMAND-THAT-WORKS PACKAGE WHY
  eval "$1" >/dev/null 2>&1 && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing $2 ($3)"
    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$2" >/dev/null
  else
    echo "Please install $2: $3. On Debian and Ubuntu: sudo apt-get install $2" >&2
    exit 1
  fi
}

locks=(requirements.lock)
case "${1:-}" in
  run) ! command -v nvidia-smi >/dev/null || locks+=(requirements-gpu.lock) ;;
  dev) locks+=(requirements-gpu.lock requirements-dev.lock) ;;
  *) echo "usage: deploy/local/install.sh run|dev" >&2; exit 2 ;;
esac
python="${PYTHON:-python3}"
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' || {
  echo "Smelt needs Python 3.11 or 3.12; found $("$python" --version). Set PYTHON=python3.12, say." >&2
  exit 1
}
need "$python -c 'import ensurepip'" python3-venv "makes the virtual environment"
need "command -v g++" g++ "compiles Inductor engines for CPUs; serving them needs no compiler"

[ -x .venv/bin/python ] || "$python" -m venv .venv
python="$PWD/.venv/bin/python"
export PIP_DISABLE_PIP_VERSION_CHECK=1
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
uv=
get_uv "$python" "$tools" || echo "uv is not to be had here: pip installs instead, one package at a time."
use_settings_of_pip "$python"

if [ -t 1 ]; then is_terminal=yes; else is_terminal=; fi
show_progress() { # on a terminal one line that moves; elsewhere what is large, and what fails
  while read -r word next rest; do
    case "$word $next" in
      "Collecting "* | "Downloading "* | "Prepared "* | "Installing "*)
        [ ! "$is_terminal" ] || printf '\r\033[K  %s' "$word $next $rest" ;;
      [Ee]"rror"* | "ERROR"* | "hint:"* | "Caused by"* | [×╰├]*) printf '%s\n' "$word $next $rest" ;;
    esac
  done
  [ ! "$is_terminal" ] || printf '\r\033[K'
}
install() { # ARGUMENT... of `pip install`
  if [ "$uv" ]; then
    "$uv" pip install --python "$python" "$@" 2>&1 | show_progress && return
    echo "uv could not: pip installs instead, one package at a time."
    uv=
  fi
  "$python" -m pip install --progress-bar off --no-compile \
    ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} "$@" 2>&1 | show_progress
}

torch=$(sed -n 's/.*"\(torch==[^"]*\)".*/\1/p' pyproject.toml | head -1)
read -r download installed cuda_more < <(awk '
  /^# (size|torch):/ { download += $3; installed += $7 }
  /^# torch:/ { cuda_more = $13 - $3 }
  END { print download, installed, cuda_more }' "${locks[@]}")
has_cuda() { # whether that is the build of torch that the indexes offer
  [ "$uv" ] && grep -q '+ nvidia-' <<<"$("$uv" pip install --python "$python" --dry-run "$torch" 2>&1)"
}
echo "Installing $(cat "${locks[@]}" | grep -c ==) exact versions into .venv: what is not there yet of"
is_cuda=
if has_cuda; then
  is_cuda=yes
  echo "  $((download + cuda_more)) MB to download, $cuda_more MB of it for NVIDIA GPUs. For torch's CPU build, stop and"
  echo "  give make TORCH_INDEX_URL=URL, the index that pytorch.org names for pip and CPUs"
else
  echo "  $download MB to download, $installed MB installed"
fi

locked=()
for lock in "${locks[@]}"; do locked+=(-r "$lock"); done
install --no-deps --require-hashes "${locked[@]}"
if [ "$is_cuda" ]; then
  install --no-deps --require-hashes -r deploy/local/torch.lock
else
  install "$torch"
fi
drop_unused .venv
install --no-deps --no-build-isolation --editable .
