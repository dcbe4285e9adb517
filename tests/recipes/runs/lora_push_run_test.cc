// Whole runs whose generators are sent the adapter alone (roles.student.lora.push), beside those
// that are sent merged weights.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "models/safetensors/safetensors.h"
#include "tests/recipes/run_support/disturbed_run.h"
#include "tests/recipes/run_support/golden_support.h"

namespace retort::test {
namespace {

constexpr const char* kAlone = "push: adapter";
constexpr const char* kMerged = "push: merged";
constexpr const char* kBytesSent = "rpc/generator/weights.bucket/bytes_sent";

class PushedAdapter : public testing::Test {
 protected:
  PushedAdapter() {
    recipe_.data = write_prompts(folder_);
    recipe_.block = {
        {"beta", "0.05"}, {"sampling_correction", "token_truncate"}, {"reference", "student"}};
    recipe_.generation["save_samples"] = "true";
  }
  fs::path run(const std::string& name, const std::string& push,
               const std::vector<std::string>& settings = {}) {
    return run_adapter(folder_ / name, recipe_, settings, push);
  }

  TemporaryFolder folder_;
  OnPolicyRecipe recipe_;
};

// Every layout draws the same tokens.
TEST_F(PushedAdapter, DrawsWhatMergedWeightsDraw) {
  const fs::path merged = run("merged", kMerged), alone = run("alone", kAlone);
  ASSERT_FALSE(HasFailure());
  EXPECT_GT(column(alone, "kl").back(), 1e-4) << "the student has hardly moved";
  for (const double value : column(alone, "sampling_logp_difference/mean"))
    EXPECT_LT(std::abs(value), 1e-5);

  // So do split students and generators.
  const fs::path stages = run("stages", kAlone, {"roles.student.world.pp=2"});
  recipe_.student_world = ", tp: 2", recipe_.generator_world = ", tp: 2";
  const fs::path ranks = run("ranks", kAlone);
  ASSERT_FALSE(HasFailure());
  for (const fs::path& other : {alone, ranks, stages}) {
    expect_same_samples(other, merged);
    for (const char* key : {"loss", "kl", "reward", "grad_norm"})
      expect_same_column(other, merged, key, 1e-4);
  }
}

// 4 r (in + out) bytes for each adapted matrix, and what goes with a message.
TEST_F(PushedAdapter, IsAllThatTravels) {
  const fs::path merged = run("merged", kMerged), alone = run("alone", kAlone);
  ASSERT_FALSE(HasFailure());

  double bytes = 0;
  const models::SafetensorsReader factors(alone / "final/adapter_model.safetensors");
  for (const std::string& name : factors.names())
    bytes += static_cast<double>(factors.get(name).nbytes());
  const double sent = column(alone, kBytesSent).at(1);
  EXPECT_GE(sent, bytes);
  EXPECT_LT(sent, 1.5 * bytes);
  EXPECT_GT(column(merged, kBytesSent).at(1), 1.5 * sent);
}

// Both merge by the same operations, so that not even bf16 tells them apart.
TEST_F(PushedAdapter, HasTheBitsOfMergedWeights) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    const std::vector<std::string> of_dtype{"roles.student.dtype=" + dtype,
                                            "roles.generator.dtype=" + dtype};
    const fs::path merged = run("merged_" + dtype, kMerged, of_dtype),
                   alone = run("alone_" + dtype, kAlone, of_dtype);
    ASSERT_FALSE(HasFailure()) << dtype;
    expect_same_samples(alone, merged);
    for (const char* key : {"loss", "kl", "sampling_logp_difference/mean"})
      EXPECT_EQ(column(alone, key), column(merged, key)) << dtype << " " << key;
  }
}

// A generator that is started again reads its model anew, which no push replaces.
TEST_F(PushedAdapter, IsNotAddedToOtherWeightsThanTheStudents) {
  const fs::path model = folder_ / "model";
  fs::copy(goldens() / "qwen3", model);
  recipe_.student_model = recipe_.generator_model = model.string();
  recipe_.steps = 100'000;
  Command run({retort_binary(), "launch", write_on_policy(folder_ / "run", recipe_).string(),
               "roles.student.lora={r: 4, push: adapter}"});
  ASSERT_TRUE(
      wait_until([&] { return metrics_rows(folder_ / "run/run") >= 2; }, std::chrono::seconds(60)));

  // Another sign of the last weight.
  std::fstream weights(model / "model.safetensors",
                       std::ios::in | std::ios::out | std::ios::binary);
  weights.seekg(-1, std::ios::end);
  const auto last = static_cast<unsigned char>(weights.get());
  weights.seekp(-1, std::ios::end);
  weights.put(static_cast<char>(last ^ 0x80));
  weights.close();
  ASSERT_GT(signal_role(run, folder_ / "run", {.role = "generator"}), 0);

  const auto result = run.wait(std::chrono::seconds(120));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("came back with other weights"), std::string::npos) << result.output;
}

}  // namespace
}  // namespace retort::test
