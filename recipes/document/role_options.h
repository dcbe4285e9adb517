// One role of a recipe: its model, and the processes that have it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/named_list.h"
#include "base/options.h"
#include "engines/contract/options.h"
#include "environments/options.h"
#include "parallel/layout.h"
#include "recipes/document/lora_options.h"

namespace retort::recipes {

enum class FloatType { kFloat32, kBfloat16, kFloat16 };
enum class Batching { kAsSent, kDynamic };

// One entry of `roles:`. A role with `external` has, once resolved, that one's tokenizer folder as
// its `model` and a process for each of its addresses. One with `environment` has no model.
struct RoleOptions {
  std::string model;
  std::optional<engines::ExternalOptions> external;
  std::optional<environments::EnvironmentOptions> environment;
  parallel::Layout world;
  FloatType dtype = FloatType::kFloat32;
  std::optional<LoraOptions> lora;
  Batching batching = Batching::kAsSent;
  int64_t restarts = 3;
  std::vector<std::string> hosts;
  std::vector<int64_t> devices;
  std::map<std::string, std::string> env;
  // Variables of `env` whose values its processes have and the reader of the recipe may not: what
  // stands there is this process's own, or empty. No key.
  std::set<std::string> env_elsewhere = {};

  template <class V>
  void fields(V& visit) {
    visit("model", model, "a Hugging Face model folder");
    visit("external", external, "instead of a model: an inference engine that is not ours");
    visit("environment", environment,
          "instead of a model: a program or a service that answers the student's turns; each of "
          "world.dp processes has one of its own");
    visit("world", world, "processes of this role: tp * pp * dp");
    visit("dtype", dtype, "of weights and activations");
    visit("lora", lora,
          "of the student: an adapter is trained and saved instead of the model (LoRA, in PEFT's "
          "words and files); null: the model is");
    visit("batching", batching,
          "teachers and references: requests are computed as sent, or those that wait together in "
          "one forward (equal numbers but for their last bits)");
    visit("restarts", restarts,
          "serving roles: how often the processes of a replica are started again when one of them "
          "is lost; 0: its loss ends the run. With backend: kubernetes the default is 0, and slurm "
          "never starts one again");
    visit("hosts", hosts, "of launch.hosts, where its processes may be; []: any of them");
    visit("devices", devices,
          "with world.device: cuda: indices of the devices that its ranks take on each host, in "
          "their order; []: those there that no role names are shared out among the roles");
    visit("env", env,
          "environment variables of this role's processes, before the launcher's own: NCCL_*, "
          "GLOO_*, CUDA_VISIBLE_DEVICES, keys; null: the value that the variable has where the "
          "recipe is read");
  }
};

// The `roles:` block, in the order in which they are written.
using Roles = NamedList<RoleOptions>;

}  // namespace retort::recipes

template <>
struct retort::EnumNames<retort::recipes::FloatType> {
  using E = retort::recipes::FloatType;
  static constexpr std::array<std::pair<std::string_view, E>, 3> values{
      {{"float32", E::kFloat32}, {"bfloat16", E::kBfloat16}, {"float16", E::kFloat16}}};
};

template <>
struct retort::EnumNames<retort::recipes::Batching> {
  using E = retort::recipes::Batching;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"as_sent", E::kAsSent}, {"dynamic", E::kDynamic}}};
};
