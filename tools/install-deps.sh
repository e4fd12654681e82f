#!/bin/bash
# Installs the Debian 12 packages that softrnic needs to build, run and test. Does nothing when all of
# them are installed. Usage: tools/install-deps.sh [--run-only]
set -euo pipefail

BUILD=(build-essential g++ cmake ninja-build ccache pkg-config
       libdpdk-dev libboost-dev libisal-dev libibverbs-dev librdmacm-dev
       libcli11-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libpcap-dev catch2)
RUN=(ibverbs-utils perftest tshark python3 iproute2)
TEST=(qemu-system-x86 kmod cpio busybox-static rdmacm-utils python3-scapy ucx-utils qperf iperf3 dpdk-dev iputils-ping util-linux procps clang clang-format libclang-rt-14-dev)

packages=("${BUILD[@]}" "${RUN[@]}" "${TEST[@]}")
if [[ "${1:-}" == --run-only ]]; then
  packages=("${BUILD[@]}" "${RUN[@]}")
fi

missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "install-deps: not root and no sudo; please install: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "install-deps: installing ${missing[*]}"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
