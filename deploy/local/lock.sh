#!/usr/bin/env bash
# Writes the locks: the newest versions that pyproject.toml admits, or with KEEP=1 those that are
# locked already and, of what pyproject.toml asks for since, the newest.
#   TORCH_INDEX_URL=...      where torch's CPU build is, whose size is measured
set -euo pipefail
cd "$(dirname "$0")/../.."
source deploy/local/functions.sh
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
"${PYTHON:-python3}" -m venv "$fresh/pip"
python="$fresh/pip/bin/python"
get_uv "$python" "$fresh/uv"

cp pyproject.toml README.md LICENSE "$fresh"
if [ -n "${KEEP:-}" ]; then
  { printf '\n[tool.uv]\nconstraint-dependencies = ['
    sed -n 's/^\([A-Za-z][^ ;]*==[^ ;\\]*\).*/"\1",/p' requirements*.lock
    echo ']'; } >>"$fresh/pyproject.toml"
fi
"$uv" lock --quiet --project "$fresh" --fork-strategy fewest
for extra in demo rtx dev; do
  "$uv" export --quiet --project "$fresh" --frozen --extra "$extra" --no-emit-project \
    --no-annotate --no-header --no-hashes >"$fresh/$extra.txt"
done

# What is installed is measured with the CPU build, without the files compiled at first use.
use_settings_of_pip "$python"
"$uv" venv --quiet --python "$python" "$fresh/venv"
sizes=()
add() { # NAME REQUIREMENT...
  local before
  before=$(du -sBMB "$fresh/venv" | cut -dM -f1)
  "$uv" pip install --quiet --python "$fresh/venv" --no-deps "${@:2}"
  drop_unused "$fresh/venv"
  sizes+=("$1=$(($(du -sBMB "$fresh/venv" | cut -dM -f1) - before))")
}
torch=$(grep -oE '^torch==[^ ]+' "$fresh/demo.txt")
add torch "$torch"
compgen -G "$fresh/venv/lib/python3*/site-packages/torch-*cpu.dist-info" >/dev/null || {
  echo "make lock measures torch's CPU build, and found another: give TORCH_INDEX_URL" >&2
  exit 1
}
"$python" -m pip download -qq --no-deps --dest "$fresh/wheel" \
  ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} "$torch"
sizes+=("torch_download=$(du -sBMB "$fresh/wheel" | cut -dM -f1)")
for extra in demo rtx dev; do
  # triton is the tests' too, and torch's CUDA build brings the same.
  left_out='torch|triton|cuda-|nvidia-'
  [ "$extra" != dev ] || left_out='torch|cuda-|nvidia-'
  grep -vE "^($left_out)=?" "$fresh/$extra.txt" >"$fresh/$extra.in"
  add "$extra" -r "$fresh/$extra.in"
done
"$fresh/venv/bin/python" deploy/local/lock.py "$fresh" "${sizes[@]}"
