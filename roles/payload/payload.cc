#include "roles/payload/payload.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "base/error.h"
#include "base/hash.h"
#include "roles/payload/draws.h"
#include "roles/payload/head_logits.h"
#include "roles/payload/named_ids.h"
#include "roles/payload/row_part.h"
#include "roles/payload/sharded.h"
#include "roles/payload/top_k.h"
#include "rpc/device_transfer.h"

namespace retort::roles {
namespace {

void hash_tensor(Sha256& hash, const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kCPU, at::kLong).contiguous();
  // The count goes ahead, so that numbers cannot move from one tensor to the next without a change
  // of the hash.
  const int64_t count = flat.numel();
  hash.update(std::string_view(reinterpret_cast<const char*>(&count), sizeof count));
  hash.update(std::string_view(static_cast<const char*>(flat.const_data_ptr()),
                               static_cast<size_t>(flat.nbytes())));
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::ostringstream text;
  text << tensor.scalar_type() << tensor.sizes();
  return text.str();
}

void require(const at::Tensor& tensor, std::vector<int64_t> shape,
             std::initializer_list<at::ScalarType> types, std::string_view name,
             const Payload& payload) {
  bool good = tensor.defined() && tensor.sizes() == at::IntArrayRef(shape);
  if (good) good = std::find(types.begin(), types.end(), tensor.scalar_type()) != types.end();
  if (good) return;
  std::ostringstream expected;
  expected << at::IntArrayRef(shape);
  throw Error(ErrorCode::kCorrupt, "payload tensor '" + std::string(name) + "' is " +
                                       describe(tensor) + ", expected shape " + expected.str() +
                                       "; the answer cannot be used")
      .with("teacher", payload.label.teacher)
      .with("request", payload.label.request_id);
}

at::Tensor rows_if_defined(const at::Tensor& tensor, int64_t begin, int64_t count) {
  return tensor.defined() ? tensor.narrow(0, begin, count) : at::Tensor();
}

// Fills rows of kTopK from row `begin` on with those of `logits`, whose columns are the ids that
// count. `named`: the student's ids for them. Returns the log of each row's sum, if it is known.
at::Tensor fill_top_k_rows(const at::Tensor& logits, const at::Tensor& named, int64_t k,
                           int64_t begin, Payload& payload) {
  const PayloadSpec& spec = payload.label.spec;
  const int64_t count = logits.size(0);
  const auto fill = [&](const at::Tensor& ids, const at::Tensor& logps, const at::Tensor& tail) {
    payload.ids.narrow(0, begin, count).copy_(ids);
    payload.logps.narrow(0, begin, count).copy_(logps);
    payload.log_tail.narrow(0, begin, count).copy_(tail);
  };
  // The kernel knows no ids but its own: what a student names is summed by ATen's operators.
  if (!named.defined() && has_top_k_kernel(logits, k)) {
    const TopKLogProbs rows = top_k_log_probs(logits, k);
    fill(rows.ids, rows.log_probs, rows.log_tail);
    return rows.log_total;
  }

  const at::Tensor log_total = at::logsumexp(logits, 1);
  const auto [ids, values] = support_of(logits, spec, named, k);
  // The tail is summed over the complement; log(1 - sum) would lose every digit when the tail is
  // small.
  const at::Tensor complement = logits.scatter(1, stand_ins(ids), kNegInf);
  const bool all = k == logits.size(1) && spec.support != Support::kUnion;
  fill(ids, values - log_total.unsqueeze(1),
       all ? at::full({count}, kNegInf, logits.options())
           : at::logsumexp(complement, 1) - log_total);
  return {};
}

// The mass that rows put on ids from `vocab` on, summed. `log_total` of the ids below may be
// undefined.
at::Tensor masked_mass(const at::Tensor& logits, int64_t vocab, const at::Tensor& log_total) {
  const at::Tensor masked = at::logsumexp(logits.narrow(1, vocab, logits.size(1) - vocab), 1);
  const at::Tensor all =
      log_total.defined() ? at::logaddexp(log_total, masked) : at::logsumexp(logits, 1);
  return at::exp(masked - all).sum();
}

// Fills rows of any kind but hidden states. `targets`: the rows' own, undefined for other kinds.
// Returns the log of each row's sum, if it is known.
at::Tensor fill_rows(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& named,
                     int64_t k, int64_t begin, Payload& payload) {
  const PayloadSpec& spec = payload.label.spec;
  switch (spec.kind) {
    case PayloadKind::kHiddenStates: return {};
    case PayloadKind::kTopK: return fill_top_k_rows(logits, named, k, begin, payload);
    case PayloadKind::kFull:
      payload.logps.narrow(0, begin, logits.size(0)).copy_(at::log_softmax(logits, 1));
      return {};
    case PayloadKind::kSampled:
      check_drawable(at::logsumexp(logits, 1));
      draw_rows(at::log_softmax(logits, 1).to(at::kCPU).contiguous(), spec, begin, payload);
      return {};
    case PayloadKind::kTargetLogProbs: {
      const at::Tensor log_total = at::logsumexp(logits, 1);
      const at::Tensor at_targets = logits.gather(1, targets.unsqueeze(1)).squeeze(1);
      payload.logps.narrow(0, begin, logits.size(0)).copy_(at_targets - log_total);
      return {};
    }
  }
  return {};
}

}  // namespace

