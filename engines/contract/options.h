// A role's `external:` block: an inference engine that is not ours, and how it is spoken to.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/options.h"
#include "base/units.h"

namespace retort::engines {

enum class EngineKind { kVllm, kSglang, kLlamacpp, kKserve, kOpenai };

// How an engine gets the student's weights.
enum class WeightRoute { kNone, kFolder, kGguf, kRepository };

struct EngineWeightOptions {
  WeightRoute via = WeightRoute::kNone;
  std::string folder;
  int64_t canary_tokens = 256;

  template <class V>
  void fields(V& visit) {
    visit("via", via,
          "how the engine gets the student's weights: never, as a model folder, as a GGUF file, or "
          "through the server's model repository");
    visit("folder", folder,
          "where they are written, as the engine sees it too; empty with via: none");
    visit("canary_tokens", canary_tokens,
          "tokens that the engine scores before new weights count, beside the student's own "
          "forward");
  }
};

struct ExternalOptions {
  EngineKind engine = EngineKind::kVllm;
  std::vector<std::string> url;
  std::string served_model;
  std::string tokenizer;
  std::string api_key_env, api_key_file;
  std::string ca_file;
  bool allow_plain_admin = false;
  int64_t max_inflight = 64;
  Duration timeout{600'000};
  std::optional<double> tolerance;
  EngineWeightOptions weights;
  std::vector<std::string> command;
  Duration load_timeout{1'800'000};
  std::map<std::string, std::string> tensors;

  template <class V>
  void fields(V& visit) {
    visit("engine", engine,
          "which one it is; openai: any server of OpenAI's chat completions, for judges");
    visit("url", url,
          "where it listens; several are replicas, each with a process of its own here");
    visit("served_model", served_model, "its name at the server; empty: the only one listed");
    visit("tokenizer", tokenizer,
          "a folder with the tokenizer and the config.json of the model that is served; weights "
          "are not needed. Empty with engine: openai, whose tokens nobody sees");
    visit("api_key_env", api_key_env,
          "the environment variable that holds the server's key; empty: none");
    visit("api_key_file", api_key_file, "a file that holds it; empty: none");
    visit("ca_file", ca_file, "PEM file of the authorities that are trusted; empty: the system's");
    visit("allow_plain_admin", allow_plain_admin,
          "use the server's administrative doors over http off this host, where anybody can");
    visit("max_inflight", max_inflight, "requests at the server at a time");
    visit("timeout", timeout, "of one request; waits for a busy server do not count");
    visit("tolerance", tolerance,
          "largest difference of log-probabilities that is none; empty: as the probe finds it");
    visit("weights", weights, "generators: how the engine follows the student");
    visit("command", command,
          "program and arguments of an engine that the run starts, watches and stops; empty: it is "
          "there already");
    visit("load_timeout", load_timeout,
          "for an engine to answer, at the start and with new weights");
    visit("tensors", tensors, "kserve: our name of a tensor -> the server's");
  }
  // kInvalidArgument naming the field: ranges, fields without effect.
  void validate() const;
};

// The server's key, from wherever the options say it is; empty: none. kInvalidArgument naming the
// variable that is not set, or the file, which others may not read (read_private_file); the key
// itself is in no message.
std::string read_api_key(const ExternalOptions& options);

}  // namespace retort::engines

template <>
struct retort::EnumNames<retort::engines::EngineKind> {
  using E = retort::engines::EngineKind;
  static constexpr std::array<std::pair<std::string_view, E>, 5> values{{{"vllm", E::kVllm},
                                                                         {"sglang", E::kSglang},
                                                                         {"llamacpp", E::kLlamacpp},
                                                                         {"kserve", E::kKserve},
                                                                         {"openai", E::kOpenai}}};
};
template <>
struct retort::EnumNames<retort::engines::WeightRoute> {
  using E = retort::engines::WeightRoute;
  static constexpr std::array<std::pair<std::string_view, E>, 4> values{
      {{"none", E::kNone},
       {"folder", E::kFolder},
       {"gguf", E::kGguf},
       {"repository", E::kRepository}}};
};
