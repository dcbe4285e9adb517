// A recipe: the whole of what `retort launch` is asked to do, composed of the option structs of the
// modules.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/units.h"
#include "parallel/layout.h"
#include "recipes/data/options.h"
#include "recipes/distill_options.h"
#include "recipes/dpo_options.h"
#include "recipes/float_type.h"
#include "recipes/generation_options.h"
#include "recipes/grpo_options.h"
#include "recipes/rejection_sampling_options.h"
#include "recipes/rewards/options.h"
#include "recipes/train_options.h"
#include "rpc/options.h"

namespace retort::launch {

enum class RecipeKind { kSft, kDpo, kDistill, kRejectionSampling, kOnPolicyDistill, kGrpo };
enum class Batching { kAsSent, kDynamic };
enum class Backend { kLocal };

// One entry of `roles:`.
struct RoleOptions {
  std::string model;
  parallel::Layout world;
  recipes::FloatType dtype = recipes::FloatType::kFloat32;
  Batching batching = Batching::kAsSent;
  std::map<std::string, std::string> env;

  template <class V>
  void fields(V& visit) {
    visit("model", model, "a Hugging Face model folder");
    visit("world", world, "processes of this role: tp * pp * dp");
    visit("dtype", dtype, "of weights and activations");
    visit("batching", batching,
          "serving roles: requests are computed as sent, or those that wait together in one "
          "forward (equal numbers but for "
          "their last bits)");
    visit("env", env,
          "environment variables of this role's processes, before the launcher's own: NCCL_*, "
          "GLOO_*, CUDA_VISIBLE_DEVICES where "
          "roles share a machine's devices");
  }
};

// The `launch:` block.
struct LaunchOptions {
  Backend backend = Backend::kLocal;
  Duration collective_timeout{120'000};
  Duration stop_timeout{120'000};

  template <class V>
  void fields(V& visit) {
    visit("backend", backend, "where processes are started");
    visit("collective_timeout", collective_timeout, "a collective that takes longer fails");
    visit("stop_timeout", stop_timeout,
          "time to save and end after Ctrl-C or SIGTERM; then processes are killed");
  }
  void validate() const;
};

struct Recipe {
  RecipeKind recipe = RecipeKind::kSft;
  std::string output_dir;
  int64_t seed = 42;
  bool deterministic = false;
  std::map<std::string, RoleOptions> roles;
  data::DataOptions data;
  recipes::TrainOptions train;
  std::optional<recipes::DistillOptions> distill;
  std::optional<recipes::DpoOptions> dpo;
  std::optional<recipes::GenerationOptions> generation;
  std::vector<rewards::RewardOptions> rewards;
  std::optional<recipes::RejectionSamplingOptions> rejection_sampling;
  std::optional<recipes::GrpoOptions> grpo;
  std::optional<recipes::WeightSyncOptions> weight_sync;
  LaunchOptions launch;
  rpc::RpcOptions rpc;

  template <class V>
  void fields(V& visit) {
    visit("recipe", recipe, "what is done");
    visit("output_dir", output_dir, "the run's folder");
    visit("seed", seed, "of the data order and of everything random");
    visit("deterministic", deterministic, "deterministic GPU kernels and schedules");
    visit("roles", roles, "name -> role; `student` drives the run");
    visit("data", data, "training and evaluation data");
    visit("train", train, "length, batch, optimizer, and what happens when");
    visit("distill", distill, "recipe: distill and on_policy_distill");
    visit("dpo", dpo, "recipe: dpo");
    visit("generation", generation,
          "how samples are drawn; recipe: rejection_sampling, on_policy_distill, grpo, and distill "
          "with lmbda");
    visit("rewards", rewards, "what samples are scored by; recipe: rejection_sampling and grpo");
    visit("rejection_sampling", rejection_sampling, "recipe: rejection_sampling");
    visit("grpo", grpo, "recipe: grpo");
    visit("weight_sync", weight_sync, "how generators follow the student; with generation");
    visit("launch", launch, "how processes are started and stopped");
    visit("rpc", rpc, "the connections between roles");
  }

  // The role whose processes run the recipe.
  static constexpr const char* kDrivingRole = "student";
  // Roles that hold a frozen model, in the order in which the recipe names them: teachers and
  // references.
  std::vector<std::string> frozen_roles() const;
  bool is_generator(const std::string& role) const {
    return generation && generation->role == role;
  }
  // The frozen roles and the generator: all whose tokenizer must be the student's.
  std::vector<std::string> serving_roles() const;
  int64_t num_processes() const;
};

struct LoadOptions {
  bool cuda = false;        // the CUDA module is there, or nothing is to be computed
  bool check_files = true;  // models and data must exist
};

// Reads, overrides ("key.path=value", in order), resolves and checks a recipe; no process, no
// device, nothing written. kInvalidArgument "file:line: ..." for anything wrong in it, kUnavailable
// for a device that this build or machine lacks. `warnings` gets what is allowed but probably not
// meant, each with its place.
Recipe load_recipe(const std::filesystem::path& path, std::span<const std::string> overrides,
                   const LoadOptions& options = {}, std::vector<std::string>* warnings = nullptr);

// Every field of the recipe as YAML; load_recipe of this text gives the same recipe.
std::string resolved_yaml(const Recipe& recipe);

}  // namespace retort::launch

template <>
struct retort::EnumNames<retort::launch::RecipeKind> {
  using E = retort::launch::RecipeKind;
  static constexpr std::array<std::pair<std::string_view, E>, 6> values{
      {{"sft", E::kSft},
       {"dpo", E::kDpo},
       {"distill", E::kDistill},
       {"rejection_sampling", E::kRejectionSampling},
       {"on_policy_distill", E::kOnPolicyDistill},
       {"grpo", E::kGrpo}}};
};
template <>
struct retort::EnumNames<retort::launch::Batching> {
  using E = retort::launch::Batching;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"as_sent", E::kAsSent}, {"dynamic", E::kDynamic}}};
};
template <>
struct retort::EnumNames<retort::launch::Backend> {
  using E = retort::launch::Backend;
  static constexpr std::array<std::pair<std::string_view, E>, 1> values{{{"local", E::kLocal}}};
};
