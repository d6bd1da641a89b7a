#!/usr/bin/env bash
# Makes .venv from requirements.lock. Works on Debian 12 and Ubuntu 24.04 with nothing
# installed but make and Python; what the system lacks is installed where that is allowed.
#   PYTHON=python3.12        the interpreter to use
#   TORCH_INDEX_URL=...      an extra package index for torch, to choose its CPU build
set -euo pipefail
cd "$(dirname "$0")/../.."

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

python="${PYTHON:-python3}"
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' || {
  echo "Smelt needs Python 3.11 or 3.12; found $("$python" --version). Set PYTHON=python3.12, say." >&2
  exit 1
}
need "$python -c 'import ensurepip'" python3-venv "makes the virtual environment"
need "command -v g++" g++ "compiles Inductor engines for CPUs; serving them needs no compiler"

[ -x .venv/bin/python ] || "$python" -m venv .venv
export PIP_DISABLE_PIP_VERSION_CHECK=1
.venv/bin/python -m pip install --quiet --upgrade pip==26.3

total=$(grep -c == requirements.lock)
if [ -t 1 ]; then is_terminal=yes; else is_terminal=; fi
show() { if [ "$is_terminal" ]; then printf '\r\033[K%s' "$1"; else echo "$1"; fi; }
show_progress() { # one line that moves on a terminal, every 25th package in a log
  n=0
  # Not awk: mawk keeps what it reads from a pipe until it has a block of it.
  while read -r word next rest; do
    case "$word $next" in
      "Collecting "*)
        n=$((n + 1))
        if [ "$is_terminal" ] || [ $((n % 25)) = 0 ]; then show "  $n of about $total: $next"; fi ;;
      "Downloading "*) [ ! "$is_terminal" ] || show "  $n of about $total: downloading $next $rest" ;;
      "Installing collected"*) show "  unpacking $total packages" ;;
      ERROR*) show "$word $next $rest"; echo ;;
    esac
  done
  [ ! "$is_terminal" ] || printf '\r\033[K'
}
echo "Installing $total exact versions into .venv (a few minutes the first time)"
.venv/bin/python -m pip install --progress-bar off \
  ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} -r requirements.lock | show_progress
.venv/bin/python -m pip install -qq --no-deps --editable .
