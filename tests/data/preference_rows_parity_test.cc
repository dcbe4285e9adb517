// Preference rows give the ids that TRL's DPOTrainer gives them (make_goldens.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "recipes/data/preference.h"
#include "tests/support/source_folder.h"

namespace retort::data {
namespace {
using Json = nlohmann::ordered_json;

constexpr const char* kTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

TEST(PreferenceParity, EqualsTrl) {
  const std::filesystem::path tests = test::source_folder() / "tests";
  std::ifstream file(tests / "data" / "preference_goldens.jsonl");
  const models::ChatTemplate chat = models::ChatTemplate::from_source(kTemplate, "", "");
  std::map<std::string, models::Tokenizer> tokenizers;
  int rows = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    const Json golden = Json::parse(line);
    const std::string name = golden["tokenizer"];
    const auto tokenizer =
        tokenizers.try_emplace(name, models::Tokenizer::load(tests / "text" / "goldens" / name))
            .first;
    const PreferenceSample pair = make_preference(golden["row"].dump(), "row", {.path = "row"},
                                                  tokenizer->second, chat, 10000);
    EXPECT_EQ(pair.prompt_ids, golden["prompt_ids"].get<std::vector<int32_t>>()) << line;
    EXPECT_EQ(pair.chosen_ids, golden["chosen_ids"].get<std::vector<int32_t>>()) << line;
    EXPECT_EQ(pair.rejected_ids, golden["rejected_ids"].get<std::vector<int32_t>>()) << line;
  }
  EXPECT_EQ(rows, 20);
}

}  // namespace
}  // namespace retort::data
