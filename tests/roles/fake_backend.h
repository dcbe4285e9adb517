// A generator's backend that does what a test says: it finishes samples when it is told to.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "roles/generator/sample_backend.h"
#include "roles/generator/weight_checksum.h"

namespace retort::roles {

class FakeBackend : public SampleBackend {
 public:
  // Of a sample: one token, which says of which request and which sample it is.
  static int32_t token_of(int64_t step, int64_t index) {
    return static_cast<int32_t>(100 * step + index);
  }

  GeneratorInfo info() const override { return {.weight_version = version_}; }
  uint64_t weight_version() const override { return version_; }

  uint64_t submit(const GenerateRequest& request) override {
    if (refuse) throw Error(ErrorCode::kInvalidArgument, "the engine does not take this");
    steps_[++last_] = request.step;
    log.push_back("submit " + std::to_string(last_));
    return last_;
  }
  bool step() override {
    log.emplace_back("step");
    return !on_step || on_step();
  }
  std::vector<FinishedSample> finished() override { return std::exchange(finished_, {}); }
  void cancel(uint64_t request) override { log.push_back("cancel " + std::to_string(request)); }
  std::vector<std::vector<float>> score(const ForwardRequest& request) override {
    const auto tokens = static_cast<size_t>(request.input_ids.numel());
    return {std::vector<float>(tokens - 1, -1.0F)};
  }

  void stage(WeightBucket bucket, const std::string& from) override {
    staged.emplace_back(bucket.version, from);
  }
  bool has_staged() const override { return false; }
  void forget_staged(const std::function<std::set<std::string>()>&) override {}
  uint64_t check(const CommitWeights& commit) override {
    log.emplace_back("check");
    checked_ = commit.version;
    return weights_checksum(commit.receipts);
  }
  void apply() override {
    log.emplace_back("apply");
    version_ = std::exchange(checked_, 0);
  }
  void uncheck() override { log.emplace_back("uncheck"); }

  // For the next finished().
  void finish(uint64_t request, int64_t index) {
    finished_.push_back({.request = request,
                         .index = index,
                         .completion = {.token_ids = {token_of(steps_.at(request), index)},
                                        .logps = {-1.0F},
                                        .sampling_logps = {-1.0F}}});
  }
  void fail(uint64_t request, const Error& error) {
    finished_.push_back({.request = request, .error = std::make_exception_ptr(error)});
  }

  std::function<bool()> on_step;  // what step() does; none: true
  bool refuse = false;            // each request
  std::vector<std::string> log;   // what was called
  // Version and sender of each bucket. Written by the thread that takes them.
  std::vector<std::pair<uint64_t, std::string>> staged;

 private:
  uint64_t last_ = 0, version_ = 0, checked_ = 0;
  std::map<uint64_t, int64_t> steps_;  // of each request
  std::vector<FinishedSample> finished_;
};

}  // namespace retort::roles
