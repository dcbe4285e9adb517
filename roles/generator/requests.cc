#include "roles/generator/requests.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string>

#include "base/error.h"

namespace retort::roles {
namespace {

bool is_int_vector(const at::Tensor& tensor) {
  return tensor.defined() && tensor.dim() == 1 && tensor.scalar_type() == at::kInt;
}

std::vector<int32_t> to_vector(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kInt).contiguous();
  return {flat.const_data_ptr<int32_t>(), flat.const_data_ptr<int32_t>() + flat.numel()};
}

// Episodes stand in the place of prompts, whose ids their environments bring.
void check_starts(const GenerateRequest& request, int64_t prompts) {
  if (request.episodes.empty()) return;
  const auto episodes = static_cast<int64_t>(request.episodes.size());
  if (episodes == prompts && request.prompt_ids.numel() == 0 && request.continues == 0) return;
  throw Error(ErrorCode::kInvalidArgument,
              "generator.submit: expected an episode for each prompt, and prompts without ids")
      .with("episodes", episodes)
      .with("prompts", prompts)
      .with("prompt_ids", request.prompt_ids.numel());
}

}  // namespace

std::vector<std::vector<int32_t>> split_rows(const at::Tensor& ids, const at::Tensor& cu_seqlens,
                                             const char* method) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, std::string(method) + ": " + what);
  };
  if (!is_int_vector(ids) || !is_int_vector(cu_seqlens) || cu_seqlens.numel() < 1)
    refuse("ids and cu_seqlens must be vectors of int32");
  const std::vector<int32_t> flat = to_vector(ids), ends = to_vector(cu_seqlens);
  if (ends.front() != 0 || ends.back() != static_cast<int32_t>(flat.size()) ||
      !std::is_sorted(ends.begin(), ends.end()))
    refuse("cu_seqlens must rise from 0 to the number of ids");
  std::vector<std::vector<int32_t>> rows;
  for (size_t i = 0; i + 1 < ends.size(); ++i)
    rows.emplace_back(flat.begin() + ends[i], flat.begin() + ends[i + 1]);
  return rows;
}

void check_request(const GenerateRequest& request) {
  const auto prompts = static_cast<int64_t>(
      split_rows(request.prompt_ids, request.cu_seqlens, "generator.submit").size());
  const bool ids = request.sample_ids.defined() && request.sample_ids.scalar_type() == at::kLong;

  // More generations than sample ids cannot be; compared first, as the product could overflow.
  const int64_t samples = ids ? request.sample_ids.numel() : 0;
  const int64_t generations = request.num_generations;
  if (!ids || generations < 1 || generations > samples || prompts * generations != samples)
    throw Error(ErrorCode::kInvalidArgument,
                "generator.submit: expected an int64 sample id for each of the completions")
        .with("prompts", prompts)
        .with("num_generations", generations)
        .with("sample_ids", samples);
  if (request.continues < 0)
    throw Error(ErrorCode::kInvalidArgument, "generator.submit: continues is negative")
        .with("continues", request.continues);
  check_starts(request, prompts);
}

models::GenerationRequest unpack_request(const GenerateRequest& request) {
  if (!request.episodes.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "generator.submit: this generator answers no episodes, as it knows no environment; "
                "environment.role names the role that answers the model's turns")
        .with("request", request.request_id);
  models::GenerationRequest unpacked;
  unpacked.prompts = split_rows(request.prompt_ids, request.cu_seqlens, "generator.submit");
  unpacked.num_generations = request.num_generations;
  const at::Tensor ids = request.sample_ids.contiguous();
  for (int64_t i = 0; i < ids.numel(); ++i)
    unpacked.sample_ids.push_back(static_cast<uint64_t>(ids.const_data_ptr<int64_t>()[i]));
  unpacked.draw = request.draw;
  return unpacked;
}

void check_score_request(const ForwardRequest& request) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, "generator.score" + what);
  };
  if (request.spec.kind != PayloadKind::kTargetLogProbs)
    refuse(" answers target_logps only; a teacher role answers the rest");

  split_rows(request.input_ids, request.cu_seqlens, "generator.score");
  if (!is_int_vector(request.positions)) refuse(": positions must be a vector of int32");
  // Positions come from another process and are used as indices.
  const bool outside = request.positions.numel() > 0 &&
                       (request.positions.min().item<int64_t>() < 0 ||
                        request.positions.max().item<int64_t>() >= request.input_ids.numel());
  if (outside) refuse(": a position lies outside the pack");
}

}  // namespace retort::roles
