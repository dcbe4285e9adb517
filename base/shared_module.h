// A shared library that is opened while the program runs.
#pragma once

#include <string>

namespace retort {

// Stays open until the process ends: what it registered elsewhere (operators, threads) cannot be
// taken back. Opening the same file again gives the same library. Any thread.
class SharedModule {
 public:
  // kUnavailable with the loader's own words: the file is missing, or a library that it needs.
  explicit SharedModule(const std::string& path);
  const std::string& path() const { return path_; }

  // The function of that C name. kUnavailable if there is none: the module belongs to another
  // version of the program, and so cannot be used, whatever else it has.
  template <class Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;

  std::string path_;
  void* handle_ = nullptr;
};

// The file `name` in the folder of the running program; the value of the environment variable
// `override_variable` if it is set.
std::string module_beside_program(const std::string& name, const char* override_variable);

}  // namespace retort
