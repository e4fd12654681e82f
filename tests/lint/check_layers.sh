#!/bin/bash
# Checks the rules on what may depend on what, and that the sources name no path of somebody's machine.
#
# Usage: check_layers.sh SOURCE_DIR [PROTOCOLS_LIBRARY]
# Prints each violation as FILE:LINE:HEADER or SYMBOL below its rule; exit code 1 when there was one.
set -uo pipefail
cd "$1" || exit 2
library=${2:-}
violations=0

# none_of RULE: every line of the input violates the rule
none_of() {
  local lines
  lines=$(cat)
  [[ -z $lines ]] && return
  printf '%s:\n' "$1"
  sed 's/^/  /' <<<"$lines"
  violations=$((violations + $(wc -l <<<"$lines")))
}

# FILE:LINE:HEADER of every include directive below the directories, <> and "" kept
includes() {
  local dirs=()
  for d in "$@"; do [[ -e $d ]] && dirs+=("$d"); done
  ((${#dirs[@]} == 0)) && return
  grep -rnE --include='*.h' --include='*.cpp' --include='*.c' --include='*.S' '^[[:space:]]*#[[:space:]]*include' \
    "${dirs[@]}" | sed -E 's/^([^:]*:[0-9]+:)[^<"]*([<"][^>"]*[>"]).*$/\1\2/'
}

# protocols/: the standard library without clocks, threads, files and random devices; intrinsics; ISA-L; itself.
none_of "protocols/ includes only the standard library, intrinsics, ISA-L and protocols/" < <(
  includes protocols | grep -vE ':<isa-l/[a-z0-9_]+\.h>$|:<immintrin\.h>$|:<[a-z_0-9]+>$|:"protocols/')
impure='chrono|condition_variable|filesystem|fstream|future|iostream|latch|mutex|random|semaphore|shared_mutex|stop_token|thread'
none_of "protocols/ knows no clocks, threads, files and random devices" < <(
  includes protocols | grep -E ":<($impure)>$")

# What runs inside applications.
guest=(engine/nic engine/datapath engine/control/client verbs_shim)
none_of "code in applications includes no DPDK, Boost and other libraries of the NIC process" < <(
  includes "${guest[@]}" | grep -E ':[<"](boost/|rte_|spdlog/|fmt/|CLI/|nlohmann/)')
none_of "code in applications does not include the NIC process" < <(
  includes "${guest[@]}" | grep -E ':"engine/(switch|ports|observe|control/server)/')
none_of "code in applications has no static constructors and no threads of the library" < <(
  includes "${guest[@]}" | grep -E ':<(iostream|fstream|thread|future|regex)>$')

# tools -> verbs_shim, engine -> protocols; nothing points back.
none_of "engine/ includes no layer above it" < <(includes engine | grep -E ':"(tools|verbs_shim)/')
none_of "verbs_shim/ includes no layer above it" < <(includes verbs_shim | grep -E ':"tools/')
none_of "only tests include tests" < <(includes protocols engine verbs_shim tools | grep -E ':"tests/')
none_of "includes start at the top of the tree" < <(
  includes protocols engine verbs_shim tools tests | grep -E ':"(\./|\.\./)')

# The protocols' object code asks for no clock, thread, file or socket.
if [[ -n $library ]]; then
  forbidden='clock_.*|gettimeofday|time|times|nanosleep|usleep|sleep|random|rand|srand|rand_r|getrandom|getentropy'
  forbidden+='|socket|connect|bind|accept4?|send(to|msg|mmsg)?|recv(from|msg|mmsg)?|poll|epoll_.*|select|ioctl|fcntl'
  forbidden+='|open(at)?(64)?|close|p?readv?(64)?|p?writev?(64)?|fopen(64)?|fread|fwrite|f?printf|puts|__f?printf_chk'
  forbidden+='|mmap(64)?|munmap|syscall|getenv|pthread_.*|thrd_.*|sem_.*|dlopen|dlsym'
  forbidden+='|_ZNSt6thread.*|_ZNSt6chrono.*3nowEv|_ZNSt13random_device.*'
  symbols=$(nm -u --no-demangle "$library") || exit 2
  none_of "protocols/ calls neither the system nor the C library's I/O" < <(
    awk '/ U /{sub(/@.*/, "", $2); print $2}' <<<"$symbols" | sort -u | grep -xE "$forbidden")
fi

# Paths of the machine that something was written on say nothing to a reader.
paths='(^|[^[:alnum:]_.])/(work|home|root)/|(^|[^[:alnum:]_/-])share[d]/'
none_of "no file names a path of one machine" < <(
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git grep -nIE "$paths" -- . ':!tests/lint/check_layers.sh'
  else
    grep -rnIE --exclude-dir=build --exclude=check_layers.sh "$paths" .
  fi | cut -c1-200)

if ((violations > 0)); then
  echo "$violations violations"
  exit 1
fi
echo "no violations"
