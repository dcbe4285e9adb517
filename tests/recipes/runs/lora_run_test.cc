// Whole runs that train an adapter (roles.student.lora) against PEFT's own model: losses, gradient
// norms and factors of 5 AdamW steps; files, resuming, merging, references and pushes.
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cmath>
#include <fstream>

#include "base/file.h"
#include "models/safetensors/safetensors.h"
#include "tests/recipes/run_support/golden_support.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

constexpr const char* kAdapterFile = "adapter_model.safetensors";

nlohmann::json golden(const std::string& name) { return golden_cases("lora").at(name); }

std::string adapter_of(const std::string& name) { return "lora_" + name.substr(4); }

// Of the factors in run/final, against PEFT's after the case's steps.
ParameterError adapter_error(const fs::path& adapter, const std::string& name) {
  return tensor_error(adapter / kAdapterFile, goldens() / adapter_of(name) / kAdapterFile,
                      "lora_changes", name);
}

void expect_golden(const fs::path& run, const std::string& name) {
  const nlohmann::json want = golden(name);
  expect_columns(run, want, {"loss", "grad_norm"}, 1e-6);
  if (want.contains("rewards/margins"))
    expect_columns(run, want, {"rewards/margins", "logps/chosen", "logps/rejected"}, 4e-6);
  const ParameterError error = adapter_error(run / "final", name);
  EXPECT_LE(error.relative, 1e-5);
  EXPECT_LE(error.largest, 5e-5);
}

