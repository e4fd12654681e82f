#!/bin/bash
# Builds softrnic and runs its tests on a Debian 12 machine; installs what that needs.
#
# Usage: tools/test.sh [STAGE...]        (no stage: all of them, in this order)
#   release  optimised build with warnings as errors; every test but those of the stage interop
#   asan     address and undefined-behaviour sanitizers: unit tests, simulation, a subset of the programs
#   tsan     thread sanitizer: the tests that put several VFs into one process
#   fuzz     each fuzz target for FUZZ_SECONDS (30) from its seed corpus
#   apps     only the third-party programs, on the release build
#   interop  on the release build: tests on networks, against Linux's rxe in a virtual machine among others
# Environment: JOBS (number of CPUs), FUZZ_SECONDS, NO_INSTALL=1 (do not install packages).
#
# The last line says `N passed, N failed`; the exit code is 0 only when nothing failed.
set -uo pipefail
cd "$(dirname "$0")/.."

JOBS=${JOBS:-$(nproc)}
FUZZ_SECONDS=${FUZZ_SECONDS:-30}
LOGS=build/test-logs
passed=0
failed=0

say() { printf '\n=== %s (%s)\n' "$*" "$(date +%T)"; }

fail() {
  echo "FAILED: $*"
  failed=$((failed + 1))
}

# build PRESET TARGET... -- CMAKE OPTION...
build() {
  local preset=$1 targets=()
  shift
  while (($# > 0)) && [[ $1 != -- ]]; do
    targets+=("$1")
    shift
  done
  (($# > 0)) && shift
  say "build: $preset"
  cmake --preset "$preset" "$@" >"$LOGS/cmake-$preset.log" 2>&1 || {
    tail -40 "$LOGS/cmake-$preset.log"
    fail "configuring $preset"
    return 1
  }
  cmake --build "build/$preset" -j "$JOBS" --target "${targets[@]:-all}" >"$LOGS/build-$preset.log" 2>&1 || {
    grep -E -A12 'error|FAILED' "$LOGS/build-$preset.log" | head -80
    fail "building $preset"
    return 1
  }
}

# run_ctest PRESET CTEST OPTION...: runs tests and adds up the counts
run_ctest() {
  local preset=$1 log total bad
  shift
  log=$LOGS/ctest-$preset-$RANDOM.log
  say "test: $preset $*"
  ctest --test-dir "build/$preset" -j "$JOBS" --output-on-failure --no-tests=error "$@" 2>&1 | tee "$log"
  local status=${PIPESTATUS[0]}
  grep -h 'SKIPPED:' "build/$preset/Testing/Temporary/LastTest.log"
  read -r bad total < <(sed -n 's/.*tests passed, \([0-9]*\) tests failed out of \([0-9]*\).*/\1 \2/p' "$log") || true
  if [[ -z "${total:-}" ]]; then
    fail "ctest of $preset ran no test"
    return 1
  fi
  passed=$((passed + total - bad))
  failed=$((failed + bad))
  ((status == 0 || bad > 0)) || fail "ctest of $preset"
}

stage_release() {
  build release all -- -DSOFTRNIC_WERROR=ON && run_ctest release -LE interop
}

stage_apps() {
  build release all -- -DSOFTRNIC_WERROR=ON && run_ctest release -L apps
}

stage_interop() {
  build release all -- -DSOFTRNIC_WERROR=ON && run_ctest release -L interop
}

stage_asan() {
  export ASAN_OPTIONS="detect_stack_use_after_return=1:strict_string_checks=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
  export UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1"
  export SOFTRNIC_SIM_SEEDS=400  # the release stage runs ten times as many
  build asan all -- -DSOFTRNIC_WERROR=ON && run_ctest asan -LE 'apps|interop' && run_ctest asan -L apps-asan
  unset ASAN_OPTIONS UBSAN_OPTIONS SOFTRNIC_SIM_SEEDS
}

# Targets of the tsan stage: the unit tests that run the engine and the NIC process on several threads.
stage_tsan() {
  local targets=()
  for dir in nic datapath switch control; do
    compgen -G "tests/unit/$dir/*.cpp" >/dev/null && targets+=("unit_$dir")
  done
  build tsan "${targets[@]}" -- -DSOFTRNIC_WERROR=ON || return
  local pattern
  pattern="^($(IFS='|' && echo "${targets[*]}"))\$"
  # The thread sanitizer of GCC 12 cannot cope with much address randomisation: turn it off for the tests.
  export TSAN_OPTIONS="halt_on_error=0:second_deadlock_stack=1"
  setarch -R true 2>/dev/null && NO_ASLR=(setarch -R) || NO_ASLR=()
  say "test: tsan ${targets[*]}"
  for t in "${targets[@]}"; do
    local exe
    exe=$(find build/tsan -type f -name "$t" -perm -u+x | head -1)
    if "${NO_ASLR[@]}" "$exe" >"$LOGS/tsan-$t.log" 2>&1; then
      echo "passed: $t"
      passed=$((passed + 1))
    else
      tail -80 "$LOGS/tsan-$t.log"
      fail "tsan $t"
    fi
  done
  unset TSAN_OPTIONS
}

stage_fuzz() {
  if ! command -v clang++ >/dev/null; then
    echo "fuzz: no clang here, stage skipped"
    return
  fi
  local targets=()
  for source in tests/fuzz/fuzz_*.cpp; do targets+=("$(basename "$source" .cpp)"); done
  build fuzz "${targets[@]}" || return
  local found=0
  while IFS= read -r exe; do
    found=1
    local name corpus
    name=$(basename "$exe")
    say "fuzz: $name for $FUZZ_SECONDS s"
    corpus=build/fuzz/corpus/$name
    mkdir -p "$corpus"
    local seeds=()
    [[ -d tests/fuzz/corpus/$name ]] && seeds=("tests/fuzz/corpus/$name")
    if "$exe" -max_total_time="$FUZZ_SECONDS" -timeout=20 -rss_limit_mb=4096 -artifact_prefix="build/fuzz/$name-" \
      "$corpus" "${seeds[@]}" >"$LOGS/$name.log" 2>&1; then
      tail -1 "$LOGS/$name.log"
      passed=$((passed + 1))
    else
      tail -60 "$LOGS/$name.log"
      fail "$name (input kept in build/fuzz/)"
    fi
  done < <(find build/fuzz -type f -name 'fuzz_*' -perm -u+x | sort)
  ((found == 1)) || fail "no fuzz target was built"
}

stages=("$@")
((${#stages[@]} > 0)) || stages=(release interop asan tsan fuzz)
for s in "${stages[@]}"; do
  if ! declare -F "stage_$s" >/dev/null; then
    sed -n '2,13p' "$0" | sed 's/^# \{0,1\}//' >&2
    exit 2
  fi
done

if [[ "${NO_INSTALL:-0}" != 1 ]]; then
  ./tools/install-deps.sh || exit 1
fi
mkdir -p "$LOGS"
for s in "${stages[@]}"; do
  "stage_$s"
done
say "done"
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
