// What the tests of rewards share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "recipes/rewards/reward.h"
#include "tests/support/thrown.h"

namespace retort::test {

inline rewards::RewardInput input_of(std::string completion, std::string reference = "") {
  rewards::RewardInput input;
  input.prompt = "the prompt";
  input.completion = std::move(completion);
  input.reference = std::move(reference);
  input.origin = "train.jsonl:17";
  return input;
}

}  // namespace retort::test
