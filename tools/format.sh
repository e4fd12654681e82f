#!/bin/bash
# Formats the C++ sources with clang-format. Usage: tools/format.sh [--check] [FILE...]
# Without files: every tracked C++ file. --check changes nothing and fails when something would change.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=(-i)
if [[ "${1:-}" == --check ]]; then
  mode=(--dry-run --Werror)
  shift
fi
if (($# > 0)); then
  files=("$@")
else
  mapfile -t files < <(git ls-files '*.h' '*.cpp' '*.c')
fi
printf '%s\0' "${files[@]}" | xargs -0 -r clang-format --style=file "${mode[@]}"
