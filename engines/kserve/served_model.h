// Reads a server's description of its model: which of our tensors it takes and gives.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engines/contract/engine.h"
#include "engines/kserve/binary_tensors.h"
#include "engines/kserve/json_fields.h"

namespace retort::engines::kserve {

// Our names (docs/engines.md, "Triton and other KServe v2 servers").
inline constexpr std::string_view kInputIds = "input_ids";            // [N] INT32
inline constexpr std::string_view kPositions = "positions";           // [R] INT32
inline constexpr std::string_view kTopK = "top_k";                    // [1] INT32
inline constexpr std::string_view kPromptLength = "prompt_length";    // [1] INT32
inline constexpr std::string_view kGivenLogProbs = "given_logprobs";  // [R] FP32
inline constexpr std::string_view kTopKIds = "topk_ids";              // [R, K] INT32
inline constexpr std::string_view kTopKLogProbs = "topk_logprobs";    // [R, K] FP32
inline constexpr std::string_view kHiddenStates = "hidden_states";    // [R, H] FP32, FP16, BF16
inline constexpr std::string_view kScores = "scores";                 // [L] FP32

// kInvalidArgument for a key of options.tensors that is none of the names above, or two that have
// the same name at the server.
void check_tensor_names(const std::map<std::string, std::string>& names);

struct ServedModel {
  // by our name: the server's. Only tensors that the model has.
  std::map<std::string, TensorSpec, std::less<>> tensors;
  // columns of topk_ids in every answer; 0: as many as the input top_k says
  int64_t fixed_k = 0;
  Abilities abilities;
  EngineState state;
  // as the server tells it; empty where it does not have the extension model_configuration
  std::optional<Json> configuration;

  bool has(std::string_view name) const { return tensors.find(name) != tensors.end(); }
};

// Reads what GET v2/models/M says and, where there is one, v2/models/M/config. `names`:
// options.tensors. kMismatch naming the tensor for a model that does not keep our convention, with
// what to change.
ServedModel read_served_model(const std::string& model,
                              const std::map<std::string, std::string>& names, const Json& metadata,
                              std::optional<Json> configuration);

}  // namespace retort::engines::kserve
