#!/bin/bash
# Builds softrnic and shows its main job: unmodified verbs programs talking RoCE v2 on this machine.
# Usage: tools/demo.sh            (environment: NO_INSTALL=1 does not install packages)
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n\033[1m--- %s\033[0m\n' "$*"; }

[[ "${NO_INSTALL:-0}" == 1 ]] || ./tools/install-deps.sh --run-only

step "Building (build/release)"
cmake --preset release >/dev/null
cmake --build --preset release --target softrnic softrnicd ibverbs

softrnic=$PWD/build/release/bin/softrnic
out=$(mktemp -d "${TMPDIR:-/tmp}/softrnic-demo.XXXXXX")
# One NIC process for the whole demonstration, apart from any that you already run.
export SOFTRNIC_DIR=$out/run
mkdir -m 700 "$SOFTRNIC_DIR"
trap '"$softrnic" down >/dev/null 2>&1 || true' EXIT
"$softrnic" up

step "softrnic run -- ibv_devinfo"
"$softrnic" run -- ibv_devinfo

# Waits until somebody listens on a TCP port of this machine.
wait_port() {
  local hex
  hex=$(printf '%04X' "$1")
  until grep -qsE "^ *[0-9]+: [0-9A-F]+:$hex [0-9A-F]+:0000 0A " /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done
}

# pair NAME ARG...: runs a program as server and as client through 127.0.0.1
pair() {
  local port=$((20000 + RANDOM % 10000)) server
  echo "\$ softrnic run -- $* &  softrnic run -- $* 127.0.0.1"
  "$softrnic" run -- "$@" -p "$port" >"$out/server.log" 2>&1 &
  server=$!
  wait_port "$port"
  "$softrnic" run -- "$@" -p "$port" 127.0.0.1
  wait "$server"
}

step "Two processes: a ping-pong over a reliable connection, every byte checked"
pair ibv_rc_pingpong -g 3 -c

step "Write bandwidth with perftest"
pair ib_write_bw -F -x 3 -n 5000

step "The same ping-pong with its packets captured"
"$softrnic" capture -w "$out/pingpong.pcapng" &
capture=$!
until [[ -s $out/pingpong.pcapng ]]; do sleep 0.05; done
pair ibv_rc_pingpong -g 3 -n 20
kill -INT "$capture"
wait "$capture" || true

step "What tshark says about the capture"
tshark -r "$out/pingpong.pcapng" -c 12 2>/dev/null
tshark -r "$out/pingpong.pcapng" -q -z io,phs 2>/dev/null

printf '\nThe capture is kept in %s: open it with Wireshark.\n' "$out/pingpong.pcapng"
