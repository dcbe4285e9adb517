// What a rank of the student checks against the others, with one of them that is wrong.
#include "recipes/run/loop/agreement.h"

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>

#include "tests/recipes/loop/rank_threads.h"
#include "tests/recipes/objectives/fake_frozen_role.h"

namespace retort::recipes {
namespace {

using test::nano_llama;

// Each rank's error, "" if it has none.
template <class Check>
std::vector<std::string> errors_of(int64_t ranks, const Check& check) {
  std::vector<std::string> texts;
  for (const std::optional<Error>& error : test::run_rank_threads(ranks, check))
    texts.push_back(error ? error->message() : "");
  return texts;
}

TEST(SameRows, AreDemandedOfEveryRank) {
  for (const std::string& error :
       errors_of(3, [](parallel::World& world) { check_same_rows(world, "one file"); }))
    EXPECT_EQ(error, "");
  for (const std::string& error : errors_of(3, [](parallel::World& world) {
         check_same_rows(world, world.rank() == 2 ? "another file" : "one file");
       }))
    EXPECT_EQ(error,
              "student/2 read other training data, columns or another tokenizer than student/0; "
              "every host must see the same files");
}

TEST(SameStart, IsDemandedOfEveryRank) {
  for (const std::string& error :
       errors_of(3, [](parallel::World& world) { check_same_start(world, 12); }))
    EXPECT_EQ(error, "");
  for (const std::string& error : errors_of(
           3, [](parallel::World& world) { check_same_start(world, world.rank() == 1 ? 6 : 12); }))
    EXPECT_EQ(error,
              "student/1 begin after another step than student/0; every host must see the same "
              "checkpoints in output_dir");
}

TEST(Replicas, MustHoldTheSameBits) {
  const auto check = [](parallel::World& world, double change) {
    models::Decoder decoder = nano_llama(1);
    decoder.set_requires_grad(false);
    // One element of the last parameter, by its last bit.
    at::Tensor last = decoder.parameters().back().value.flatten();
    if (world.rank() == 1) last.narrow(0, last.numel() - 1, 1).mul_(1 + change);
    check_replicas_agree(decoder, world, "at step 7");
  };
  for (const std::string& error : errors_of(3, [&](parallel::World& world) { check(world, 0); }))
    EXPECT_EQ(error, "");
  for (const std::string& error : errors_of(3, [&](parallel::World& world) { check(world, 2e-7); }))
    EXPECT_TRUE(
        error.starts_with("replicas of the student differ at step 7: the parameters of "
                          "student/1 are not those of student/0"))
        << error;
}

}  // namespace
}  // namespace retort::recipes
