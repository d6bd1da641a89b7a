#!/usr/bin/env bash
# On a GPU machine: builds, proves and publishes an engine of each name below FOLDER at the same
# time, with torch.compile's caches beside them; then times each alone, which takes turns.
#   zoo_on_device.sh build FOLDER NAME...     (names of tests/benchmarks/gpu/sources.py)
#   zoo_on_device.sh times FOLDER NAME...
set -euo pipefail
cd "$(dirname "$0")/../../.."
# Max-autotune takes minutes for each shape, more beside others: torch.compile's modes are these.
MODES=${MODES:-reduce-overhead}
step=$1 folder=$2
shift 2
mkdir -p "$folder"
use_caches() { # of one name and compiler
  export TORCHINDUCTOR_CACHE_DIR=$folder/$1-$2/inductor TRITON_CACHE_DIR=$folder/$1-$2/triton
}
build() {
  use_caches "$1" engine
  python3 -m tests.benchmarks.gpu.engine_build "$folder/$1" "$folder/cache-$1" "$1" >"$folder/$1.log" 2>&1 &&
    grep -E "^$1(:| built| proven)" "$folder/$1.log" || { echo "$1: failed"; tail -12 "$folder/$1.log"; }
}
compile() {
  use_caches "$1" compile
  timeout 150 python3 -m tests.benchmarks.gpu.engine_times --only-compile "$1" $MODES >"$folder/$1.compile.log" 2>&1 ||
    { echo "$1: not compiled by torch.compile"; tail -3 "$folder/$1.compile.log"; }
}
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -1
python3 -c 'import torch, triton; print("torch", torch.__version__, "triton", triton.__version__)'
for name in "$@"; do
  if [ "$step" = build ]; then
    build "$name" &
    compile "$name" &
  else
    use_caches "$name" compile
    timeout 135 python3 -m tests.benchmarks.gpu.engine_times "$folder/$name" "$name" $MODES 2>"$folder/err" ||
      { echo "$name: failed"; tail -8 "$folder/err"; }
  fi
done
wait