at::TensorOptions payload_options(at::Device computed_on, at::Device destination) {
  return (destination.is_cpu() ? rpc::staging_options(computed_on)
                               : at::TensorOptions().device(destination))
      .dtype(at::kFloat);
}

void check_targets(const at::Tensor& targets, int64_t rows, int64_t vocab) {
  RETORT_CHECK(targets.defined() && targets.numel() == rows) << "a target for each row";
  if (rows > 0 && (targets.min().item<int64_t>() < 0 || targets.max().item<int64_t>() >= vocab))
    throw Error(ErrorCode::kInvalidArgument,
                "a target lies outside the vocabulary of " + std::to_string(vocab));
}

Payload unfilled_payload(const PayloadSpec& spec, int64_t rows, int64_t k, int64_t columns,
                         const at::TensorOptions& floats) {
  Payload payload;
  payload.label.spec = spec;
  payload.label.num_rows = rows;
  if (spec.kind == PayloadKind::kTopK) {
    const auto wire = spec.bfloat16 ? at::kBFloat16 : at::kFloat;
    payload.ids = at::empty({rows, k}, floats.dtype(at::kInt));
    payload.logps = at::empty({rows, k}, floats.dtype(wire));
    payload.log_tail = at::full({rows}, kNegInf, floats);
  } else if (spec.kind == PayloadKind::kSampled) {
    payload.ids = at::empty({rows, k}, floats.dtype(at::kInt));
    payload.logps = at::empty({rows, k}, floats);
    if (!spec.replacement) payload.kappa = at::empty({rows}, floats);
  } else {
    payload.logps = spec.kind == PayloadKind::kFull ? at::empty({rows, columns}, floats)
                                                    : at::empty({rows}, floats);
  }
  return payload;
}

at::Tensor targets_on(at::Device device, const PayloadSpec& spec, const at::Tensor& targets,
                      int64_t rows, int64_t vocab) {
  if (spec.kind != PayloadKind::kTargetLogProbs) return {};
  check_targets(targets, rows, vocab);
  return targets.to(device);
}

