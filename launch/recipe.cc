#include "launch/recipe.h"

#include <algorithm>
#include <set>

#include "base/file.h"
#include "launch/child_process.h"
#include "launch/later_names.h"
#include "launch/yaml_reader.h"
#include "launch/yaml_tree.h"
#include "launch/yaml_writer.h"
#include "models/placement.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

// What can only be seen by looking at several blocks, or outside the recipe.
class CrossCheck {
 public:
  CrossCheck(const Recipe& recipe, const YamlNode& root, const LoadOptions& options)
      : recipe_(recipe), root_(root), options_(options) {}

  void run() const {
    check_top_level();
    check_roles();
    check_data();
    if (recipe_.distill) check_distill();
    if (recipe_.dpo) check_dpo();
    if (recipe_.generation) check_generation();
    if (recipe_.grpo) check_grpo();
    if (recipe_.rejection_sampling) check_rejection_sampling();
    if (options_.check_files) check_files();
  }

  // The place of the deepest node of `path` that was written.
  YamlPlace place_of(const std::vector<std::string>& path) const {
    const YamlNode* node = &root_;
    YamlPlace place = root_.place;
    for (const auto& key : path) {
      if (node->kind == YamlNode::Kind::kList) {
        const size_t index = std::stoul(key);
        if (index >= node->items.size()) break;
        node = &node->items[index];
        place = node->place;
        continue;
      }
      const auto* entry = node->find(key);
      if (!entry) break;
      node = &entry->value;
      place = node->place.source.empty() || node->kind != YamlNode::Kind::kScalar ? entry->place
                                                                                  : node->place;
    }
    return place;
  }

  bool written(const std::vector<std::string>& path) const {
    const YamlNode* node = &root_;
    for (const auto& key : path) {
      const auto* entry = node->find(key);
      if (!entry || entry->value.kind == YamlNode::Kind::kNull) return false;
      node = &entry->value;
    }
    return true;
  }

 private:
  [[noreturn]] void refuse(const std::vector<std::string>& path, const std::string& message,
                           ErrorCode code = ErrorCode::kInvalidArgument) const {
    std::string name;
    for (const auto& key : path)
      name += (name.empty() ? "" : ".") + key;
    throw Error(code, place_of(path).prefix() + (name.empty() ? "" : name + ": ") + message);
  }

  void check_top_level() const {
    if (!written({"recipe"}))
      refuse({}, "`recipe` is missing; expected recipe: " + enum_choices<RecipeKind>());
    if (recipe_.output_dir.empty())
      refuse(
          {},
          "`output_dir` is missing; expected the folder of the run, e.g. output_dir: runs/first");
    using K = RecipeKind;
    check_block("distill", recipe_.distill.has_value(), {K::kDistill, K::kOnPolicyDistill},
                "distill: {teachers: [{role: teacher}]}");
    check_block("dpo", recipe_.dpo.has_value(), {K::kDpo}, "dpo: {beta: 0.1}");
    check_block("rejection_sampling", recipe_.rejection_sampling.has_value(),
                {K::kRejectionSampling}, "rejection_sampling: {rounds: 2}");
    check_block("grpo", recipe_.grpo.has_value(), {K::kGrpo}, "grpo: {loss_type: dapo}");
    check_block("rewards", !recipe_.rewards.empty(), {K::kRejectionSampling, K::kGrpo},
                "rewards: [{type: numeric}]");
    const bool generates =
        recipe_.distill ? recipe_.distill->lmbda > 0
                        : recipe_.recipe == K::kRejectionSampling || recipe_.recipe == K::kGrpo;
    if (recipe_.generation && !generates)
      refuse({"generation"}, recipe_.distill ? "has no effect with distill.lmbda: 0"
                                             : "this recipe draws no samples; remove the block");
    if (!recipe_.generation && generates)
      refuse({},
             "`generation` is missing; this recipe draws samples and needs at least generation: "
             "{role: generator}");
    if (!recipe_.rpc.device_maps.empty())
      refuse({"rpc", "device_maps"},
             "has no effect: what roles exchange travels through host memory; remove it");
    if (recipe_.weight_sync && !generates)
      refuse({"weight_sync"}, "has no effect without a generator; remove the block");
  }

