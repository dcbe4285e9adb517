// A tokenizer and small models that a probe's tests share; made once for all of them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "engines/probing/probe.h"
#include "models/decoder/decoder.h"
#include "models/text/tokenizer.h"
#include "tests/engines/fake_engine.h"
#include "tests/support/temporary_folder.h"

namespace retort::engines {

class ProbeTest : public testing::Test {
 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite();

  // The model that the engine serves: random weights, far from uniform.
  static const models::Decoder& model() { return shared_->model; }
  static const models::Decoder& other_model() { return shared_->other; }
  // The same shape, trained until plain text is likely.
  static const models::Decoder& reader() { return shared_->reader; }
  static const models::Tokenizer& tokenizer() { return shared_->tokenizer; }

  // A probe of a model that lies; `local`: the copy, or nullptr.
  static Contract probed(const models::Decoder& served, const Lies& lies,
                         const models::Decoder* local, const ProbeOptions& options = {});
  static Contract probed(const Lies& lies, const ProbeOptions& options = {}) {
    return probed(model(), lies, &model(), options);
  }
  // check_contract refuses it with this code, and says this.
  static void expect_refused(const Contract& contract, const Needs& needs, ErrorCode code,
                             const std::string& part);

  static Needs ratio() {
    return {.what = Purpose::kDrawsWithRatio, .role = "generator", .objective = "grpo"};
  }
  static Needs draws() {
    return {.what = Purpose::kDraws, .role = "generator", .objective = "on_policy_distill"};
  }
  static Needs given() {
    return {.what = Purpose::kGivenLogProbs, .role = "reference", .objective = "dpo"};
  }
  static Needs top_k(int64_t k) {
    Needs needs{.what = Purpose::kTopK, .role = "teacher", .objective = "distill"};
    needs.top_k = k;
    return needs;
  }
  static Needs named(int64_t k) {
    Needs needs = top_k(k);
    needs.names_ids = true;
    return needs;
  }
  static Needs hidden() {
    return {.what = Purpose::kHiddenStates, .role = "teacher", .objective = "distill"};
  }

 private:
  struct Shared {
    test::TemporaryFolder folder;
    models::Tokenizer tokenizer;
    models::Decoder model, other, reader;
    Shared();
  };
  static std::unique_ptr<Shared> shared_;
};

}  // namespace retort::engines
