// Tests which descriptions of a server's model keep our convention, and which do not.
#include "engines/kserve/served_model.h"

#include <gtest/gtest.h>

#include "tests/engines/kserve_recorded.h"
#include "tests/support/thrown.h"

namespace retort::engines::kserve {
namespace {

using Names = std::map<std::string, std::string>;

const Json& metadata() {
  static const Json json = Json::parse(recorded::kModel.body);
  return json;
}
const Json& configuration() {
  static const Json json = Json::parse(recorded::kConfiguration.body);
  return json;
}

// The recorded model with `change` made to its metadata and configuration.
ServedModel changed(const std::function<void(Json&, Json&)>& change, const Names& names = {}) {
  Json model = metadata();
  Json config = configuration();
  change(model, config);
  return read_served_model("small", names, model, config);
}
void expect_refused(const std::string& part, const std::function<void(Json&, Json&)>& change,
                    const Names& names = {},
                    std::source_location caller = std::source_location::current()) {
  test::expect_error(
      ErrorCode::kMismatch, part, [&] { changed(change, names); }, caller);
}

void remove(Json& list, const std::string& name) {
  for (auto one = list.begin(); one != list.end(); ++one)
    if ((*one)["name"] == name) {
      list.erase(one);
      return;
    }
  ADD_FAILURE() << "no " << name;
}
Json& named(Json& list, const std::string& name) {
  for (Json& one : list)
    if (one["name"] == name) return one;
  throw std::logic_error("no " + name);
}

TEST(ServedModel, IsReadFromWhatTritonSays) {
  const ServedModel model = changed([](Json&, Json&) {});
  EXPECT_EQ(model.tensors.size(), 9u);
  EXPECT_TRUE(model.abilities.scores && model.abilities.hidden_states && model.abilities.rewards);
  EXPECT_EQ(model.abilities.max_top_k, 64);
  EXPECT_EQ(model.fixed_k, 0);
  EXPECT_EQ(model.state.vocab_rows, 400);
  EXPECT_EQ(model.state.context_tokens, 256);
  EXPECT_EQ(model.state.served_model, "small");
}

TEST(ServedModel, HasTheAbilitiesOfItsOutputs) {
  const ServedModel model = changed([](Json& model, Json&) {
    for (const char* name : {"given_logprobs", "hidden_states", "scores"})
      remove(model["outputs"], name);
    named(model["outputs"], "topk_ids")["shape"] = {-1, 20};
    named(model["outputs"], "topk_logprobs")["shape"] = {-1, 20};
  });
  EXPECT_FALSE(model.abilities.scores || model.abilities.hidden_states || model.abilities.rewards);
  EXPECT_EQ(model.abilities.max_top_k, 20);
  EXPECT_EQ(model.fixed_k, 20);
}

TEST(ServedModel, SaysHowManyNumbersACompletionGets) {
  for (const auto& [size, labels] : std::map<int64_t, int64_t>{{-1, 1}, {1, 1}, {3, 3}})
    EXPECT_EQ(changed([size = size](Json& model, Json&) {
                named(model["outputs"], "scores")["shape"] = {size};
              }).abilities.rewards,
              labels);
}

TEST(ServedModel, MayHaveNamesOfItsOwn) {
  const Names names{{"input_ids", "tokens"}, {"scores", "value"}};
  const auto rename = [](Json& model, Json& config) {
    named(model["inputs"], "input_ids")["name"] = "tokens";
    named(model["outputs"], "scores")["name"] = "value";
    named(config["input"], "input_ids")["name"] = "tokens";
  };
  EXPECT_EQ(changed(rename, names).tensors.find("scores")->second.name, "value");
  expect_refused("no input input_ids; it has positions, prompt_length, tokens, top_k", rename);
  expect_refused("no output scores (\"value\" there)", [](Json&, Json&) {}, {{"scores", "value"}});
}

TEST(ServedModel, ThatDoesNotKeepTheConventionIsRefused) {
  // Who it is, and what it takes.
  expect_refused("asked for model \"small\", told of \"x\"",
                 [](Json& model, Json&) { model["name"] = "x"; });
  expect_refused(
      "input input_ids: datatype \"INT64\"; expected one of INT32",
      [](Json& model, Json&) { named(model["inputs"], "input_ids")["datatype"] = "INT64"; });
  expect_refused(
      "input input_ids: shape [-1, -1]; expected [-1]; the first is that of batches: set "
      "max_batch_size to 0",
      [](Json& model, Json&) {
        named(model["inputs"], "input_ids")["shape"] = {-1, -1};
      });

  // What it gives, with sizes that can be relied on.
  expect_refused("output scores: shape [1, 2]; expected [-1]", [](Json& model, Json&) {
    named(model["outputs"], "scores")["shape"] = {1, 2};
  });
  expect_refused("scores: its size is 0",
                 [](Json& model, Json&) { named(model["outputs"], "scores")["shape"] = {0}; });
  expect_refused("hidden_states: its second size is open", [](Json& model, Json&) {
    named(model["outputs"], "hidden_states")["shape"] = {-1, -1};
  });

  // The two of a top k belong together, and a request says how many it wants.
  expect_refused("one of topk_ids and topk_logprobs",
                 [](Json& model, Json&) { remove(model["outputs"], "topk_ids"); });
  expect_refused("differ in their second size", [](Json& model, Json&) {
    named(model["outputs"], "topk_ids")["shape"] = {-1, 20};
  });
  expect_refused("no input top_k [1] that says it",
                 [](Json& model, Json&) { remove(model["inputs"], "top_k"); });

  // Without them nothing of ours is left that could be asked for.
  expect_refused("no input positions",
                 [](Json& model, Json&) { remove(model["inputs"], "positions"); });
  expect_refused("gives nothing that is ours; it gives logits", [](Json& model, Json&) {
    model["outputs"] = Json::parse(R"([{"name":"logits","datatype":"FP32","shape":[-1]}])");
  });
}

TEST(ServedModel, NeedsNoInputsThatNobodyFills) {
  const Json extra = Json::parse(R"({"name":"mask","datatype":"INT32","shape":[-1]})");
  expect_refused("needs an input \"mask\"",
                 [&](Json& model, Json&) { model["inputs"].push_back(extra); });
  changed([&](Json& model, Json& config) {
    model["inputs"].push_back(extra);
    config["input"].push_back({{"name", "mask"}, {"optional", true}});
  });
}

TEST(ServedModel, HasSaneParameters) {
  for (const char* wrong : {"", "0", "-3", "4k", "99999999999"})
    expect_refused("parameter vocab_rows is", [&](Json&, Json& config) {
      config["parameters"]["vocab_rows"]["string_value"] = wrong;
    });
  const auto without_k = [](Json&, Json& config) { config["parameters"].erase("max_top_k"); };
  EXPECT_EQ(changed(without_k).abilities.max_top_k, 400) << "as many as there are";
  expect_refused("a parameter max_top_k", [&](Json&, Json& config) { config.erase("parameters"); });
}

TEST(TensorNames, AreOursAndDiffer) {
  check_tensor_names({{"input_ids", "tokens"}});
  test::expect_refused("topk_ids", [] { check_tensor_names({{"topk_idz", "x"}}); });
  test::expect_refused("is empty", [] { check_tensor_names({{"topk_ids", ""}}); });
  test::expect_refused("input_ids and positions have the same name", [] {
    check_tensor_names({{"input_ids", "x"}, {"positions", "x"}});
  });
}

}  // namespace
}  // namespace retort::engines::kserve
