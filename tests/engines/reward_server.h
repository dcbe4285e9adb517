// A KServe server in this process, by our convention, whose model scores completions by rules: what
// it says of itself is Triton's record, its numbers are computed from the ids that arrive.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/http/scripted_server.h"

namespace retort::test {

// Scores have two numbers: how many tokens the completion has, and whether those are two to four.
class RewardServer {
 public:
  // `vocab_rows`: of the model that it says it serves.
  explicit RewardServer(int64_t vocab_rows);

  std::string url() const { return server_->url(); }
  int64_t scored() const { return scored_; }
  // Called for each question before it is answered.
  std::function<void(int64_t scored)> before_answer;
  float off_by = 0;  // added to every score: another model

 private:
  std::string answer(const Received& request);
  std::string infer(const Received& request);

  int64_t vocab_rows_;
  std::atomic<int64_t> scored_{0};
  std::unique_ptr<ScriptedServer> server_;
};

}  // namespace retort::test
