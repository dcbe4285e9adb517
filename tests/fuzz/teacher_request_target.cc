// Decodes: a request to a teacher, and a generator's to score: the archive, then what is refused
//   before a model sees it (roles/teacher/requests.h, roles/generator/requests.h).
// Holds: every index of a request that is taken lies in what it indexes.
#include "roles/teacher/requests.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include "roles/generator/requests.h"
#include "roles/teacher/parts.h"
#include "rpc/archive.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::teacher_request {
namespace {

using namespace roles;

constexpr int64_t kVocabRows = 100;

bool scored(const ForwardRequest& request) {
  try {
    check_score_request(request);
  } catch (const Error&) {
    return false;
  }
  return true;
}

void expect_inside(const at::Tensor& indices, int64_t size) {
  expect(indices.numel() == 0 ||
             (indices.min().item<int64_t>() >= 0 && indices.max().item<int64_t>() < size),
         "an index lies outside");
}

bool decode(std::string_view bytes) {
  const auto request = rpc::from_bytes<ForwardRequest>(bytes);
  if (scored(request)) expect_inside(request.positions, request.input_ids.numel());
  check_request(request, kVocabRows);
  expect(result_key(request).size() == 32, "a request has no key");

  const MergedPacks merged = merge_packs({request, request}, kVocabRows);
  const int64_t tokens = merged.tokens.num_tokens();
  expect(tokens == 2 * request.input_ids.numel(), "tokens are lost");
  expect_inside(merged.tokens.input_ids, kVocabRows);
  for (const at::Tensor& rows : merged.rows)
    expect_inside(rows, tokens);
  if (request.spec.kind == PayloadKind::kTargetLogProbs)
    expect_inside(targets_of(request), kVocabRows);

  if (request.spec.names_ids() && request.ids.defined()) expect_inside(request.ids, kVocabRows);

  // The columns of a part, on each of three ranks, are columns of the head.
  const PieceMap map{.vocab_rows = kVocabRows, .ranks = 3};
  for (int64_t rank = 0; rank < map.ranks; ++rank) {
    if (!map.has(request, request.part, rank)) continue;
    const Range columns = map.columns_of(request, request.part, rank);
    expect(columns.begin >= 0 && columns.end <= kVocabRows, "columns outside the head");
  }
  return true;
}

std::vector<Seed> seeds() {
  ForwardRequest request{.request_id = 3,
                         .step = 2,
                         .input_ids = at::tensor({1, 2, 3, 4, 99}, at::kInt),
                         .cu_seqlens = at::tensor({0, 3, 5}, at::kInt),
                         .positions = at::tensor({0, 1, 3}, at::kInt)};
  std::vector<Seed> all{{"hidden", rpc::to_bytes(request)}};
  request.spec.kind = PayloadKind::kTargetLogProbs;
  all.push_back({"targets", rpc::to_bytes(request)});
  request.spec = {.kind = PayloadKind::kTopK, .top_k = 4, .common_vocab = 90};
  all.push_back({"topk", rpc::to_bytes(request)});
  request.spec.support = Support::kUnion;
  all.push_back({"keep", rpc::to_bytes(request)});
  request.ids = at::arange(12, at::kInt).view({3, 4});
  all.push_back({"named", rpc::to_bytes(request)});
  request.ids = at::Tensor();
  request.spec = {.kind = PayloadKind::kFull};
  request.part = 1;
  request.parts = 2;
  request.columns = {0, 60, 100};
  all.push_back({"columns", rpc::to_bytes(request)});
  return all;
}

}  // namespace

Target target() { return {"teacher_request", decode, seeds}; }

}  // namespace retort::fuzz::teacher_request
