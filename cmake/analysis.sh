# Sourced by dev: programs that look for mistakes in what is compiled with instruments.

# ---- fuzzing -------------------------------------------------------------------------------------
FUZZ_CLANG=16   # the first one of Debian that has std::source_location
FUZZ_PACKAGES=("clang-$FUZZ_CLANG" "libclang-rt-$FUZZ_CLANG-dev")

# cmd_fuzz [--seconds N] [TARGET]: N seconds for all targets together, as many at once as there are
# jobs, or for that one. What a run finds on the way is kept in build/fuzz/corpus, where the next
# run begins.
cmd_fuzz() {
  local seconds=60 wanted=()
  while [[ $# -gt 0 ]]; do
    case $1 in
      --seconds)
        [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || usage "--seconds needs a number"
        seconds=$2
        shift
        ;;
      -*) usage "fuzz has no option '$1'" ;;
      *) wanted+=("$1") ;;
    esac
    shift
  done

  install_packages "${FUZZ_PACKAGES[@]}"
  BUILD=$ROOT/build/fuzz
  CMAKE_EXTRA=(-DRETORT_FUZZ=ON -DRETORT_BENCH=OFF -DCMAKE_C_COMPILER="clang-$FUZZ_CLANG"
    -DCMAKE_CXX_COMPILER="clang++-$FUZZ_CLANG")
  build retort_fuzz

  local fuzzer=$BUILD/bin/retort_fuzz corpus=$BUILD/corpus targets target
  mapfile -t targets < <("$fuzzer" --list)
  [[ ${#wanted[@]} -gt 0 ]] || wanted=("${targets[@]}")
  for target in "${wanted[@]}"; do
    [[ " ${targets[*]} " == *" $target "* ]] || die "no fuzz target '$target': ${targets[*]}"
  done
  "$fuzzer" --seeds="$corpus"

  local jobs running=0 status=0 each
  jobs=$(num_jobs)
  if [[ $jobs -gt ${#wanted[@]} ]]; then jobs=${#wanted[@]}; fi
  each=$(((seconds * jobs + ${#wanted[@]} - 1) / ${#wanted[@]}))
  for target in "${wanted[@]}"; do
    fuzz_one "$target" "$each" &
    running=$((running + 1))
    if [[ $running -eq $jobs ]]; then
      wait -n || status=1
      running=$((running - 1))
    fi
    if [[ $status -ne 0 ]]; then break; fi
  done
  for (( ; running > 0; running--)); do wait -n || status=1; done
  return $status
}

# Stops at the first input that breaks something, and says where that input lies. In a shell of its
# own, which it may end.
fuzz_one() {
  local target=$1 seconds=$2 found=$BUILD/found/$1 folders=("$BUILD/corpus/$1") log
  log=$BUILD/$target.log
  # What tests/fuzz/target.h allows; templates and tables have limits of their own.
  local memory=64
  if [[ $target == chat_template || $target == table_rows ]]; then memory=512; fi
  mkdir -p "$found"
  if [[ -d tests/fuzz/corpus/$target ]]; then folders+=("tests/fuzz/corpus/$target"); fi
  if ! "$fuzzer" --target="$target" -max_total_time="$seconds" -max_len=8192 -timeout=10 \
    -malloc_limit_mb="$memory" -rss_limit_mb=2048 -artifact_prefix="$found/" -print_final_stats=1 \
    "${folders[@]}" >"$log" 2>&1; then
    tail -n 60 "$log" >&2
    printf 'error: the fuzz target %s breaks; the input: %s\n' "$target" \
      "$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)" >&2
    printf 'run it again with: %s --target=%s INPUT\n' "$fuzzer" "$target" >&2
    exit 1
  fi
  say "$target: $(sed -n 's/^Done \([0-9]* runs\) in.*/\1/p' "$log")"
}

# ---- sanitizers ----------------------------------------------------------------------------------
# cmake/RetortSanitize.cmake says what is run and what is left out, with reasons. The short form is
# for CI: programs that compile quickly, without LibTorch's headers, and read bytes of strangers.
SANITIZED_SHORT=(base_test http_test)

# cmd_sanitize [asan|tsan] [--short | --program NAME]... [CTEST ARGUMENTS]
cmd_sanitize() {
  local kind=asan sanitizers targets=(sanitized_tests) chosen=(-L '^sanitized_tests$')
  local built status=0 programs=()
  if [[ $# -gt 0 && $1 != -* ]]; then
    kind=$1
    shift
  fi
  case $kind in
    asan) sanitizers=address,undefined ;;
    tsan) sanitizers=thread ;;
    *) usage "sanitize knows asan and tsan, not '$kind'" ;;
  esac
  while [[ ${1:-} == --short || ${1:-} == --program ]]; do
    if [[ $1 == --short ]]; then
      programs+=("${SANITIZED_SHORT[@]}")
    else
      [[ $# -gt 1 ]] || usage "--program needs a name"
      programs+=("$2")
      shift
    fi
    shift
  done
  if [[ ${#programs[@]} -gt 0 ]]; then
    targets=("${programs[@]}")
    chosen=(-R "^($(IFS='|' && printf '%s' "${targets[*]}"))\$")
  fi

  BUILD=$ROOT/build/sanitize-$kind
  CMAKE_EXTRA=(-DCMAKE_BUILD_TYPE=Debug -DRETORT_SANITIZE="$sanitizers" -DRETORT_BENCH=OFF)
  SECONDS=0
  if [[ $kind == asan && ${#programs[@]} -eq 0 ]]; then setup_llamacpp; fi
  build "${targets[@]}"
  built=$SECONDS
  ctest --test-dir "$BUILD" --output-on-failure --parallel "$(num_jobs)" --no-tests=error \
    "${chosen[@]}" "$@" || status=$?
  print_skipped
  say "sanitize $kind: built in $built s, run in $((SECONDS - built)) s"
  return $status
}
