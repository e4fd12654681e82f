#!/bin/bash
# Measures softrnic on this machine side by side with others, and prints the ratios: processes of one host, or with
# --part network two hosts at a veth cable. Builds the release preset first. Arguments are those of tools/bench/bench.py (--help).
set -euo pipefail
cd "$(dirname "$0")/.."

[[ "${NO_INSTALL:-0}" == 1 ]] || ./tools/install-deps.sh
if [[ "${NO_BUILD:-0}" != 1 ]]; then
  cmake --preset release >/dev/null
  cmake --build --preset release --target softrnic softrnicd ibverbs switchbench
fi
exec python3 tools/bench/bench.py --build build/release "$@"
