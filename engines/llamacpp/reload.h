// Makes a router of llama.cpp start the process of a model anew.
#pragma once

#include <string>

#include "engines/llamacpp/run.h"
#include "engines/llamacpp/served_model.h"
#include "engines/llamacpp/session.h"

namespace retort::engines::llamacpp {

//   /models/unload -> unloaded? -> /models/load -> loaded?
//
// The file has been replaced before, by renaming: the process that runs keeps the old one mapped.
// kUnavailable for a server that is no router, and for a file that the router's process does not
// open. kMismatch if it serves the model from another file.
class ReloadRun final : public Run<Empty> {
 public:
  ReloadRun(Session& session, std::string path, Deadline deadline);

 private:
  void begin() override;
  void check(const Listed& listed) const;
  void unload();
  void load();
  // Asks until the model's status is `status`, then takes `step`.
  void wait_for(const std::string& status, Duration pause, std::function<void()> step);
  Future<Json> post(const std::string& path);

  Session& session_;
  std::string path_;
  Deadline deadline_;
  std::string model_;
};

}  // namespace retort::engines::llamacpp