  // A block must stand exactly where its recipe is.
  void check_block(const std::string& name, bool given, const std::vector<RecipeKind>& of,
                   const std::string& least) const {
    const bool wanted = std::find(of.begin(), of.end(), recipe_.recipe) != of.end();
    const std::string kind(enum_name(recipe_.recipe));
    if (given && !wanted) {
      std::string owners;
      for (const RecipeKind owner : of)
        owners += (owners.empty() ? "" : " or ") + std::string(enum_name(owner));
      refuse({name}, "this block belongs to recipe: " + owners + ", the recipe is " + kind);
    }
    if (!given && wanted)
      refuse({}, "`" + name + "` is missing; recipe: " + kind + " needs at least " + least);
  }

  void check_roles() const {
    if (!recipe_.roles.contains(Recipe::kDrivingRole))
      refuse({"roles"}, "`student` is missing; every recipe is driven by a role of that name" +
                            nearest_role(Recipe::kDrivingRole));
    for (const auto& [name, role] : recipe_.roles) {
      if (name.empty() || name.find_first_not_of(
                              "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") !=
                              std::string::npos)
        refuse({"roles", name}, "a role's name may hold letters, digits, _ and - only");
      check_role(name, role);
    }
  }

  void check_role(const std::string& name, const RoleOptions& role) const {
    const bool driving = name == Recipe::kDrivingRole;
    if (role.model.empty())
      refuse({"roles", name}, "`model` is missing; expected a Hugging Face model folder");
    check_world(name, role.world, driving);
    if (role.world.device == parallel::Device::kCuda && !options_.cuda)
      refuse({"roles", name, "world", "device"},
             "this build has no CUDA module (libretort_cuda.so beside the program); make it with "
             "./dev build --cuda, or use "
             "device: cpu",
             ErrorCode::kUnavailable);
    if (role.world.device == parallel::Device::kCuda && recipe_.is_generator(name))
      refuse({"roles", name, "world", "device"}, "generation computes on the CPU; use device: cpu",
             ErrorCode::kUnavailable);
    check_env(name, role);
    if (driving && role.batching != Batching::kAsSent)
      refuse({"roles", name, "batching"},
             "has no effect on the driving role, which serves no requests");
    if (driving) return;
    const auto used = recipe_.serving_roles();
    if (std::find(used.begin(), used.end(), name) == used.end())
      refuse({"roles", name},
             "no part of this recipe uses the role; remove it" + nearest_role(name));
  }

  void check_env(const std::string& name, const RoleOptions& role) const {
    for (const auto& [variable, value] : role.env) {
      const std::vector<std::string> place{"roles", name, "env", variable};
      if (variable.empty() ||
          variable.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != std::string::npos)
        refuse(place, "the name of an environment variable has capital letters, digits and _");
      if (is_launchers_variable(variable))
        refuse(place, "the launcher sets this variable itself; threads are roles." + name +
                          ".world.threads");
      const bool of_devices = variable.starts_with("NCCL_") ||
                              variable.starts_with("TORCH_NCCL_") || variable.starts_with("CUDA_");
      if (of_devices && role.world.device != parallel::Device::kCuda)
        refuse(place, "has no effect with world.device: cpu; remove it, or use device: cuda");
    }
  }

  void check_world(const std::string& name, const parallel::Layout& world, bool driving) const {
    const auto place = [&](const char* field) {
      return std::vector<std::string>{"roles", name, "world", field};
    };
    const std::string serves = "is for the role that trains; " + name + " serves";
    if (!driving && world.distributed_optimizer) refuse(place("distributed_optimizer"), serves);
    if (!driving && world.virtual_pp > 1) refuse(place("virtual_pp"), serves);
    if (recipe_.is_generator(name) && world.pp > 1)
      refuse(place("pp"),
             "a generator is not split over pipeline stages: each token would wait for all of "
             "them; use tp and dp");
    if (recipe_.is_generator(name) && world.sequence_parallel)
      refuse(place("sequence_parallel"),
             "has no effect on a generator, which keeps no activations");
  }