Payload make_payload(const at::Tensor& hidden_rows, const at::Tensor& weight,
                     const PayloadSpec& spec, const at::Tensor& targets,
                     const parallel::VocabShard& shard, double softcap, at::Device destination) {
  c10::NoGradGuard no_grad;
  // Draws and log-probabilities of targets are always in host memory, where they are made or read.
  if (!may_be_on_device(spec.kind)) destination = at::kCPU;
  if (spec.kind == PayloadKind::kHiddenStates) {
    Payload payload;
    payload.label.spec = spec;
    payload.label.num_rows = hidden_rows.size(0);
    payload.hidden = destination.is_cpu() ? rpc::host_copy(hidden_rows)
                                          : hidden_rows.to(destination).contiguous();
    return payload;
  }
  // A copy to the host waits for the device, so the small rows of kTopK stay there until all are
  // made.
  const bool goes_late = spec.kind == PayloadKind::kTopK && shard.whole();
  const auto floats =
      payload_options(hidden_rows.device(), goes_late ? hidden_rows.device() : destination);
  // All ranks of a split vocabulary form the answer together, with collectives in each chunk.
  if (!shard.whole())
    return make_sharded_payload(hidden_rows, weight, spec, targets, shard, softcap, floats);

  const int64_t rows = hidden_rows.size(0);
  const int64_t vocab_rows = weight.size(0);
  const int64_t vocab = payload_vocab(spec, vocab_rows);

  const int64_t k = ids_per_row(spec, vocab);
  Payload payload = unfilled_payload(spec, rows, k, vocab, floats);
  const at::Tensor target_ids = targets_on(hidden_rows.device(), spec, targets, rows, vocab);
  const at::Tensor named = named_on(hidden_rows.device(), spec, targets, rows, vocab);

  // Logits are formed for a chunk of rows at a time, as those of all rows may not fit in memory.
  const HeadLogits head(hidden_rows, weight, softcap);
  const int64_t chunk = rows_per_chunk(vocab_rows, !hidden_rows.is_cpu());
  const bool masks = vocab < vocab_rows;
  const at::Tensor masked = at::zeros({}, hidden_rows.options().dtype(at::kDouble));
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    const at::Tensor logits = head.rows(begin, count);
    if (spec.temperature != 1.0) logits.div_(spec.temperature);

    // The mass that the teacher puts on ids unknown to the student is only reported. The
    // distribution is then over the common ids.
    const at::Tensor log_total =
        fill_rows(logits.narrow(1, 0, vocab), rows_if_defined(target_ids, begin, count),
                  rows_if_defined(named, begin, count), k, begin, payload);
    if (masks) masked.add_(masked_mass(logits, vocab, log_total));
  }
  if (masks) payload.masked_mass_sum = masked.item<double>();
  if (goes_late && destination.is_cpu())
    for (at::Tensor* rows_of : payload.row_tensors())
      if (rows_of->defined()) *rows_of = rpc::host_copy(*rows_of);
  return payload;
}

std::string sequence_hash(const at::Tensor& input_ids, const at::Tensor& cu_seqlens,
                          const at::Tensor& positions, const at::Tensor& named) {
  Sha256 hash;
  hash_tensor(hash, input_ids);
  hash_tensor(hash, cu_seqlens);
  hash_tensor(hash, positions);
  if (named.defined()) hash_tensor(hash, named);
  return hash.hex_digest().substr(0, 16);
}

void check_label(const Payload& payload, const PayloadLabel& expected) {
  // All fields that differ go into one message, because together they tell whose answer it is.
  std::string differs;
  const auto compare = [&](std::string_view field, const auto& got, const auto& want) {
    if (got == want) return;
    std::ostringstream text;
    text << (differs.empty() ? "" : ", ") << field << " is " << +got << ", expected " << +want;
    differs += text.str();
  };
  const auto compare_text = [&](std::string_view field, const std::string& got,
                                const std::string& want) {
    if (got != want)
      differs += (differs.empty() ? "" : ", ") + std::string(field) + " is '" + got +
                 "', expected '" + want + "'";
  };

  const PayloadLabel& label = payload.label;
  compare("request_id", label.request_id, expected.request_id);
  compare_text("teacher", label.teacher, expected.teacher);
  compare("weight_version", label.weight_version, expected.weight_version);
  compare_text("sequence_hash", label.sequence_hash, expected.sequence_hash);
  compare("num_rows", label.num_rows, expected.num_rows);
  compare_text("kind", std::string(enum_name(label.spec.kind)),
               std::string(enum_name(expected.spec.kind)));
  compare("top_k", label.spec.top_k, expected.spec.top_k);
  compare("temperature", label.spec.temperature, expected.spec.temperature);
  compare("bfloat16", int{label.spec.bfloat16}, int{expected.spec.bfloat16});
  compare("common_vocab", label.spec.common_vocab, expected.spec.common_vocab);
  compare("num_samples", label.spec.num_samples, expected.spec.num_samples);
  compare("replacement", int{label.spec.replacement}, int{expected.spec.replacement});
  compare("seed", label.spec.seed, expected.spec.seed);
  compare_text("support", std::string(enum_name(label.spec.support)),
               std::string(enum_name(expected.spec.support)));
  compare("part", label.part, expected.part);
  compare("parts", label.parts, expected.parts);

  if (!differs.empty())
    throw Error(ErrorCode::kMismatch,
                "a payload belongs to something else: " + differs +
                    "; it was not used (is the teacher shared with another run?)");
}

