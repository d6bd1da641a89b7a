#!/usr/bin/env bash
# Tests scrape with a real Prometheus, and `smelt up --observe` starts one; under CI=true a skip
# of its tests is a failure.
exec "$(dirname "$0")/install_debian.sh" prometheus