  void check_data() const {
    const auto& data = recipe_.data;
    const auto& train = recipe_.train;
    if (data.train.empty())
      refuse({"data", "train"}, "no training data; expected train: [{path: train.jsonl}]");
    if (train.tokens_per_batch && *train.tokens_per_batch < data.max_length)
      refuse({"train", "tokens_per_batch"},
             "smaller than one row of data.max_length = " + std::to_string(data.max_length));
    if (data.eval.empty() && train.eval_steps != recipes::TrainOptions().eval_steps)
      refuse({"train", "eval_steps"}, "has no effect without data.eval");
    using K = RecipeKind;
    if (train.batch_size_rampup_steps > 0 &&
        (recipe_.recipe == K::kGrpo || recipe_.recipe == K::kRejectionSampling))
      refuse({"train", "batch_size_rampup_steps"},
             "this recipe's batches are what its generator drew; remove it");
    if (train.batch_size_rampup_steps > 0 && recipe_.recipe == K::kDpo && train.tokens_per_batch)
      refuse({"train", "batch_size_rampup_steps"},
             "batches of pairs by tokens are formed before their step is known; use "
             "per_device_train_batch_size");
  }

  void check_distill() const {
    if (recipe_.distill->use_policy_gradient && recipe_.distill->lmbda != 1.0)
      refuse({"distill", "use_policy_gradient"},
             "needs the student's own samples in every batch; write recipe: on_policy_distill, or "
             "lmbda: 1.0");
    const auto& teachers = recipe_.distill->teachers;
    for (size_t i = 0; i < teachers.size(); ++i) {
      const std::string& role = teachers[i].role;
      const std::vector<std::string> path{"distill", "teachers", std::to_string(i), "role"};
      if (role == Recipe::kDrivingRole) refuse(path, "the student cannot be its own teacher");
      if (!recipe_.roles.contains(role))
        refuse(path, "'" + role + "' is not declared under roles" + nearest_role(role));
    }
  }

  // Every loss but simpo, orpo and sft compares with a reference.
  void check_dpo() const {
    check_no_packing("pairs");
    check_reference({"dpo", "reference"}, recipe_.dpo->reference,
                    losses::needs_reference(recipe_.dpo->preference()),
                    "no loss of this recipe compares with a reference");
  }

  void check_generation() const {
    const std::string& role = recipe_.generation->role;
    if (role == Recipe::kDrivingRole)
      refuse(
          {"generation", "role"},
          "the student trains and cannot generate at once; give the generator a role of its own");
    if (!recipe_.roles.contains(role))
      refuse({"generation", "role"},
             "'" + role + "' is not declared under roles" + nearest_role(role));
    const auto frozen = recipe_.frozen_roles();
    if (std::find(frozen.begin(), frozen.end(), role) != frozen.end())
      refuse({"generation", "role"},
             "'" + role +
                 "' is frozen elsewhere in this recipe and cannot take over the student's weights");
    if (recipe_.roles.at(role).dtype != recipe_.roles.at(Recipe::kDrivingRole).dtype)
      refuse({"roles", role, "dtype"},
             "the generator takes over the student's weights and must have the student's dtype");
    if (!recipe_.grpo && recipe_.weight_sync->every_steps != 1)
      refuse({"weight_sync", "every_steps"},
             "is for grpo; this recipe always draws with the student of now");
    if (recipe_.distill) check_on_policy_distill();
    if (recipe_.distill &&
        recipe_.generation->num_generations != recipes::GenerationOptions().num_generations)
      refuse({"generation", "num_generations"},
             "has no effect: on-policy distillation draws one completion for each prompt");
    if (recipe_.generation->max_new_tokens >= recipe_.data.max_length)
      refuse({"generation", "max_new_tokens"}, "leaves no room for a prompt in data.max_length = " +
                                                   std::to_string(recipe_.data.max_length));
  }

  void check_on_policy_distill() const {
    const auto& distill = *recipe_.distill;
    const auto& generation = *recipe_.generation;
    if (distill.kd_ratio != 1.0)
      refuse({"distill", "kd_ratio"},
             "must be 1 with on-policy batches: cross-entropy on the student's own draws would "
             "teach it what it says already");
    if (distill.use_policy_gradient &&
        (!generation.whole_distribution() || generation.temperature != distill.temperature))
      refuse({"distill", "use_policy_gradient"},
             "is unbiased only for tokens drawn from the student's whole distribution: write "
             "generation.temperature equal to "
             "distill.temperature, and leave top_p, top_k, min_p and repetition_penalty alone");
  }