void check_payload(const Payload& payload, const PayloadLabel& expected, int64_t vocab_size,
                   int64_t hidden_size) {
  check_label(payload, expected);
  const int64_t rows =
      rows_of_part(expected.spec.kind, expected.num_rows, expected.parts, expected.part).size();
  const int64_t k = ids_per_row(expected.spec, vocab_size);

  switch (expected.spec.kind) {
    case PayloadKind::kHiddenStates:
      require(payload.hidden, {rows, hidden_size}, {at::kFloat, at::kBFloat16, at::kHalf}, "hidden",
              payload);
      return;
    case PayloadKind::kFull:
      require(payload.logps, {rows, vocab_size}, {at::kFloat}, "logps", payload);
      return;
    case PayloadKind::kTargetLogProbs:
      require(payload.logps, {rows}, {at::kFloat}, "logps", payload);
      return;
    case PayloadKind::kTopK:
    case PayloadKind::kSampled: break;
  }

  // Top-k and draws have a number for each id and one for the row, and only ids that the student
  // knows.
  const bool top_k = expected.spec.kind == PayloadKind::kTopK;
  require(payload.ids, {rows, k}, {at::kInt}, "ids", payload);
  require(payload.logps, {rows, k}, {top_k && expected.spec.bfloat16 ? at::kBFloat16 : at::kFloat},
          "logps", payload);
  if (top_k) require(payload.log_tail, {rows}, {at::kFloat}, "log_tail", payload);
  if (!top_k && !expected.spec.replacement)
    require(payload.kappa, {rows}, {at::kFloat}, "kappa", payload);
  if (top_k && expected.spec.support == Support::kUnion) return check_union(payload, vocab_size);
  if (rows > 0 &&
      (payload.ids.min().item<int64_t>() < 0 || payload.ids.max().item<int64_t>() >= vocab_size))
    throw Error(ErrorCode::kCorrupt,
                "payload ids lie outside the vocabulary of " + std::to_string(vocab_size))
        .with("teacher", payload.label.teacher);
}

Payload blank_payload(const PayloadSpec& spec, int64_t rows, int64_t hidden_size,
                      int64_t vocab_rows, at::ScalarType dtype) {
  if (spec.kind != PayloadKind::kHiddenStates) {
    const int64_t vocab = payload_vocab(spec, vocab_rows);
    return unfilled_payload(spec, rows, ids_per_row(spec, vocab), vocab,
                            at::TensorOptions().dtype(at::kFloat));
  }
  Payload payload;
  payload.label.spec = spec;
  payload.label.num_rows = rows;
  payload.hidden = at::empty({rows, hidden_size}, at::TensorOptions().dtype(dtype));
  return payload;
}

int64_t payload_working_bytes(const PayloadSpec& spec, int64_t rows, int64_t hidden_size,
                              int64_t vocab_size, at::ScalarType dtype, bool on_device) {
  const auto dtype_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t payload = rows * payload_bytes_per_row(spec, hidden_size, vocab_size, dtype_bytes);
  if (spec.kind == PayloadKind::kHiddenStates) return payload;
  const bool converts = dtype != at::kFloat && !(on_device && dtype == at::kBFloat16);
  const int64_t weight = converts ? 4 * vocab_size * hidden_size : 0;
  const int64_t logits = 4 * std::min(rows, rows_per_chunk(vocab_size, on_device)) * vocab_size;
  const int64_t of_top_k = on_device ? 5 : 3;  // sums of ties in int64, and what they are made of
  return payload + weight + logits * (spec.kind == PayloadKind::kTopK ? of_top_k : 2);
}

int64_t named_bytes_per_row(const PayloadSpec& spec, int64_t vocab_size) {
  return spec.names_ids() ? 4 * std::min(spec.top_k, vocab_size) : 0;
}

int64_t payload_bytes_per_row(const PayloadSpec& spec, int64_t hidden_size, int64_t vocab_size,
                              int64_t hidden_dtype_bytes) {
  switch (spec.kind) {
    case PayloadKind::kHiddenStates: return hidden_size * hidden_dtype_bytes;
    case PayloadKind::kTopK:
      // Ids that the student named are not sent back.
      return ids_per_row(spec, vocab_size) *
                 ((spec.support == Support::kStudent ? 0 : 4) + (spec.bfloat16 ? 2 : 4)) +
             4;
    case PayloadKind::kFull: return vocab_size * 4;
    case PayloadKind::kTargetLogProbs: return 4;
    case PayloadKind::kSampled:
      return ids_per_row(spec, vocab_size) * (4 + 4) + (spec.replacement ? 0 : 4);
  }
  return 0;
}

}  // namespace retort::roles
