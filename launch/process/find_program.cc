#include "launch/process/find_program.h"

#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "base/error.h"

namespace retort::launch {

std::filesystem::path find_program(const std::string& name, const std::string& whose,
                                   const std::string& package) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (const std::string file = folder + "/" + name; ::access(file.c_str(), X_OK) == 0)
      return file;
  throw Error(ErrorCode::kUnavailable,
              whose + ": there is no program `" + name + "` in PATH; install " + package);
}

}  // namespace retort::launch
