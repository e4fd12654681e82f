#!/bin/sh
# check_symbols.sh LIBRARY RECORDED: every symbol and version of the stock library is in LIBRARY, as a default version or a
# hidden one just as there, and LIBRARY exports nothing outside the ABI. RECORDED is stock_symbols_44.txt; where the stock
# library of that version is installed, it is compared too.
set -eu
library=$1
recorded=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

symbols() {
  objdump -T "$1" | grep -v '\*UND\*\|\*ABS\*' | awk '/IBVERBS_/ {
    name = $NF; version = $(NF - 1)
    if (version ~ /^\(/) { gsub(/[()]/, "", version); print name "@" version } else print name "@@" version
  }' | LC_ALL=C sort
}

symbols "$library" > "$work/ours"
grep -v '^#' "$recorded" | LC_ALL=C sort > "$work/recorded"
status=0
missing=$(LC_ALL=C comm -13 "$work/ours" "$work/recorded")
if [ -n "$missing" ]; then
  echo "missing:"
  echo "$missing"
  status=1
fi

foreign=$(objdump -T "$library" | grep -v '\*UND\*\|\*ABS\*\|IBVERBS_\|^$\|file format\|DYNAMIC SYMBOL' || true)
if [ -n "$foreign" ]; then
  echo "exported without a version of the ABI:"
  echo "$foreign"
  status=1
fi

for stock in /usr/lib/*/libibverbs.so.1.14.44.0 /usr/lib64/libibverbs.so.1.14.44.0; do
  [ -e "$stock" ] || continue
  symbols "$stock" > "$work/stock"
  if ! cmp -s "$work/stock" "$work/recorded"; then
    echo "the recorded list differs from $stock:"
    diff "$work/stock" "$work/recorded" || true
    status=1
  fi
done
exit $status
