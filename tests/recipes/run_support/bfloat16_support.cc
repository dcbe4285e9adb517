#include "tests/recipes/run_support/bfloat16_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "models/checkpoint/checkpoint.h"
#include "tests/recipes/run_support/gradient_errors.h"

namespace retort::test {
namespace {

// bfloat16 keeps 8 bits: each rounding is off by at most 2^-9 = 0.2 % of a value, and a gradient
// has passed some tens of them. They are independent of one another, so that they add up across
// the direction of the gradient (2 to 6 % of its length here) much more than along it: by at most
// 1 % in matrices, 2.5 % in a norm of 8 numbers.
//   scale, of matrices  a gradient that is 5 % too long is at least 4 % off; the norms' own
//                       factors are held by tests/models/bfloat16_test.cc, over more tokens
//   relative            what else goes wrong: one of two heads that is missing is off by 50 %
constexpr GradientBounds kBfloat16{.scale = 0.02, .vector_scale = 0.045, .relative = 0.09};
// float16 keeps 11 bits: an eighth of that, and a third of it as room.
constexpr GradientBounds kFloat16{0.02 / 6, 0.045 / 6, 0.09 / 6};

std::vector<std::string> in_dtype(const std::string& dtype, const std::vector<std::string>& roles) {
  std::vector<std::string> settings;
  for (const std::string& role : roles)
    settings.push_back("roles." + role + ".dtype=" + dtype);
  return settings;
}

// With a loss scale that no gradient of the golden models overflows with.
std::vector<std::string> in_float16(const std::vector<std::string>& roles) {
  std::vector<std::string> settings = in_dtype("float16", roles);
  settings.push_back("train.initial_loss_scale=128");
  return settings;
}

// The first step of two runs: its loss within 1 %, the same tokens.
void expect_same_start(const fs::path& run, const fs::path& wanted) {
  const auto got = column(run, "loss"), want = column(wanted, "loss");
  ASSERT_EQ(got.size(), 1u);
  ASSERT_EQ(want.size(), 1u);
  EXPECT_NEAR(got[0], want[0], 0.01 * std::max(std::abs(want[0]), 0.1));
  EXPECT_EQ(column(run, "num_tokens"), column(wanted, "num_tokens"));
}

void expect_gradients_follow(const fs::path& run, const fs::path& wanted,
                             const GradientBounds& bounds) {
  expect_gradients_within(first_gradients(run), first_gradients(wanted), bounds,
                          run.parent_path().filename());
}

// `check`: of each split's run, beside the one in float32.
void expect_follows(const WriteRun& write, int64_t rows, const std::vector<Split>& splits,
                    const std::vector<std::string>& dtypes, const std::vector<std::string>& more,
                    const std::function<void(const fs::path& run, const fs::path& wanted)>& check) {
  const fs::path wanted = launch_unclipped(write("float32"), joined(settings(kWhole, rows), more));
  for (const Split& split : splits) {
    SCOPED_TRACE(split.name);
    const fs::path run =
        launch_unclipped(write(split.name), joined(joined(settings(split, rows), dtypes), more));
    if (testing::Test::HasFailure()) return;
    expect_same_start(run, wanted);
    check(run, wanted);
  }
}

}  // namespace

fs::path exact_model(const TemporaryFolder& folder, const std::string& name) {
  const fs::path path = folder / (name + "-exact");
  if (fs::exists(path)) return path;
  fs::create_directories(path);
  const models::Decoder rounded = models::load_decoder(goldens() / name, at::kBFloat16);
  models::save_decoder(rounded, at::kFloat, goldens() / name, path);
  return path;
}

fs::path exact_deep_model(const TemporaryFolder& folder, const std::string& name, int64_t layers) {
  const fs::path path = folder / (name + "-deep");
  fs::create_directories(path);
  models::ModelConfig config = models::read_model_config(goldens() / name);
  config.num_hidden_layers = layers;
  config.sliding_window.assign(static_cast<size_t>(layers), 0);
  config.raw_json.clear();
  const models::Decoder rounded = models::Decoder::random(std::move(config), 11, at::kBFloat16);
  models::save_decoder(rounded, at::kFloat, goldens() / name, path);
  return path;
}

std::vector<std::string> in_bfloat16(const std::vector<std::string>& roles) {
  return in_dtype("bfloat16", roles);
}

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<std::string> settings(const Split& split, int64_t rows) {
  std::vector<std::string> all{
      "roles.student.world.dp=" + std::to_string(split.dp),
      "train.gradient_accumulation_steps=" + std::to_string(split.accumulation),
      "train.per_device_train_batch_size=" + std::to_string(rows / split.dp / split.accumulation)};
  for (const std::string& setting : split.world)
    all.push_back("roles.student.world." + setting);
  return joined(all, split.more);
}

fs::path launch_unclipped(const fs::path& recipe, std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"launch", recipe.string(), "train.max_grad_norm=0"});
  const CommandResult result = retort(std::move(settings), std::chrono::seconds(300));
  EXPECT_EQ(result.exit_code, 0) << recipe << "\n" << result.output;
  return recipe.parent_path() / "run";
}

void expect_bfloat16_follows(const WriteRun& write, int64_t rows,
                             const std::vector<std::string>& roles,
                             const std::vector<Split>& splits,
                             const std::vector<std::string>& more) {
  expect_follows(write, rows, splits, in_bfloat16(roles), more,
                 [](const fs::path& run, const fs::path& wanted) {
                   expect_gradients_follow(run, wanted, kBfloat16);
                 });
}

void expect_float16_follows(const WriteRun& write, int64_t rows,
                            const std::vector<std::string>& roles, const std::vector<Split>& splits,
                            const std::vector<std::string>& more) {
  expect_follows(write, rows, splits, in_float16(roles), more,
                 [](const fs::path& run, const fs::path& wanted) {
                   EXPECT_EQ(column(run, "loss_scale"), std::vector<double>{128});
                   EXPECT_EQ(column(run, "skipped_steps"), std::vector<double>{0});
                   expect_gradients_follow(run, wanted, kFloat16);
                 });
}

}  // namespace retort::test
