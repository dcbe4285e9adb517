// libFuzzer's entry points for all targets:
//   retort_fuzz --target=NAME [corpus folder or one input] [-max_total_time=60 ...]
//   retort_fuzz --seeds=FOLDER      writes FOLDER/<target>/<seed> for every target, and ends
//   retort_fuzz --list              their names
// libFuzzer passes by what begins with "--".
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "tests/fuzz/target.h"

namespace {

using retort::fuzz::Target;

// What --target names. libFuzzer's interface has no other place for it.
const Target*& chosen() {
  static const Target* target = nullptr;
  return target;
}

void write_seeds(const std::filesystem::path& folder) {
  for (const Target& target : retort::fuzz::targets()) {
    std::filesystem::create_directories(folder / target.name);
    for (const auto& seed : target.seeds())
      retort::write_file_atomically(folder / target.name / seed.name, seed.bytes);
  }
}

[[noreturn]] void done() {
  std::fflush(stdout);
  std::_Exit(0);
}

void choose(std::string_view argument) {
  const auto value_of = [&](std::string_view option) {
    return argument.starts_with(option) ? argument.substr(option.size()) : std::string_view();
  };

  if (argument == "--list") {
    for (const Target& target : retort::fuzz::targets())
      std::printf("%s\n", std::string(target.name).c_str());
    done();
  }
  if (const auto folder = value_of("--seeds="); !folder.empty()) {
    write_seeds(folder);
    done();
  }
  if (const auto name = value_of("--target="); !name.empty())
    chosen() = &retort::fuzz::find_target(name);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  try {
    for (int i = 1; i < *argc; ++i)
      choose((*argv)[i]);
    if (chosen() != nullptr) return 0;
    std::fprintf(stderr, "error: --target=NAME is missing; --list has the names\n");
  } catch (const retort::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
  }
  std::_Exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  retort::fuzz::run(*chosen(), {reinterpret_cast<const char*>(data), size});
  return 0;
}
