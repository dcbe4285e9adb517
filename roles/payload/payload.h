// The answer that a teacher sends for the positions a student asked about, and the label that says
// what it belongs to.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>

#include "base/options.h"
#include "parallel/vocab_shard.h"

namespace retort::roles {

enum class PayloadKind : uint8_t { kHiddenStates, kTopK, kFull, kTargetLogProbs, kSampled };

// Whose largest ids a top-k payload names: the teacher's; the student's, which it says after its
// own forward pass; or both, each id once.
enum class Support : uint8_t { kTeacher, kStudent, kUnion };

// Says what the student wants; part of every request.
struct PayloadSpec {
  PayloadKind kind = PayloadKind::kHiddenStates;
  int64_t top_k = 64;
  double temperature = 1.0;
  bool bfloat16 = false;     // log-probabilities on the wire as bfloat16 instead of float32
  int64_t common_vocab = 0;  // ids >= this are masked; 0: none
  // kSampled: draws of each row, and what they are made with (roles/payload/draws.h)
  int64_t num_samples = 64;
  bool replacement = false;
  uint64_t seed = 0;
  // kTopK: whose ids. Not kTeacher: top_k ids of each side, and the student names its own
  Support support = Support::kTeacher;

  // True if an answer needs ids that the student names.
  bool names_ids() const { return kind == PayloadKind::kTopK && support != Support::kTeacher; }

  template <class A>
  void serialize(A& archive) {
    archive(kind, top_k, temperature, bfloat16, common_vocab, num_samples, replacement, seed,
            support);
  }
};

// Travels with every payload; the receiver checks it before use (check_payload).
struct PayloadLabel {
  uint64_t request_id = 0;
  std::string teacher;  // "teacher/0": who leads the replica
  uint64_t weight_version = 0;
  // SHA-256 (16 hex digits) over input_ids, cu_seqlens and positions, and the ids that the student
  // named
  std::string sequence_hash;
  int64_t num_rows = 0;  // of the whole, whichever part this is
  PayloadSpec spec;
  int64_t part = 0, parts = 1;  // roles/teacher/parts.h

  template <class A>
  void serialize(A& archive) {
    archive(request_id, teacher, weight_version, sequence_hash, num_rows, spec, part, parts);
  }
};

// R rows. Bytes per row on the wire: hidden H*sizeof(dtype); top-k K*(4+4)+4 (bfloat16: K*(4+2)+4);
// full V*4; target log-probabilities 4; sampled N*(4+4), without replacement +4. Support student:
// K*4+4; union: 2K*(4+4)+4 (bfloat16 saves 2 for each log-probability); and the request K*4, from
// each tp rank of the student, which asks for its part of the rows and names the ids of all.
struct Payload {
  PayloadLabel label;
  at::Tensor hidden;  // kHiddenStates: [R, Ht] in the teacher's dtype
  // kTopK: [R, K] int32, union: [R, min(2K, V)], a row that has fewer ends with -1, whose logps are
  // -inf; student: the request has them, none on the wire. kSampled: [R, N] int32
  at::Tensor ids;
  // kTopK: [R, K]; kFull: [R, V] float32; kTargetLogProbs: [R] float32; kSampled: [R, N] float32
  at::Tensor logps;
  at::Tensor log_tail;  // kTopK: [R] float32
  at::Tensor kappa;     // kSampled without replacement: [R] float32
  double masked_mass_sum =
      // over the rows: the teacher's mass on ids >= common_vocab (kTopK, kFull, kSampled); parts:
      // part 0 has all of it
      0;
  // kTopK of an engine at another temperature than 1: over the rows, how much of the distribution
  // may lie outside the ids at the most (log_tail is of nothing then); parts: as above
  double tail_bound_sum = 0;

  // The tensors that have a row for each of the label's, in a fixed order; a kind leaves some
  // undefined.
  std::array<at::Tensor*, 5> row_tensors() { return {&hidden, &ids, &logps, &log_tail, &kappa}; }
  std::array<const at::Tensor*, 5> row_tensors() const {
    return {&hidden, &ids, &logps, &log_tail, &kappa};
  }

