# RETORT_SANITIZE=address,undefined or thread: our code is instrumented, LibTorch and the other
# libraries are not. `./dev sanitize` and the presets asan and tsan build and run the target
# sanitized_tests, which is also a label of ctest.
set(RETORT_SANITIZE "" CACHE STRING "sanitizers for -fsanitize=: address,undefined or thread")
if(NOT RETORT_SANITIZE MATCHES "^(address,undefined|thread|)$")
  message(
    FATAL_ERROR
    "RETORT_SANITIZE='${RETORT_SANITIZE}' is not known: address,undefined or thread"
  )
endif()

# Under address,undefined every test is run but those of these labels, which `./dev test` leaves out
# too or skips without a device.
set(RETORT_UNSANITIZED_LABELS engines engines_large gpu)
# And but these, each for its reason.
set(RETORT_NOT_UNDER_ASAN)

# Under thread: what hands work from thread to thread. Other tests use the same code, and LibTorch
# besides, whose own threads the sanitizer cannot follow.
set(
  RETORT_UNDER_TSAN
  base_test # futures, queues, deadlines, the log
  engine_process_test # a process and the thread that watches it
  generator_test # the generator's requests, callers and weights
  http_fault_test # the client's connections when servers break them
  http_test # its pool, and the server
  parallel_device_test # the thread that watches collectives
  rpc_agent_test # the loop, handlers' threads, TensorPipe's
  rpc_fault_test
  rpc_rendezvous_test # the store, and the links of supervision
  rpc_stand_in_test
  rpc_transport_test
  rpc_unit_test
  supervisor_test # the launcher's loop, its writer, its observers
  teacher_test # the teacher's queue and its answers
  weight_sync_test # weights that are staged while others are used
)

if(RETORT_SANITIZE)
  # As Debug, but of debugging information only the lines that a report names. -O1 compiles twice as
  # long, and its warnings follow values into the sanitizers' own code.
  add_compile_options(
    -fsanitize=${RETORT_SANITIZE}
    -fno-sanitize-recover=all
    -fno-sanitize=vptr # looks at memory through a pipe: fails in a process without descriptors
    -fno-omit-frame-pointer
    -g1
  )
  # Programs lie where they were linked: ten million addresses need not be set at each start, and a
  # test starts many processes. gold links such a program in a third of the time (7 core seconds for
  # 19), and there are as many programs as tests.
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=gold RETORT_HAS_GOLD)
  add_link_options(
    -fsanitize=${RETORT_SANITIZE}
    $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-no-pie>
    $<$<BOOL:${RETORT_HAS_GOLD}>:-fuse-ld=gold>
  )
  if(RETORT_SANITIZE STREQUAL thread)
    # Boost.Asio has a fence around each handler, which the sanitizer does not see; g++ warns of it.
    # Handlers pass through a mutex besides, which it does see.
    add_compile_options(-Wno-tsan)
  endif()
  add_custom_target(sanitized_tests)
  if(NOT RETORT_SANITIZE STREQUAL thread)
    add_dependencies(sanitized_tests retort) # which tests start (RETORT_BIN)
  endif()
endif()

# What a sanitizer is told at run time, for a test and all processes that it starts. Freed memory is
# kept from use for a while, 256 MiB a process by default, which is much where a test has many, and
# ten callers of each allocation are remembered for a report, 30 by default. No leak is suppressed.
set(
  RETORT_SANITIZE_ENVIRONMENT
  ASAN_OPTIONS=quarantine_size_mb=32:malloc_context_size=10
  UBSAN_OPTIONS=print_stacktrace=1
  TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/cmake/sanitizers/tsan.supp:print_suppressions=0
)
# Processes are two to four times as slow under the address sanitizer, ten under the other.
set(RETORT_SANITIZE_SLOWNESS 4)
if(RETORT_SANITIZE STREQUAL thread)
  set(RETORT_SANITIZE_SLOWNESS 10)
endif()

# retort_is_sanitized(variable name label): whether the test is run under RETORT_SANITIZE.
function(retort_is_sanitized variable name label)
  set(${variable} OFF PARENT_SCOPE)
  if(RETORT_SANITIZE STREQUAL thread)
    if(name IN_LIST RETORT_UNDER_TSAN)
      set(${variable} ON PARENT_SCOPE)
    endif()
  elseif(RETORT_SANITIZE)
    if(NOT label IN_LIST RETORT_UNSANITIZED_LABELS AND NOT name IN_LIST RETORT_NOT_UNDER_ASAN)
      set(${variable} ON PARENT_SCOPE)
    endif()
  endif()
endfunction()
