// The typed remote methods of a teacher.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "roles/payload/payload.h"
#include "rpc/method.h"

namespace retort::roles {

// The numbers that a served model gives a few tokens that are always the same, in whose files
// nobody can look: replicas of it must give the same ones. Natural logarithms, or rewards.
struct ProbeNumbers {
  std::vector<double> values;    // none: it cannot be asked, or its files say what it is
  double largest = 0, mean = 0;  // differences up to these are none

  template <class A>
  void serialize(A& archive) {
    archive(values, largest, mean);
  }
};

// Says who the teacher is; it is the first thing a student asks.
struct TeacherInfo {
  std::string name;
  uint64_t weight_version = 0;
  int64_t vocab_rows = 0;  // rows of the head
  int64_t tokenizer_size = 0;
  int64_t hidden_size = 0;
  std::string dtype;
  std::string vocabulary_fingerprint;  // over min(own, asker's) tokenizer_size
  std::string processing_fingerprint;
  std::string weights_fingerprint;  // models::weights_fingerprint, if it was asked for
  std::string files;  // names, sizes and times of the model's files; "" if it has none
  // ranks that hold the head, each its rows (parallel::VocabShard), and the answers
  int64_t tp = 1;
  ProbeNumbers numbers;

  template <class A>
  void serialize(A& archive) {
    archive(name, weight_version, vocab_rows, tokenizer_size, hidden_size, dtype,
            vocabulary_fingerprint, processing_fingerprint, weights_fingerprint, files, tp,
            numbers);
  }
};
struct InfoRequest {
  int64_t tokenizer_size = 0;        // the asker's: the fingerprint is over the ids both know
  bool weights_fingerprint = false;  // costs one pass over the weights, the first time
  template <class A>
  void serialize(A& archive) {
    archive(tokenizer_size, weights_fingerprint);
  }
};

// Rows [begin, end) of the head weight, of those that the asked rank holds.
struct HeadRequest {
  int64_t begin = 0, end = 0;
  template <class A>
  void serialize(A& archive) {
    archive(begin, end);
  }
};
struct HeadReply {
  uint64_t weight_version = 0;
  at::Tensor weight;  // [end-begin, Ht] in the teacher's dtype
  template <class A>
  void serialize(A& archive) {
    archive(weight_version, weight);
  }
};

// Several ranks may ask together, one part each: the same request but for `part`. It is computed
// once, for the first that arrives.
struct ForwardRequest {
  uint64_t request_id = 0;
  int64_t step = 0;
  at::Tensor input_ids;   // [N] int32
  at::Tensor cu_seqlens;  // [S+1] int32
  at::Tensor positions;   // [R] int32: wanted rows (flat index), increasing
  PayloadSpec spec;
  int64_t part = 0, parts = 1;  // roles/teacher/parts.h
  // kFull: part p has columns [columns[p], columns[p + 1]); empty: one part has all
  std::vector<int64_t> columns;
  // A spec that names ids is asked for twice: first without these, of one part, so that the rows
  // are computed and kept (HiddenStateCache) while the student computes too; the answer has no
  // tensors.
  // Then the whole request with the ids that the student names, [R, K] int32 (make_payload).
  at::Tensor ids;
  template <class A>
  void serialize(A& archive) {
    archive(request_id, step, input_ids, cu_seqlens, positions, spec, part, parts, columns, ids);
  }
};
// The name of a request among all that a teacher is asked; the same for all its parts.
std::string result_key(const ForwardRequest& request);
// True if it only has its rows computed and kept, for one that names ids.
bool asks_to_keep(const ForwardRequest& request);
// The name of the rows that are kept: the same for a request before and after it names its ids.
std::string kept_key(const ForwardRequest& request);

// Requests that one forward pass computes.
struct RequestBatch {
  std::vector<ForwardRequest> requests;
  std::vector<std::string> keys;  // result_key of each
  template <class A>
  void serialize(A& archive) {
    archive(requests, keys);
  }
};

// The asked rank's piece of a part, as soon as it is there. Asked of the ranks that PieceMap names,
// except the leader, whose piece is the answer to the request itself (without tensors where it has
// none).
struct PullRequest {
  std::string key;  // result_key
  int64_t part = 0;
  template <class A>
  void serialize(A& archive) {
    archive(key, part);
  }
};

inline constexpr rpc::Method<InfoRequest, TeacherInfo> kTeacherInfo{"teacher.info", true};
inline constexpr rpc::Method<HeadRequest, HeadReply> kTeacherHead{"teacher.head", true};
inline constexpr rpc::Method<ForwardRequest, Payload> kTeacherForward{"teacher.forward", true};
inline constexpr rpc::Method<PullRequest, Payload> kTeacherPull{"teacher.pull", false};

}  // namespace retort::roles