  template <class A>
  void serialize(A& archive) {
    archive(label, hidden, ids, logps, log_tail, kappa, masked_mass_sum, tail_bound_sum);
  }
};

// Payload tensors from the teacher's final hidden states at the wanted rows, chunk by chunk in fp32
// (the same numbers whatever the payload). `weight` [Vt, Ht]; `targets` [R] int64, for
// kTargetLogProbs only: the token whose log-probability is asked, of each row. A kTopK that names
// ids takes the student's there, [R, K] of an integer type, distinct in a row, with K the smaller
// of top_k and the (common) vocabulary; log_tail is then the rest of what `ids` names, union or
// not, and a union has the teacher's ids first. kInvalidArgument for a target outside the (common)
// vocabulary. Of equal log-probabilities kTopK takes the lowest ids. kSampled draws with spec.seed
// as it is (draw_seed). A softcap c > 0 makes the logits c tanh(products / c)
// (models::Head::softcap). No autograd. Of a split vocabulary `weight` is this rank's rows and
// kFull gives this rank's columns, all else is the same on every rank. Collectives: none for a
// whole vocabulary or kHiddenStates; else at most three all-gathers a chunk on vocab.group.
// Devices: it is computed where hidden_rows and weight are; targets there or on the host. The
// payload's tensors are at `destination`, that device or the host: to the host each chunk is copied
// as it is done, into pinned memory, kTopK when all are. Of a split vocabulary what the ranks
// gather goes through host memory all the same.
Payload make_payload(const at::Tensor& hidden_rows, const at::Tensor& weight,
                     const PayloadSpec& spec, const at::Tensor& targets = {},
                     const parallel::VocabShard& vocab = {}, double softcap = 0,
                     at::Device destination = at::kCPU);

// True if a payload of this kind may stay on a device. Log-probabilities of targets are always on
// the host: 4 bytes a row, which are read there. So are draws, which are made there.
inline bool may_be_on_device(PayloadKind kind) {
  return kind != PayloadKind::kTargetLogProbs && kind != PayloadKind::kSampled;
}

// Hashes tensors on any device. `named`: the student's ids, undefined where it names none.
std::string sequence_hash(const at::Tensor& input_ids, const at::Tensor& cu_seqlens,
                          const at::Tensor& positions, const at::Tensor& named = {});

// kMismatch naming every field of the label that differs, when `payload` is not the answer to
// `expected`.
void check_label(const Payload& payload, const PayloadLabel& expected);
// And kCorrupt when its tensors do not have the shapes and dtypes its label promises, or ids lie
// outside the vocabulary. `vocab_size`: the columns of kFull, else the ids there are.
void check_payload(const Payload& payload, const PayloadLabel& expected, int64_t vocab_size,
                   int64_t hidden_size);

// The most that make_payload holds at one time beside its inputs: the payload; but for hidden
// states the weight in fp32, unless it is, or it is of bfloat16 and `on_device`, and a chunk of
// logits with one more (kTopK: two, on a device four) of its size. `vocab_size`: the rows of the
// weight, which has that dtype.
int64_t payload_working_bytes(const PayloadSpec& spec, int64_t rows, int64_t hidden_size,
                              int64_t vocab_size, at::ScalarType dtype, bool on_device = false);

// The tensors of `rows` rows in host memory, to be filled; of a whole vocabulary of `vocab_rows`
// ids at the teacher. `dtype`: of hidden states.
Payload blank_payload(const PayloadSpec& spec, int64_t rows, int64_t hidden_size,
                      int64_t vocab_rows, at::ScalarType dtype);

// Tensor bytes of one row of a request beside its tokens: the ids that the student names. Each tp
// rank of a student sends them.
int64_t named_bytes_per_row(const PayloadSpec& spec, int64_t vocab_size);
// Tensor bytes of one row, by the formula above.
int64_t payload_bytes_per_row(const PayloadSpec& spec, int64_t hidden_size, int64_t vocab_size,
                              int64_t hidden_dtype_bytes);

}  // namespace retort::roles

template <>
struct retort::EnumNames<retort::roles::PayloadKind> {
  using E = retort::roles::PayloadKind;
  static constexpr std::array<std::pair<std::string_view, E>, 5> values{
      {{"hidden_states", E::kHiddenStates},
       {"topk", E::kTopK},
       {"full", E::kFull},
       {"target_logps", E::kTargetLogProbs},
       {"sampled", E::kSampled}}};
};
template <>
struct retort::EnumNames<retort::roles::Support> {
  using E = retort::roles::Support;
  static constexpr std::array<std::pair<std::string_view, E>, 3> values{
      {{"teacher", E::kTeacher}, {"student", E::kStudent}, {"union", E::kUnion}}};
};
