#!/usr/bin/env bash
# Tests run with real servers of Debian: install_debian.sh PACKAGE, whose program is called so too.
# Installs it where that is allowed; elsewhere the tests that need it say so and skip.
set -euo pipefail
package=$1
command -v "$package" >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing $package"
  apt-get -qq update
  # The package starts a server of its own on install; a policy of 101 forbids that.
  policy=/usr/sbin/policy-rc.d
  [ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' >"$policy"; chmod +x "$policy"; made=1; }
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$package" >/dev/null
  [ -z "${made:-}" ] || rm -f "$policy"
else
  echo "$package is not installed: its tests will skip. sudo apt-get install $package" >&2
fi
