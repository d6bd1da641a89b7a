#!/usr/bin/env bash
# Tests scrape with a real Prometheus. Installs Debian's package where that is allowed;
# elsewhere the tests that need it say so and skip (under CI=true a skip is a failure).
set -euo pipefail
command -v prometheus >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing prometheus"
  apt-get -qq update
  # The package starts a server of its own on install; a policy of 101 forbids that.
  policy=/usr/sbin/policy-rc.d
  [ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' >"$policy"; chmod +x "$policy"; made=1; }
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends prometheus >/dev/null
  [ -z "${made:-}" ] || rm -f "$policy"
else
  echo "prometheus is not installed: its tests will skip. sudo apt-get install prometheus" >&2
fi
