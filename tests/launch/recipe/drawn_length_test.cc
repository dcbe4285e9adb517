// Recipes that would draw sequences across the length at which a model's rotary frequencies change.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "tests/launch/keys/key_bases.h"
#include "tests/launch/recipe/recipe_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

class DrawnLength : public RecipeTest {
 protected:
  DrawnLength() { write_key_files(folder_); }

  // The student, which is the generator's model too, changes its frequencies above 12 tokens.
  void write_rope(const std::string& type) {
    const auto path = folder_ / "student/config.json";
    auto config = nlohmann::json::parse(read_file(path));
    const auto half = config.at("head_dim").get<size_t>() / 2;
    nlohmann::json rope{{"rope_type", type}, {"factor", 4.0}};
    if (type == "longrope") {
      rope["short_factor"] = std::vector<double>(half, 1.0);
      rope["long_factor"] = std::vector<double>(half, 4.0);
      rope["original_max_position_embeddings"] = 12;
    } else {
      config["max_position_embeddings"] = 12;
    }
    config["rope_scaling"] = rope;
    std::ofstream(path) << config.dump();
  }
  // What loading the recipe says; "": it loads.
  std::string said(const std::string& recipe, const std::vector<std::string>& overrides) {
    std::ofstream(folder_ / "r.yaml") << with_folder(recipe);
    const auto error = thrown([&] { launch::load_recipe(folder_ / "r.yaml", overrides); });
    return error ? error->message() : "";
  }
};

TEST_F(DrawnLength, IsRefusedBeyondTheFixedFrequencies) {
  EXPECT_EQ(said(kGrpoBase, {}), "");
  for (const std::string type : {"longrope", "dynamic"}) {
    write_rope(type);
    const std::string too_many = "generation.max_new_tokens=12";
    const std::string refusal = said(kGrpoBase, {too_many});
    EXPECT_NE(refusal.find("generation.max_new_tokens: a completion of 12 tokens has no prompt "
                           "before it, and above 12 the rope type '" +
                           type + "' of "),
              std::string::npos)
        << refusal;
    EXPECT_NE(refusal.find("write 11 or less"), std::string::npos) << refusal;
    // Its prompts may be short, whatever data.max_length allows.
    EXPECT_EQ(said(kGrpoBase, {"generation.max_new_tokens=11"}), "");
    EXPECT_EQ(said(kSftBase, {}), "") << "nothing is drawn";
    EXPECT_NE(said(kOnPolicyBase, {too_many}).find("generation.max_new_tokens"), std::string::npos);
    EXPECT_NE(said(kOnPolicyBase, {"recipe=distill", "distill.lmbda=0.5", too_many})
                  .find("generation.max_new_tokens"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace retort::test
