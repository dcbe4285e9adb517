// A decoder of bytes from outside the process, and what must hold whatever those bytes are.
//
// Use: one file a target, `<name>_target.cc`, with a function that makes the Target; target_list.h
//   and targets.cc list them. A fuzzer (fuzzer_main.cc) and a test (fuzz_corpus_test.cc) run the
//   same functions.
// What must hold of every target: no crash, no undefined behaviour, no exception but retort::Error,
//   at most kMaxBytesAtOnce allocated at a time, and what the head of its file says.
// Threads: one.
#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace retort::fuzz {

// Inputs are shorter than 64 KiB, and nothing that is decoded from them may want more than this in
// one allocation. `./dev fuzz` gives it to libFuzzer as -malloc_limit_mb, and eight times as much
// to the targets whose decoders have limits of their own: chat_template and table_rows.
inline constexpr size_t kMaxBytesAtOnce = 64 << 20;

struct Seed {
  std::string name;  // of its file
  std::string bytes;
};

struct Target {
  std::string_view name;
  // Decodes and checks. True if the bytes were taken; refused are they by `false` or an Error.
  bool (*decode)(std::string_view bytes);
  // Inputs that are taken, made by our own encoders: what a fuzzer starts from.
  std::vector<Seed> (*seeds)();
};

// What must hold did not; the message says what.
class Broken : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};
void expect(bool holds, const std::string& what);

// target.decode(), with an Error as `false`. Other exceptions pass: they are bugs.
bool run(const Target& target, std::string_view bytes);

std::span<const Target> targets();
// kInvalidArgument naming all there are if there is none of this name.
const Target& find_target(std::string_view name);

}  // namespace retort::fuzz
