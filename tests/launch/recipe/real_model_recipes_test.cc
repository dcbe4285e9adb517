// The recipes for real models fit where they say, and need what docs/recipes/real_models.md says.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "launch/plan/plan_json.h"
#include "tests/data/word_tokenizer.h"
#include "tests/launch/recipe/recipe_fixture.h"
#include "tests/support/source_folder.h"

namespace retort::test {
namespace {

using nlohmann::json;

constexpr double kMiB = 1048576;

// What Qwen3's released models have in their config.json.
struct Qwen3 {
  const char* name;
  int hidden, inner, layers, heads;
  bool tied;
};
const std::vector<Qwen3> kModels{{"Qwen3-1.7B", 2048, 6144, 28, 16, true},
                                 {"Qwen3-4B", 2560, 9728, 36, 32, true},
                                 {"Qwen3-8B", 4096, 12288, 36, 32, false}};

class RealModels : public RecipeTest {
 protected:
  RealModels() {
    for (const Qwen3& model : kModels) {
      const auto folder = folder_ / "models" / model.name;
      std::filesystem::create_directories(folder);
      word_tokenizer(folder);
      std::ofstream(folder / "config.json") << json{{"architectures", {"Qwen3ForCausalLM"}},
                                                    {"model_type", "qwen3"},
                                                    {"hidden_size", model.hidden},
                                                    {"intermediate_size", model.inner},
                                                    {"num_hidden_layers", model.layers},
                                                    {"num_attention_heads", model.heads},
                                                    {"num_key_value_heads", 8},
                                                    {"head_dim", 128},
                                                    {"vocab_size", 151936},
                                                    {"max_position_embeddings", 40960},
                                                    {"rms_norm_eps", 1e-6},
                                                    {"rope_theta", 1000000},
                                                    {"tie_word_embeddings", model.tied},
                                                    {"hidden_act", "silu"},
                                                    {"attention_bias", false},
                                                    {"eos_token_id", 1}};
    }
    put(folder_ / "rows.jsonl", R"({"prompt": "a", "completion": "b", "answer": "1"})"
                                "\n");
    put(folder_ / "pairs.jsonl", R"({"prompt": "a", "chosen": "b", "rejected": "c"})"
                                 "\n");
  }

  json plan(const std::string& name, std::vector<std::string> overrides) {
    for (std::string& one : overrides)
      one = with_folder(one);
    const std::string text = read_file(source_folder() / "recipes/configs" / (name + ".yaml"));
    json all = json::parse(launch::plan_json(load(text, overrides, {.cuda = true})));
    for (const json& role : all.at("roles"))
      EXPECT_LT(role.at("peak_bytes_per_rank").get<double>(), 72 * 1024 * kMiB)
          << "a GPU of 80 GB has room for no more: " << role;
    return all;
  }

  // "| role | ranks | peak MiB |" and "| transfer | MiB | seconds |", as the page has them.
  static void expect_in_page(const json& plan) {
    const std::string page = read_file(source_folder() / "docs/recipes/real_models.md");
    const auto expect_row = [&](const std::string& row) {
      EXPECT_NE(page.find(row), std::string::npos) << "docs/recipes/real_models.md lacks " << row;
    };
    char row[200];
    for (const json& role : plan.at("roles")) {
      std::snprintf(row, sizeof(row), "| %s | %d | %.0f |",
                    role.at("role").get<std::string>().c_str(), role.at("ranks").get<int>(),
                    role.at("peak_bytes_per_rank").get<double>() / kMiB);
      expect_row(row);
    }
    for (const json& transfer : plan.at("transfers")) {
      std::snprintf(row, sizeof(row), "| %s | %.0f | %.2f | %d |",
                    transfer.at("what").get<std::string>().c_str(),
                    transfer.at("bytes").get<double>() / kMiB, transfer.at("seconds").get<double>(),
                    transfer.at("every_steps").get<int>());
      expect_row(row);
    }
  }
};

TEST_F(RealModels, AnEightBTeacherOnEightGpus) {
  const json all = plan("qwen3_8b_to_1.7b", {"roles.student.model=FOLDER/models/Qwen3-1.7B",
                                             "roles.teacher.model=FOLDER/models/Qwen3-8B",
                                             "data.train=[{path: FOLDER/rows.jsonl}]"});
  expect_in_page(all);
  // Each rank has a GPU of its own.
  const auto devices = [&](size_t role) {
    return all.at("roles").at(role).at("devices").at(0).at("devices").get<std::vector<int>>();
  };
  EXPECT_EQ(devices(0), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(devices(1), (std::vector<int>{4, 5, 6, 7}));
}

TEST_F(RealModels, GrpoBesideAVllmServer) {
  expect_in_page(
      plan("grpo_vllm_two_hosts", {"roles.student.model=FOLDER/models/Qwen3-4B",
                                   "roles.generator.external.tokenizer=FOLDER/models/Qwen3-4B",
                                   "data.train=[{path: FOLDER/rows.jsonl}]"}));
}

TEST_F(RealModels, LoraDpoOnOneGpu) {
  expect_in_page(plan("qwen3_8b_lora_dpo", {"roles.student.model=FOLDER/models/Qwen3-8B",
                                            "data.train=[{path: FOLDER/pairs.jsonl}]"}));
}

}  // namespace
}  // namespace retort::test
