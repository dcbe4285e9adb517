// Rows of the keys of `environment:` and of roles that are environments.
#include "tests/launch/keys/key_bases.h"
#include "tests/launch/keys/key_observables.h"
#include "tests/launch/keys/key_rows.h"

namespace retort::test {
namespace {

using namespace observed;

std::vector<KeyRow> environment_role_rows() {
  const std::string role = "roles.<name>.environment", tools = "roles.tools.environment";
  const std::string calls = "tests/roles/environment_test.cc";
  const std::string served = tools + "={url: 'http://127.0.0.1:9'}";
  const std::vector<std::string> service{served};
  const auto refused_beside = [&](const std::string& change, const std::string& message) {
    return refused(kToolsBase, "roles.tools." + change, message);
  };
  return {
      acts(kToolsBase, served, episodes),
      refused(kToolsBase, "roles.generator.environment={command: [a]}",
              "a role has a `model`, is `external` or an `environment`"),
      refused(kToolsBase, "roles.student.environment={command: [a]}",
              "the student trains here; it needs a `model`"),
      refused(kGrpoBase, "roles.tools={environment: {command: [a]}}",
              "the block `environment: {role: tools}` is missing"),
      refused(kToolsBase, "roles.more={environment: {command: [a]}}",
              "no part of this recipe uses the role"),
      acts(kToolsBase, tools + ".command=[other]", episodes),
      refused(kToolsBase, tools + ".command=[]", "is missing, and so is url"),
      acts(kToolsBase, tools + ".url='http://127.0.0.1:8'", episodes, service),
      refused(kToolsBase, tools + ".url='http://127.0.0.1:9'", "command is given too"),
      acts(kToolsBase, tools + ".api_key_file=FOLDER/key", plan, service),
      acts(kToolsBase, tools + ".ca_file=FOLDER/ca.pem", plan, service),
      refused(kToolsBase, tools + ".api_key_env=KEY", "has no effect without url"),
      in_run(role + ".api_key_env", "tests/launch/recipe/environment_recipe_test.cc",
             "api_key_env=RETORT_TOOLS_KEY"),
      in_run(role + ".episodes", calls, "EXPECT_EQ(info.episodes, 4)"),
      refused(kToolsBase, tools + ".episodes=300", "rpc.max_inflight_calls lets 256"),
      refused(kToolsBase, tools + ".episodes=0", "is not in [1, 100000]"),
      acts(kToolsBase, tools + ".start_timeout=1h", episodes),
      refused(kToolsBase, tools + ".start_timeout=0s", "must be positive"),

      // What a role with a model may have.
      refused_beside("dtype=bfloat16", "an environment has no weights"),
      refused_beside("lora={r: 4}", "an environment has no weights"),
      refused_beside("batching=dynamic", "an environment answers each turn alone"),
      refused_beside("devices=[0]", "computes on no device of the run"),
      refused_beside("world.device=cuda", "computes on no device of the run"),
      refused_beside("world.tp=2", "one process a replica"),
      refused_beside("world.pp=2", "one process a replica"),
  };
}

std::vector<KeyRow> block_rows() {
  const std::string block = "environment={role: tools, max_tokens: 8}";
  return {
      acts(kToolsBase, "environment={max_tokens: 9}", episodes),
      acts(kRejectionToolsBase, "environment.max_tokens=9", episodes),
      acts(kTaughtToolsBase, "environment.max_tokens=9", episodes),
      acts(kTaughtToolsBase, "environment.max_turns=3", episodes,
           {"recipe=distill", "distill.lmbda=1"}),
      refused(kTaughtToolsBase, "distill.lmbda=0.5", "which are no episodes",
              {"recipe=distill", "distill.lmbda=1"}),
      refused(kSftBase, block,
              "this block belongs to recipe: grpo, rejection_sampling or "
              "on_policy_distill, the recipe is sft"),
      refused(kToolsBase, "environment.role=generator", "\"generator\" has no environment"),
      refused(kToolsBase, "environment.role=tool", "'tool' is not declared under roles; did you"),
      refused(kToolsBase, "rewards=[{type: model, role: tools}]",
              "'tools' is an environment, which scores its own episodes"),
      refused(kGrpoBase, "rewards=[{type: environment}]", "needs the block `environment`"),

      acts(kToolsBase, "environment.max_turns=3", episodes),
      refused(kToolsBase, "environment.max_turns=0", "max_turns must be at least 1"),
      acts(kToolsBase, "environment.max_tokens=9", episodes),
      refused(kToolsBase, "environment.max_tokens=0", "max_tokens must be at least 1"),
      refused(kToolsBase, "environment.max_tokens=16",
              "leaves no room for a prompt in data.max_length = 16"),
      refused(kToolsBase, "environment.max_tokens=3", "is below generation.max_new_tokens = 4"),
      acts(kToolsBase, "environment.timeout=30s", episodes),
      refused(kToolsBase, "environment.timeout=0s", "timeout must be positive"),
      acts(kToolsBase, "environment.episode_timeout=5m", episodes),
      refused(kToolsBase, "environment.episode_timeout=5s", "must be at least timeout"),
      refused(kToolsBase, "generation.timeout=29m", "is below the 30m that an episode may wait"),
      acts(kToolsBase, "environment.tool_format=pythonic", episodes),

      // What other keys may say beside it.
      refused(kToolsBase, "generation.stop=[w3]", "a turn ends at the template's end token"),
      refused(kToolsBase, "data.train.0.format=alpaca", "has no conversation, with which an"),
      refused(kToolsBase, "data.train.0.format=input_ids", "has no conversation, with which an"),
      acts(kToolsBase, "environment.max_turns=4", episodes, {"data.train.0.format=sharegpt"}),
      refused(kRejectionToolsBase, "rejection_sampling.prompts_per_round=0",
              "how long their episodes wait for room in the environment is not known"),
      acts(kRejectionToolsBase, "environment.max_turns=4", episodes,
           {"rejection_sampling.prompts_per_round=0", "generation.timeout=2h"}),
      refused(kTaughtToolsBase, "train.tokens_per_batch=64",
              "episodes, whose lengths are not known before they are drawn",
              {"train.per_device_train_batch_size=null"}),
      refused(kTaughtToolsBase, "train.batch_size_rampup_steps=4",
              "batches are what the generator drew", {"train.gradient_accumulation_steps=2"}),
      refused(kTaughtToolsBase, "generation.eval_num_generations=4",
              "has no effect without data.eval"),
      refused(kTaughtToolsBase, "data.packing=false", "episodes are always laid end to end"),
      refused(kToolsBase, "grpo.overlong_penalty_tokens=9",
              "must be at most environment.max_tokens = 8"),
  };
}

}  // namespace

std::vector<KeyRow> episode_rows() {
  std::vector<KeyRow> all = environment_role_rows();
  for (KeyRow& row : block_rows())
    all.push_back(std::move(row));
  return all;
}

}  // namespace retort::test
