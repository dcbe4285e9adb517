#include "base/shared_module.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"

namespace retort {

SharedModule::SharedModule(const std::string& path)
    : path_(path), handle_(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) return;
  const char* why = ::dlerror();
  throw Error(ErrorCode::kUnavailable, "a module of the program could not be loaded: " +
                                           std::string(why ? why : "unknown reason"))
      .with("module", path);
}

void* SharedModule::symbol(const char* name) const {
  if (void* found = ::dlsym(handle_, name)) return found;
  throw Error(ErrorCode::kUnavailable,
              "a module belongs to another version of the program; build both together")
      .with("module", path_)
      .with("missing", name);
}

std::string module_beside_program(const std::string& name, const char* override_variable) {
  if (const char* path = std::getenv(override_variable); path != nullptr && *path != '\0')
    return path;
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

}  // namespace retort