// The log-probabilities of the first rows by `retort eval`, against PEFT's.
void expect_log_probs(const fs::path& model, const nlohmann::json& want,
                      const TemporaryFolder& folder) {
  const fs::path output = folder / "logps.jsonl";
  const auto result = retort({"eval", "--model", model.string(), "--data",
                              (goldens() / "rows.jsonl").string(), "--output", output.string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto rows = read_lines(output);
  ASSERT_GE(rows.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    expect_close(rows[i].at("logps").get<std::vector<double>>(), want[i],
                 "row " + std::to_string(i), 1e-5);
}

// All folders that a checkpoint of an adapter must not have the weights of its model in.
void expect_adapter_only(const fs::path& checkpoint) {
  EXPECT_FALSE(fs::exists(checkpoint / "config.json"));
  EXPECT_FALSE(fs::exists(checkpoint / "model.safetensors"));
  EXPECT_TRUE(fs::exists(checkpoint / "tokenizer.json"));
  const auto config = nlohmann::json::parse(read_file(checkpoint / "adapter_config.json"));
  EXPECT_EQ(config.at("peft_type"), "LORA");
  EXPECT_TRUE(fs::path(config.at("base_model_name_or_path").get<std::string>()).is_absolute());
}

class LoraRun : public testing::TestWithParam<std::string> {};

TEST_P(LoraRun, MatchesPeft) {
  TemporaryFolder folder;
  const std::string name = GetParam();
  const fs::path run = run_recipe_text(folder.path(), golden(name).at("recipe"));
  ASSERT_FALSE(HasFailure());
  expect_golden(run, name);
  expect_adapter_only(run / "final");
  expect_log_probs(run / "final", golden(name).at("logps_after"), folder);
}
INSTANTIATE_TEST_SUITE_P(Cases, LoraRun,
                         testing::Values("sft_qwen3", "sft_llama", "dpo_qwen3", "dpo_llama",
                                         "sft_phi3", "sft_pattern", "sft_saved", "dpo_saved"),
                         [](const auto& info) { return info.param; });

struct LoraLayout {
  std::string name, golden;
  std::vector<std::string> settings;
};
class LoraLayouts : public testing::TestWithParam<LoraLayout> {};

TEST_P(LoraLayouts, MatchPeft) {
  TemporaryFolder folder;
  const fs::path run =
      run_recipe_text(folder.path(), golden(GetParam().golden).at("recipe"), GetParam().settings);
  ASSERT_FALSE(HasFailure());
  expect_golden(run, GetParam().golden);
}

const std::vector<std::string> kTp{"roles.student.world.tp=2",
                                   "roles.student.world.sequence_parallel=true"};
const std::vector<std::string> kPpDp{"roles.student.world.pp=2", "roles.student.world.dp=2",
                                     "roles.student.world.distributed_optimizer=true",
                                     "train.per_device_train_batch_size=1",
                                     "train.gradient_accumulation_steps=2"};
INSTANTIATE_TEST_SUITE_P(
    Splits, LoraLayouts,
    testing::Values(
        LoraLayout{"sft_tp", "sft_qwen3", kTp}, LoraLayout{"sft_pp_dp_zero", "sft_llama", kPpDp},
        LoraLayout{"dpo_tp", "dpo_llama", kTp}, LoraLayout{"dpo_pp_dp_zero", "dpo_qwen3", kPpDp},
        LoraLayout{"fused_tp", "sft_phi3", kTp}, LoraLayout{"fused_pp_dp_zero", "sft_phi3", kPpDp},
        LoraLayout{"saved_tp", "sft_saved", kTp},
        LoraLayout{"saved_pp_dp_zero", "sft_saved", kPpDp},
        LoraLayout{"pattern_pp_dp_zero", "sft_pattern", kPpDp},
        LoraLayout{"pattern_tp", "sft_pattern", kTp},
        LoraLayout{"checkpointed_fused", "sft_phi3", {"train.gradient_checkpointing=true"}},
        LoraLayout{"checkpointed", "sft_llama", {"train.gradient_checkpointing=true"}}),
    [](const auto& info) { return info.param.name; });

// A folder with the golden adapter of which some keys of the config have other values.
fs::path other_adapter(const TemporaryFolder& folder, const nlohmann::json& changes) {
  const fs::path copy = folder / "other_adapter";
  fs::copy(goldens() / "lora_qwen3", copy);
  auto config = nlohmann::json::parse(read_file(copy / "adapter_config.json"));
  config.update(changes);
  std::ofstream(copy / "adapter_config.json") << config.dump();
  return copy;
}

// The comparisons can fail: 1 % of the scaling is far outside the tolerance, and so is an adapter
// that is not trained.
TEST(LoraRunDetects, AnotherScalingAndAFrozenAdapter) {
  TemporaryFolder folder;
  const nlohmann::json want = golden("sft_qwen3");
  const fs::path adapter = other_adapter(folder, {{"lora_alpha", 8.08}});
  const fs::path run = run_recipe_text(
      folder.path(), want.at("recipe"),
      {"roles.student.lora.lora_alpha=8.08", "roles.student.lora.adapter=" + adapter.string()});
  ASSERT_FALSE(HasFailure());
  const double got = column(run, "loss").at(0), loss = want.at("loss")[0];
  EXPECT_GT(std::abs(got - loss), 1e-4 * loss);
  EXPECT_GT(adapter_error(goldens() / "lora_qwen3", "sft_qwen3").relative, 1e-4);
}

// `retort eval` opens an adapter with the model that it names; merged it is a model of its own.
TEST(Merge, GivesPeftsLogProbs) {
  for (const std::string name : {"qwen3", "llama"}) {
    TemporaryFolder folder;
    const nlohmann::json want = golden("sft_" + name).at("logps_before");
    const fs::path adapter = goldens() / ("lora_" + name), merged = folder / "merged";
    expect_log_probs(adapter, want, folder);
    const auto result = retort({"model", "merge", adapter.string(), "--output", merged.string()});
    ASSERT_EQ(result.exit_code, 0) << result.output;
    expect_log_probs(merged, want, folder);
    EXPECT_EQ(models::SafetensorsReader(merged).names(),
              models::SafetensorsReader(goldens() / name).names());

    // Its tokenizer is the adapter's where that brings one.
    const fs::path own = folder / "own", with_own = folder / "with_own";
    fs::copy(goldens() / name, own);
    fs::copy(adapter, own, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    for (const char* model : {"config.json", "model.safetensors"})
      fs::remove(own / model);
    std::ofstream(own / "tokenizer_config.json") << R"({"eos_token": "w5"})";
    const auto of_own = retort({"model", "merge", own.string(), "--output", with_own.string(),
                                "--base", (goldens() / name).string()});
    ASSERT_EQ(of_own.exit_code, 0) << of_own.output;
    EXPECT_EQ(read_file(with_own / "tokenizer_config.json"),
              read_file(own / "tokenizer_config.json"));

    // It is not written over, and needs an adapter and its model.
    const auto again = retort({"model", "merge", adapter.string(), "--output", merged.string()});
    EXPECT_EQ(again.exit_code, 2);
    EXPECT_NE(again.output.find("is not empty"), std::string::npos) << again.output;
    const auto none = retort({"model", "merge", merged.string(), "--output", "x"});
    EXPECT_EQ(none.exit_code, 2);
    EXPECT_NE(none.output.find("has no adapter_config.json"), std::string::npos) << none.output;
    const auto nowhere = retort({"model", "merge", adapter.string(), "--output",
                                 (folder / "o").string(), "--base", folder.path().string()});
    EXPECT_EQ(nowhere.exit_code, 2);
    EXPECT_NE(nowhere.output.find("config.json"), std::string::npos) << nowhere.output;
  }
}

std::string fresh_recipe(const std::string& kind, const std::string& extra) {
  const std::string rows = kind == "kto" ? "labels" : "rows";
  return "recipe: " + kind +
         "\noutput_dir: $RUN\nseed: 3\nroles:\n  student:\n    model: $GOLDENS/qwen3\n"
         "    world: {dp: 1, threads: 1}\n    lora: {r: 4, lora_alpha: 8}\n"
         "data:\n  train: [{path: $GOLDENS/" +
         rows +
         ".jsonl}]\n  max_length: 64\ntrain:\n  max_steps: 8\n"
         "  per_device_train_batch_size: 4\n  learning_rate: 1.0e-2\n"
         "  lr_scheduler_type: constant\n  save_steps: 3\n" +
         extra;
}

// `retort launch` of a recipe in `folder`, with more arguments; its output, which must end so.
std::string launch_in(const fs::path& folder, std::string recipe, std::vector<std::string> args,
                      int exit_code = 0) {
  fs::create_directories(folder);
  for (const auto& [name, path] :
       {std::pair<std::string, fs::path>{"$GOLDENS", goldens()}, {"$RUN", folder / "run"}})
    for (size_t at = recipe.find(name); at != std::string::npos; at = recipe.find(name))
      recipe.replace(at, name.size(), path.string());
  std::ofstream(folder / "recipe.yaml") << recipe;
  args.insert(args.begin(), {"launch", (folder / "recipe.yaml").string()});
  const auto result = retort(args);
  EXPECT_EQ(result.exit_code, exit_code) << result.output;
  return result.output;
}

// Stopped after a checkpoint and resumed: the same numbers and files, bit for bit.
TEST(Resume, GoesOnBitForBit) {
  TemporaryFolder folder;
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases{
      {"one", {}},
      {"tp", {"roles.student.world.tp=2"}},
      {"zero",
       {"roles.student.world.dp=2", "roles.student.world.distributed_optimizer=true",
        "train.per_device_train_batch_size=2"}},
      {"bfloat16", {"roles.student.dtype=bfloat16", "train.async_save=true"}}};
  for (const auto& [name, settings] : cases) {
    launch_in(folder / ("whole_" + name), fresh_recipe("sft", ""), settings);
    const fs::path part = folder / ("part_" + name);
    std::vector<std::string> first = settings;
    first.push_back("train.exit_interval=5");
    launch_in(part, fresh_recipe("sft", ""), first, 4);
    first.push_back("--resume");
    launch_in(part, fresh_recipe("sft", ""), first);
    ASSERT_FALSE(HasFailure()) << name;

    const fs::path whole = folder / ("whole_" + name) / "run";
    EXPECT_EQ(timeless_metrics(part / "run"), timeless_metrics(whole)) << name;
    for (const std::string file :
         {"final/adapter_model.safetensors", "final/state/optimizer.safetensors"})
      EXPECT_EQ(read_file(part / "run" / file), read_file(whole / file)) << name << " " << file;
    expect_adapter_only(part / "run/final");
    const auto loss = column(whole, "loss");
    EXPECT_LT(loss.back(), loss.front()) << name;
  }
}

// A checkpoint is of an adapter with these settings, or it is refused, whichever way they changed.
TEST(Resume, RefusesAnotherAdapter) {
  TemporaryFolder folder;
  const fs::path run = folder / "run";
  const std::vector<std::string> stopped{"train.exit_interval=5"};
  launch_in(run, fresh_recipe("sft", ""), stopped, 4);
  const std::string other_r =
      launch_in(run, fresh_recipe("sft", ""), {"--resume", "roles.student.lora.r=8"}, 2);
  EXPECT_NE(other_r.find("r: 4 there, 8 in the recipe"), std::string::npos) << other_r;
  const std::string whole =
      launch_in(run, fresh_recipe("sft", ""), {"--resume", "roles.student.lora=null"}, 2);
  EXPECT_NE(whole.find("is an adapter's"), std::string::npos) << whole;

  const fs::path plain = folder / "plain";
  launch_in(plain, fresh_recipe("sft", ""), {"train.exit_interval=5", "roles.student.lora=null"},
            4);
  const std::string adapter = launch_in(plain, fresh_recipe("sft", ""), {"--resume"}, 2);
  EXPECT_NE(adapter.find("is a whole model's"), std::string::npos) << adapter;
}

// Settings of a folder that training starts from are the recipe's, and its files are in order.
TEST(Start, RefusesABadAdapter) {
  TemporaryFolder folder;
  const std::string recipe = golden("sft_qwen3").at("recipe");
  const std::string other = launch_in(folder / "r", recipe, {"roles.student.lora.r=8"}, 2);
  EXPECT_NE(other.find("r: 4 there, 8 in the recipe"), std::string::npos) << other;
  const std::string model = launch_in(
      folder / "m", recipe, {"roles.student.lora.adapter=" + (goldens() / "qwen3").string()}, 2);
  EXPECT_NE(model.find("has no adapter_config.json"), std::string::npos) << model;

  // Factors that are not what the config says, and a file that is cut off.
  const fs::path copy = other_adapter(folder, {{"r", 8}});
  const std::string set = "roles.student.lora.adapter=" + copy.string();
  const std::string wider = launch_in(folder / "w", recipe, {set, "roles.student.lora.r=8"}, 2);
  EXPECT_NE(wider.find("another shape"), std::string::npos) << wider;
  fs::resize_file(copy / kAdapterFile, 1000);
  const std::string cut = launch_in(folder / "c", recipe, {set, "roles.student.lora.r=8"}, 2);
  EXPECT_NE(cut.find(kAdapterFile), std::string::npos) << cut;

  // An adapter is no model.
  const std::string alone = launch_in(
      folder / "a", recipe, {"roles.student.model=" + (goldens() / "lora_qwen3").string()}, 2);
  EXPECT_NE(alone.find("is a LoRA adapter"), std::string::npos) << alone;
}

// With r = 4 an alpha of 4 over the root of r is the goldens' alpha of 8 over r: in training, in
// what is saved, and where that is merged.
TEST(Rslora, DividesByTheRootOfR) {
  TemporaryFolder folder;
  const nlohmann::json want = golden("sft_qwen3");
  const fs::path adapter = other_adapter(folder, {{"lora_alpha", 4}, {"use_rslora", true}});
  std::vector<std::string> settings{"roles.student.lora.lora_alpha=4",
                                    "roles.student.lora.adapter=" + adapter.string()};
  const std::string other = launch_in(folder / "other", want.at("recipe"), settings, 2);
  EXPECT_NE(other.find("use_rslora: true there, false in the recipe"), std::string::npos) << other;

  settings.emplace_back("roles.student.lora.use_rslora=true");
  const fs::path run = run_recipe_text(folder.path(), want.at("recipe"), settings);
  ASSERT_FALSE(HasFailure());
  expect_golden(run, "sft_qwen3");
  const auto config = nlohmann::json::parse(read_file(run / "final/adapter_config.json"));
  EXPECT_EQ(config.at("use_rslora"), true);
  expect_log_probs(run / "final", want.at("logps_after"), folder);
}

// What is dropped is the same in every layout and where layers are computed again, another thing in
// each step, and nothing in evaluation.
TEST(Dropout, IsTheSameInEveryLayout) {
  TemporaryFolder folder;
  const std::string recipe = golden("sft_qwen3").at("recipe");
  const std::string eval = "data.eval=[{path: " + (goldens() / "rows.jsonl").string() + "}]";
  const auto launch = [&](const std::string& name, std::vector<std::string> settings) {
    settings.insert(settings.end(), {"roles.student.lora.lora_dropout=0.3", eval,
                                     "train.learning_rate=1.0e-12", "train.eval_steps=5"});
    launch_in(folder / name, recipe, settings);
    return folder / name / "run";
  };
  const fs::path one = launch("one", {}), tp = launch("tp", kTp), pp = launch("pp", kPpDp);
  const fs::path again = launch("again", {"train.gradient_checkpointing=true"});
  const fs::path other = launch("other", {"seed=4"});
  ASSERT_FALSE(HasFailure());
  const auto expect_same = [&](const fs::path& run, const std::string& key, double tolerance) {
    const std::vector<double> got = column(run, key), want = column(one, key);
    ASSERT_TRUE(!want.empty() && got.size() == want.size()) << key;
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], want[i], tolerance * std::max(1.0, std::abs(want[i]))) << key << i;
  };
  for (const char* key : {"loss", "grad_norm"}) {
    expect_same(tp, key, 1e-5), expect_same(pp, key, 1e-5);
    expect_same(again, key, 1e-6);
    EXPECT_GT(std::abs(column(other, key).at(0) - column(one, key).at(0)), 1e-4) << key;
  }
  EXPECT_GT(std::abs(column(one, "loss").at(0) - golden("sft_qwen3").at("loss")[0].get<double>()),
            1e-3);
  expect_same(other, "eval_loss", 1e-9);
  const auto config = nlohmann::json::parse(read_file(one / "final/adapter_config.json"));
  EXPECT_EQ(config.at("lora_dropout"), 0.3);
}

// `retort check` computes with the adapter that training starts from.
TEST(Start, IsCheckedWithItsAdapter) {
  TemporaryFolder folder;
  const std::string recipe = fresh_recipe("sft", "");
  launch_in(folder.path(), recipe, {"train.max_steps=1"});
  const auto cross_entropy = [&](std::vector<std::string> args) {
    args.insert(args.begin(), {"check", (folder / "recipe.yaml").string()});
    const auto result = retort(args);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    const size_t line = result.output.find("cross-entropy against fp64");
    EXPECT_NE(line, std::string::npos) << result.output;
    return result.output.substr(line, result.output.find('\n', line) - line);
  };
  const std::string base = cross_entropy({"roles.student.lora=null"});
  EXPECT_EQ(cross_entropy({}), base) << "a new adapter changes nothing";
  EXPECT_NE(cross_entropy({"roles.student.lora.adapter=" + (goldens() / "lora_qwen3").string()}),
            base);
}

// The student without a new adapter is the reference that a role with the same model is.
TEST(Reference, IsTheStudentWithoutItsAdapter) {
  TemporaryFolder folder;
  const std::string own = "kto: {beta: 0.1, reference: student}\n";
  const std::string role = "kto: {beta: 0.1}\n";
  const std::string declared =
      "roles.reference={model: " + (goldens() / "qwen3").string() + ", world: {threads: 1}}";
  launch_in(folder / "own", fresh_recipe("kto", own), {});
  launch_in(folder / "pp", fresh_recipe("kto", own), {"roles.student.world.pp=2"});
  launch_in(folder / "role", fresh_recipe("kto", role), {declared});
  ASSERT_FALSE(HasFailure());
  for (const char* key : {"loss", "grad_norm", "kl", "rewards/chosen", "logps/rejected"})
    for (const std::string name : {"own", "pp"})
      expect_same_column(folder / name / "run", folder / "role/run", key, 1e-5);

  // Without an adapter it moves, and what is of a role has no effect.
  const std::string moves =
      launch_in(folder / "m", fresh_recipe("kto", own), {"roles.student.lora=null"}, 2);
  EXPECT_NE(moves.find("cannot be its own reference"), std::string::npos) << moves;
  const std::string cache = launch_in(folder / "x", fresh_recipe("kto", own),
                                      {"kto.reference_cache=" + folder.path().string()}, 2);
  EXPECT_NE(cache.find("kto.reference_cache: has no effect"), std::string::npos) << cache;
}

// An adapter that training starts from is what it is compared with, in every layout: ln 2 and no
// margin at first, and from then on what a role with the merged model answers.
TEST(Reference, IsTheAdapterThatTrainingBeganWith) {
  TemporaryFolder folder;
  const std::string recipe = golden("dpo_qwen3").at("recipe");
  const fs::path merged = folder / "merged";
  const auto result =
      retort({"model", "merge", (goldens() / "lora_qwen3").string(), "--output", merged.string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  launch_in(folder / "role", recipe,
            {"dpo.reference=reference",
             "roles.reference={model: " + merged.string() + ", world: {threads: 1}}"});

  const std::vector<std::pair<std::string, std::vector<std::string>>> layouts{
      {"one", {}},
      {"tp", {"roles.student.world.tp=2"}},
      {"pp", {"roles.student.world.pp=2"}},
      {"bfloat16", {"roles.student.dtype=bfloat16"}}};
  for (const auto& [name, settings] : layouts) {
    launch_in(folder / name, recipe, settings);
    ASSERT_FALSE(HasFailure()) << name;
    const fs::path run = folder / name / "run";
    const bool exact = name != "bfloat16";
    EXPECT_NEAR(column(run, "loss").front(), std::log(2.0), exact ? 1e-6 : 2e-2) << name;
    EXPECT_NEAR(column(run, "rewards/margins").front(), 0, exact ? 1e-5 : 4e-2) << name;
    if (!exact) continue;
    EXPECT_GT(std::abs(column(run, "rewards/margins").back()), 1e-3) << name;
    for (const char* key : {"loss", "grad_norm", "rewards/margins", "rewards/chosen"})
      expect_same_column(run, folder / "role/run", key, 1e-5);
  }
}

// A resumed run is compared with the adapter that it began with, not with what it resumes from.
TEST(Reference, IsTheFirstAdapterWhenResumed) {
  TemporaryFolder folder;
  const std::string recipe = golden("dpo_qwen3").at("recipe");
  launch_in(folder / "whole", recipe, {});
  launch_in(folder / "part", recipe, {"train.exit_interval=2"}, 4);

  const std::string later = "roles.student.lora.adapter=" + (folder / "whole/run/final").string();
  const std::string other = launch_in(folder / "part", recipe, {"--resume", later}, 2);
  EXPECT_NE(other.find("the reference changed since"), std::string::npos) << other;
  const std::string none =
      launch_in(folder / "part", recipe, {"--resume", "roles.student.lora.adapter=null"}, 2);
  EXPECT_NE(none.find("the reference changed since"), std::string::npos) << none;

  launch_in(folder / "part", recipe, {"--resume"});
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(timeless_metrics(folder / "part/run"), timeless_metrics(folder / "whole/run"));
}

// So is a policy that starts from an adapter: no distance at first.
TEST(Grpo, StartsAtItsAdapter) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe{.data = write_prompts(folder)};
  recipe.block = {{"beta", "0.05"}, {"reference", "student"}};
  const fs::path run =
      run_adapter(folder / "run", recipe,
                  {"roles.student.lora.lora_alpha=8",
                   "roles.student.lora.adapter=" + (goldens() / "lora_qwen3").string()});
  ASSERT_FALSE(HasFailure());
  EXPECT_NEAR(column(run, "kl").front(), 0, 1e-6);
  EXPECT_GT(column(run, "kl").back(), 1e-4) << "the student has hardly moved";
}

// Generators are sent merged weights: what they say of their tokens is what the student says.
TEST(Grpo, DrawsWithMergedWeights) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe{.data = write_prompts(folder)};
  recipe.block = {
      {"beta", "0.05"}, {"sampling_correction", "token_truncate"}, {"reference", "student"}};
  recipe.generation["save_samples"] = "true";
  const auto launch = [&](const std::string& name, const std::vector<std::string>& settings) {
    return run_adapter(folder / name, recipe, settings);
  };
  const fs::path run = launch("own", {});
  ASSERT_FALSE(HasFailure());
  EXPECT_GT(column(run, "kl").back(), 1e-4) << "the student has hardly moved";
  const std::vector<double> difference = column(run, "sampling_logp_difference/mean");
  ASSERT_EQ(difference.size(), 4u);
  for (const double value : difference)
    EXPECT_LT(std::abs(value), 1e-5);

  // The same over tensor-parallel ranks, over stages, and with a role for the reference.
  const fs::path split = launch("split", {"roles.student.world.tp=2"});
  const fs::path stages = launch("stages", {"roles.student.world.pp=2"});
  recipe.reference = "qwen3";
  recipe.block.erase("reference");
  const fs::path role = launch("role", {});
  ASSERT_FALSE(HasFailure());
  for (const fs::path& other : {split, stages, role}) {
    expect_same_samples(other, run);
    for (const char* key : {"loss", "kl", "reward", "grad_norm"})
      expect_same_column(other, run, key, 1e-4);
  }
}

// Each rank draws and asks for its own rows; the factors' gradients are those of one process.
TEST(OnPolicyDistill, OfAnAdapterIsThatOfOneProcess) {
  TemporaryFolder folder;
  const OnPolicyRecipe recipe{.recipe = "on_policy_distill",
                              .data = write_prompts(folder),
                              .teacher = "teacher",
                              .rows = 4,
                              .block = {{"payload", "topk"}, {"loss_top_k", "8"}},
                              .generation = {{"max_new_tokens", "10"}, {"save_samples", "true"}},
                              .data_extra = "  packing: false\n"};
  const fs::path one = run_adapter(folder / "one", recipe, {});
  const fs::path two =
      run_adapter(folder / "two", recipe,
                  {"roles.student.world.dp=2", "roles.student.world.distributed_optimizer=true",
                   "train.per_device_train_batch_size=2"});
  ASSERT_FALSE(HasFailure());
  expect_same_samples(two, one);
  for (const char* key : {"loss", "kd_loss", "grad_norm", "num_tokens"})
    expect_same_column(two, one, key, 1e-4);
}

}  // namespace
}  // namespace retort::test
