// Decodes: a teacher's answer: the archive, then the check of label and tensors
//   (roles/payload/payload.h), against the label that the student expects of this kind of payload.
// Holds: a payload that is taken has the rows and ids that the losses index with.
#include "roles/payload/payload.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include "rpc/archive.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::payload {
namespace {

using namespace roles;

constexpr int64_t kRows = 3, kVocab = 11, kHidden = 4;

// Of a union the teacher's ids and the student's. (With the student's alone none are on the wire.)
PayloadLabel expected(PayloadKind kind, bool with_students) {
  return {.request_id = 5,
          .teacher = "teacher/0",
          .weight_version = 1,
          .sequence_hash = "0123456789abcdef",
          .num_rows = kRows,
          .spec = {.kind = kind,
                   .top_k = 2,
                   .bfloat16 = kind == PayloadKind::kTopK,
                   .support = with_students ? Support::kUnion : Support::kTeacher}};
}

bool decode(std::string_view bytes) {
  const auto payload = rpc::from_bytes<Payload>(bytes);
  const PayloadSpec& spec = payload.label.spec;
  const bool with_students = spec.support == Support::kUnion;
  check_payload(payload, expected(spec.kind, with_students), kVocab, kHidden);
  if (spec.kind == PayloadKind::kTopK) {
    // -1 stands for no id, behind all ids of a union's row.
    const at::Tensor ids = payload.ids.to(at::kLong);
    expect(
        ids.min().item<int64_t>() >= (with_students ? -1 : 0) && ids.max().item<int64_t>() < kVocab,
        "an id lies outside the vocabulary");
    expect(ids.select(1, 0).min().item<int64_t>() >= 0, "a row has no id");
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
        make_payload(hidden, weight, expected(kind, false).spec, at::arange(kRows, at::kLong));
    payload.label = expected(kind, false);
    all.push_back({std::string(name), rpc::to_bytes(payload)});
  }

  // A row that both name alike, one in part, one in nothing.
  const PayloadLabel label = expected(PayloadKind::kTopK, true);
  const std::vector<int64_t> named{kVocab - 1, kVocab - 2, kVocab - 1, 0, 1, 2};
  Payload both = make_payload(hidden, weight, label.spec, at::tensor(named).view({kRows, 2}));
  both.label = label;
  all.push_back({"union", rpc::to_bytes(both)});
  return all;
}

}  // namespace

Target target() { return {"payload", decode, seeds}; }

}  // namespace retort::fuzz::payload