  // Completions of a step must be whole groups on every rank.
  void check_grpo() const {
    const auto& grpo = *recipe_.grpo;
    const auto& train = recipe_.train;
    if (train.tokens_per_batch)
      refuse({"train", "tokens_per_batch"},
             "is not for grpo; use per_device_train_batch_size, the completions of a micro-batch");
    if (train.num_train_epochs)
      refuse({"train", "num_train_epochs"}, "is not for grpo; use max_steps");
    const int64_t completions =
        train.per_device_train_batch_size.value_or(0) * train.gradient_accumulation_steps;
    const int64_t group = recipe_.generation->num_generations;
    if (completions % group != 0)
      refuse({"train", "per_device_train_batch_size"},
             "per_device_train_batch_size * gradient_accumulation_steps = " +
                 std::to_string(completions) +
                 " completions must be a multiple of generation.num_generations = " +
                 std::to_string(group));
    if (group < 2 && grpo.advantage != recipes::AdvantageType::kReinforcePlusPlus)
      refuse({"generation", "num_generations"},
             "must be at least 2: a sample is compared with the others of its prompt");
    if (train.save_steps % grpo.num_iterations != 0)
      refuse(
          {"train", "save_steps"},
          "must be a multiple of grpo.num_iterations, so that no checkpoint falls inside a round");
    if (recipe_.weight_sync->every_steps - 1 > grpo.max_staleness)
      refuse({"weight_sync", "every_steps"},
             "lets weights lie " + std::to_string(recipe_.weight_sync->every_steps - 1) +
                 " steps behind, more than grpo.max_staleness = " +
                 std::to_string(grpo.max_staleness));
    if (recipe_.generation->temperature == 0)
      refuse({"generation", "temperature"}, "must be above 0: greedy samples are all equal");
    if (grpo.max_staleness > 0 && grpo.sampling_correction == losses::SamplingCorrection::kNone &&
        !recipe_.generation->whole_distribution())
      refuse({"grpo", "max_staleness"},
             "compares with the probabilities that the samples were drawn with; leave top_p, "
             "top_k, min_p and "
             "repetition_penalty alone, or set sampling_correction");
    check_reference({"grpo", "reference"}, grpo.reference, grpo.beta > 0, "grpo.beta is 0");
    check_no_packing("completions");
  }

  void check_rejection_sampling() const {
    const auto& train = recipe_.train;
    if (train.num_train_epochs)
      refuse({"train", "num_train_epochs"},
             "is not for rejection_sampling, whose rows are not known before; use max_steps");
    if (*train.max_steps % recipe_.rejection_sampling->rounds != 0)
      refuse({"train", "max_steps"}, "must be a multiple of rejection_sampling.rounds = " +
                                         std::to_string(recipe_.rejection_sampling->rounds) +
                                         "; every round trains equally long");
    if (recipe_.generation->temperature == 0)
      refuse({"generation", "temperature"}, "must be above 0: greedy samples are all equal");
  }

  void check_no_packing(const std::string& what) const {
    if (!recipe_.data.packing)
      refuse({"data", "packing"},
             "has no effect: " + what +
                 " are always laid end to end, without padding; remove the key");
  }

  void check_reference(const std::vector<std::string>& path, const std::string& role, bool needed,
                       const std::string& why) const {
    if (!needed && written(path) && recipe_.roles.contains(role))
      refuse(path, "has no effect: " + why + "; remove the key and the role");
    if (!needed) return;
    if (role == Recipe::kDrivingRole)
      refuse(path, "the student cannot be its own reference: it moves");
    if (!recipe_.roles.contains(role))
      refuse(path, "'" + role + "' is not declared under roles" + nearest_role(role));
  }

  void check_files() const {
    for (const auto& [name, role] : recipe_.roles) {
      const std::vector<std::string> path{"roles", name, "model"};
      if (!fs::is_directory(role.model))
        refuse(path, "'" + role.model + "' is not a folder; expected a Hugging Face model folder");
      if (!fs::is_regular_file(fs::path(role.model) / "config.json"))
        refuse(path,
               "'" + role.model + "' has no config.json; expected a Hugging Face model folder");
      if (role.world.tp * role.world.pp == 1) continue;
      const models::ModelConfig config = models::read_model_config(role.model);
      try {
        models::check_layout(role.world, config);
      } catch (const Error& error) {
        refuse({"roles", name, "world"}, error.message());
      }
    }
    check_sources("train", recipe_.data.train);
    check_sources("eval", recipe_.data.eval);
  }

  void check_sources(const std::string& block, const std::vector<data::Source>& sources) const {
    for (size_t i = 0; i < sources.size(); ++i)
      if (!fs::is_regular_file(sources[i].path))
        refuse({"data", block, std::to_string(i), "path"},
               "'" + sources[i].path + "' is not a file");
  }

