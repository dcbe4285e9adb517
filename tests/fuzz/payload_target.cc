// Decodes: a teacher's answer: the archive, then the check of label and tensors
//   (roles/payload/payload.h), against the label that the student expects of this kind of payload.
// Holds: a payload that is taken has the rows and ids that the losses index with.
#include "roles/payload/payload.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>

#include "rpc/archive.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::payload {
namespace {

using namespace roles;

constexpr int64_t kRows = 3, kVocab = 11, kHidden = 4;

PayloadLabel expected(PayloadKind kind) {
  return {.request_id = 5,
          .teacher = "teacher/0",
          .weight_version = 1,
          .sequence_hash = "0123456789abcdef",
          .num_rows = kRows,
          .spec = {.kind = kind, .top_k = 2, .bfloat16 = kind == PayloadKind::kTopK}};
}

bool decode(std::string_view bytes) {
  const auto payload = rpc::from_bytes<Payload>(bytes);
  check_payload(payload, expected(payload.label.spec.kind), kVocab, kHidden);
  if (payload.label.spec.kind == PayloadKind::kTopK) {
    const at::Tensor ids = payload.ids.to(at::kLong);
    expect(ids.min().item<int64_t>() >= 0 && ids.max().item<int64_t>() < kVocab,
           "an id lies outside the vocabulary");
  }
  expect(rpc::to_bytes(payload) == bytes, "encoded again it has other bytes");
  return true;
}

std::vector<Seed> seeds() {
  const at::Tensor hidden = at::ones({kRows, kHidden});
  const at::Tensor weight = at::arange(kVocab * kHidden, at::kFloat).view({kVocab, kHidden});
  std::vector<Seed> all;
  for (const auto& [name, kind] : EnumNames<PayloadKind>::values) {
    Payload payload =
        make_payload(hidden, weight, expected(kind).spec, at::arange(kRows, at::kLong));
    payload.label = expected(kind);
    all.push_back({std::string(name), rpc::to_bytes(payload)});
  }
  return all;
}

}  // namespace

Target target() { return {"payload", decode, seeds}; }

}  // namespace retort::fuzz::payload
