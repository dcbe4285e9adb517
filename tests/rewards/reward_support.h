// What the tests of rewards share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "recipes/rewards/reward.h"

namespace retort::rewards::test {

inline RewardInput input_of(std::string completion, std::string reference = "") {
  RewardInput input;
  input.prompt = "the prompt";
  input.completion = std::move(completion);
  input.reference = std::move(reference);
  input.origin = "train.jsonl:17";
  return input;
}

// The code and text of the Error that `call` throws; the test fails if it throws none.
template <class F>
std::pair<ErrorCode, std::string> error_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.code(), error.message()};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace retort::rewards::test