  std::string nearest_role(const std::string& word) const {
    std::vector<std::string_view> names;
    for (const auto& [name, role] : recipe_.roles)
      if (name != word) names.push_back(name);
    const std::string nearest = nearest_name(word, names);
    return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
  }

  const Recipe& recipe_;
  const YamlNode& root_;
  const LoadOptions& options_;
};

void collect_warnings(const Recipe& recipe, const CrossCheck& check,
                      std::vector<std::string>& warnings) {
  if (!recipe.distill) return;
  const auto& distill = *recipe.distill;
  const auto warn = [&](const std::string& field, const std::string& text) {
    warnings.push_back(check.place_of({"distill", field}).prefix() + "distill." + field + ": " +
                       text);
  };
  const bool jsd = distill.loss_type == losses::DivergenceType::kJsd;
  if (jsd && (distill.beta < 0.05 || distill.beta > 0.95))
    warn("beta",
         "jsd is discontinuous at the ends: beta 0 and 1 are forward and reverse KL, and close to "
         "them the loss is far smaller");
  // At its default such a field is allowed (a resolved recipe holds every field), but whoever wrote
  // it may expect it to act.
  const bool top_k = distill.payload == roles::PayloadKind::kTopK;
  for (const std::string field : {"loss_top_k", "tail", "support"})
    if (!top_k && check.written({"distill", field}))
      warn(field, "has no effect without payload: topk");
  if (!jsd && check.written({"distill", "beta"}))
    warn("beta", "has no effect without loss_type: jsd");
}

}  // namespace

void LaunchOptions::validate() const {
  if (collective_timeout.count() <= 0)
    throw Error(ErrorCode::kInvalidArgument, "collective_timeout must be above 0");
  if (stop_timeout.count() <= 0)
    throw Error(ErrorCode::kInvalidArgument, "stop_timeout must be above 0");
}

std::vector<std::string> Recipe::frozen_roles() const {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  if (distill)
    for (const auto& teacher : distill->teachers)
      add(teacher.role);
  if (dpo && losses::needs_reference(dpo->preference())) add(dpo->reference);
  if (grpo && grpo->beta > 0) add(grpo->reference);
  return names;
}

std::vector<std::string> Recipe::serving_roles() const {
  std::vector<std::string> names = frozen_roles();
  if (generation) names.push_back(generation->role);
  return names;
}

int64_t Recipe::num_processes() const {
  int64_t sum = 0;
  for (const auto& [name, role] : roles)
    sum += role.world.world_size();
  return sum;
}

Recipe load_recipe(const fs::path& path, std::span<const std::string> overrides,
                   const LoadOptions& options, std::vector<std::string>* warnings) {
  if (fs::is_directory(path))
    throw Error(ErrorCode::kInvalidArgument,
                path.string() + " is a folder; expected a recipe (YAML file)");
  YamlNode root = parse_yaml(read_file(path), path.string());
  for (const auto& assignment : overrides)
    apply_override(root, assignment);
  if (root.kind != YamlNode::Kind::kMap)
    throw Error(ErrorCode::kInvalidArgument, root.place.prefix() +
                                                 "expected a recipe (a block of keys), got " +
                                                 std::string(yaml_kind_name(root.kind)));
  Recipe recipe;
  const YamlReader::LaterNames later = later_name;
  YamlReader(root, "", &later).read(recipe);
  recipe.train.resolve();
  if (recipe.recipe == RecipeKind::kOnPolicyDistill && recipe.distill) {
    const auto* block = root.find("distill");
    const auto* lmbda = block ? block->value.find("lmbda") : nullptr;
    if (lmbda && recipe.distill->lmbda != 1.0)
      throw Error(ErrorCode::kInvalidArgument,
                  lmbda->place.prefix() +
                      "distill.lmbda: on_policy_distill is distill with lmbda: 1.0; write recipe: "
                      "distill for another share of on-policy batches");
    recipe.distill->lmbda = 1.0;
  }
  if (recipe.generation && !recipe.weight_sync) recipe.weight_sync.emplace();
  const CrossCheck check(recipe, root, options);
  check.run();
  if (warnings) collect_warnings(recipe, check, *warnings);
  return recipe;
}

std::string resolved_yaml(const Recipe& recipe) {
  YamlWriter writer;
  Recipe copy = recipe;
  copy.fields(writer);
  return writer.str();
}

}  // namespace retort::launch
