// What a generator's answer says of each completion, there and back.
#include "roles/generator/samples.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace retort::roles {
namespace {

const ExpectedSamples kExpected{
    .request_id = 1, .completions = 2, .max_new_tokens = 4, .vocab_rows = 10};

Samples packed(std::vector<float> logps, std::vector<float> sampling_logps) {
  const std::vector<IndexedCompletion> completions{
      {1, {.token_ids = {4, 9}, .logps = logps, .sampling_logps = sampling_logps}}, {0, {}}};
  Samples samples = pack_completions(completions);
  samples.request_id = 1;
  samples.generator = "generator/0";
  return samples;
}

models::Completion arrived(const Samples& samples) {
  check_samples(samples, kExpected, "generator/0");
  return unpack_completions(samples).front().completion;
}

TEST(Samples, KeepBothLogProbabilities) {
  const models::Completion one = arrived(packed({-1, -2}, {-3, -4}));
  EXPECT_EQ(one.token_ids, (std::vector<int32_t>{4, 9}));
  EXPECT_EQ(one.logps, (std::vector<float>{-1, -2}));
  EXPECT_EQ(one.sampling_logps, (std::vector<float>{-3, -4}));
}

// An engine's numbers may be of one distribution alone.
TEST(Samples, LackTheLogProbabilitiesThatNobodyKnows) {
  const models::Completion raw = arrived(packed({-1, -2}, {}));
  EXPECT_EQ(raw.logps, (std::vector<float>{-1, -2}));
  EXPECT_TRUE(raw.sampling_logps.empty());
  const models::Completion none = arrived(packed({}, {}));
  EXPECT_EQ(none.token_ids.size(), 2u);
  EXPECT_TRUE(none.logps.empty());
}

TEST(Samples, OfSomeTokensAloneAreNone) {
  EXPECT_DEATH(packed({-1}, {}), "some tokens alone");
  Samples samples = packed({-1, -2}, {-3, -4});
  samples.logps = at::tensor({-1.0F});
  EXPECT_EQ(test::code_of([&] { arrived(samples); }), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace retort::roles
