// What a recipe asks of an engine that plays one of its roles.
#include "engines/contract/contract.h"
#include "recipes/roles/external_roles.h"
#include "tests/launch/recipe/recipe_fixture.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

using engines::Needs;
using engines::Purpose;

std::string external(const std::string& engine, const std::string& more) {
  return "{external: {engine: " + engine + ", url: ['http://127.0.0.1:9'], " + more + "}}";
}

class ExternalRecipe : public RecipeTest {
 protected:
  // Of a teacher.
  Needs distilled(const std::string& engine, const std::vector<std::string>& distill) {
    const std::string model = (source_folder() / "tests/models/goldens/qwen3").string();
    std::vector<std::string> all{"roles.teacher=null",
                                 "roles.teacher=" + external(engine, "tokenizer: " + model)};
    all.insert(all.end(), distill.begin(), distill.end());
    return recipes::engine_needs(load(kDistill, all), "teacher");
  }
};

TEST_F(ExternalRecipe, TeachersNeedTheirPayload) {
  const Needs hidden = distilled("kserve", {});
  EXPECT_EQ(hidden.what, Purpose::kHiddenStates);
  EXPECT_EQ(hidden.hidden_size, 32);
  EXPECT_EQ(hidden.role, "teacher");
  EXPECT_EQ(hidden.objective, "distill");

  const Needs top = distilled("vllm", {"distill.payload=topk", "distill.loss_top_k=16"});
  EXPECT_EQ(top.what, Purpose::kTopK);
  EXPECT_EQ(top.top_k, 16);
  EXPECT_TRUE(top.tail_mass);
  const Needs warm = distilled(
      "vllm", {"distill.payload=topk", "distill.tail=renormalize", "distill.temperature=2"});
  EXPECT_EQ(warm.temperature, 2);
  EXPECT_FALSE(warm.tail_mass);
}

// Which engines take ids that the student names, and what does instead.
TEST_F(ExternalRecipe, IdsOfTheStudentNeedVllm) {
  const auto support = [&](const std::string& engine, const std::string& which,
                           const std::vector<std::string>& more = {}) {
    std::vector<std::string> all{"distill.payload=topk", "distill.support=" + which};
    all.insert(all.end(), more.begin(), more.end());
    return distilled(engine, all);
  };
  EXPECT_TRUE(support("vllm", "student").names_ids);
  EXPECT_FALSE(support("vllm", "teacher").names_ids);
  for (const std::string engine : {"sglang", "llamacpp", "kserve"}) {
    expect_refused("use engine: vllm, support: teacher with 'teacher', or a teacher of ours",
                   [&] { support(engine, "student"); });
    expect_refused(engine + " does not", [&] { support(engine, "student"); });
  }
  expect_refused("use support: student with engine: vllm", [&] { support("vllm", "union"); });
  expect_refused("names are those at temperature 1", [&] {
    support("vllm", "student", {"distill.temperature=2", "distill.tail=renormalize"});
  });
}

}  // namespace
}  // namespace retort::test
