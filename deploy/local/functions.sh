# Functions of install.sh and lock.sh, which source this file in the repository's root.

# Sets $uv: the pinned installer, in a folder of its own, as it weighs 40 MB that nothing else needs.
get_uv() { # PYTHON-WITH-PIP FOLDER
  "$1" -m pip install -qq --disable-pip-version-check --no-deps --require-hashes \
    --target "$2" -r deploy/local/installer.lock && uv="$2/bin/uv"
}

# uv reads neither pip's files nor its variables. What is set for uv itself stands.
use_settings_of_pip() { # PYTHON-WITH-PIP
  local settings
  settings=$("$1" -m pip config list)
  of_pip() { sed -n "s/^[^=]*\.$1='\(.*\)'\$/\1/p" <<<"$settings" | head -1 | sed 's/\\n/ /g'; }
  set_default() { [ -z "$2" ] || [ -n "${!1:-}" ] || export "$1=$2"; }
  set_default UV_DEFAULT_INDEX "$(of_pip index-url)"
  set_default UV_EXTRA_INDEX_URL "${TORCH_INDEX_URL:-} $(of_pip extra-index-url)"
  set_default UV_FIND_LINKS "$(of_pip find-links | tr ' ' ',')"
  set_default UV_INSECURE_HOST "$(of_pip trusted-host)"
  set_default SSL_CERT_FILE "$(of_pip cert)"
  # As pip does: all indexes count. With hashes it does not matter which of them answers.
  set_default UV_INDEX_STRATEGY unsafe-best-match
}

# 300 MB that nothing here loads: tests of libraries, OpenVINO's plugins for Intel's GPUs and NPUs
# with their kernels' cache, what Ray has for Java and for reinforcement learning.
drop_unused() { # VENV
  local packages
  packages=$(echo "$1"/lib/python3.*/site-packages)
  rm -rf "$packages"/torch/{test,bin/test_*,bin/protoc*} "$packages"/ray/{jars,rllib} \
    "$packages"/openvino/libs/{libopenvino_intel_[gn]pu_plugin.so,cache.json}
  (cd "$packages" && find numpy scipy sklearn sympy -type d -name tests -prune -exec rm -rf {} + 2>/dev/null) || :
}
