#!/bin/sh
# Starts Retort: finds LibTorch, then lib/retort takes the place of this shell. The program names no
# folder of libraries; the processes that `retort launch` starts inherit LD_LIBRARY_PATH. What the
# caller had in it comes last, and RETORT_OUTER_LIBRARY_PATH keeps it for the commands that a recipe
# names (rewards), which are not ours.
retort_program=$0
if [ -L "$retort_program" ]; then
  retort_program=$(readlink -f "$retort_program") || exit 3
fi
case $retort_program in */*) ;; *) retort_program=./$retort_program ;; esac
retort_package=$(CDPATH='' cd -- "${retort_program%/*}/.." && pwd) || exit 3

retort_libraries=$("$retort_package/lib/find_libtorch" "$retort_package") || exit 3
unset RETORT_FROM_PYTHON   # another package's program, which a recipe may name, has its own
export RETORT_OUTER_LIBRARY_PATH="${LD_LIBRARY_PATH-}"
export LD_LIBRARY_PATH="$retort_libraries"
exec "$retort_package/lib/retort" "$@"
