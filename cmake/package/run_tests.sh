#!/bin/sh
# tests/run: runs the tests of a package on this machine's GPUs, one after the other.
#   tests/run                      all tests
#   tests/run NAME [ARGUMENT...]   one program, a test or a benchmark, with its arguments
#   tests/run --list               their names
package=$(CDPATH='' cd -- "${0%/*}/.." && pwd) || exit 3
tests=$package/tests

if [ "${1:-}" = --list ]; then
  for program in "$tests"/*_test "$tests"/*_bench; do
    if [ -x "$program" ]; then printf '%s\n' "${program##*/}"; fi
  done
  exit 0
fi
if [ $# -gt 0 ] && [ ! -x "$tests/$1" ]; then
  printf "error: there is no program '%s'; tests/run --list names them\n" "$1" >&2
  exit 2
fi

libraries=$("$package/lib/find_libtorch" "$package") || exit 3
export LD_LIBRARY_PATH="$libraries"
export RETORT_BIN="$package/lib/retort"
export RETORT_SOURCE_DIR="$tests"   # whose tests/recipes/goldens they look for
export RETORT_CUDA_MODULE="${RETORT_CUDA_MODULE:-$package/lib/libretort_cuda.so}"
export OMP_WAIT_POLICY=passive

if [ $# -gt 0 ]; then
  name=$1
  shift
  exec "$tests/$name" "$@"
fi

# A test that hangs ends after the time that ctest gives it.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
limit=
if command -v timeout >/dev/null; then limit="timeout --kill-after=10 900"; fi
failed=
for program in "$tests"/*_test; do
  printf '== %s\n' "${program##*/}"
  $limit "$program" || failed="$failed ${program##*/}"
done
if [ -n "$failed" ]; then
  printf '== failed:%s\n' "$failed"
  exit 1
fi
printf '== no test failed; those that were skipped say so above\n'
