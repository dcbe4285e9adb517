#include "recipes/losses/detail/teacher_checks.h"

#include <initializer_list>
#include <sstream>

#include "base/error.h"
#include "parallel/staged_copy.h"
#include "recipes/losses/detail/linear_head.h"

namespace retort::losses::detail {
namespace {

void require(bool ok, ErrorCode code, const char* message, const char* key,
             const at::Tensor& tensor) {
  if (ok) return;
  std::ostringstream shape;
  if (tensor.defined())
    shape << tensor.sizes() << " " << tensor.scalar_type();
  else
    shape << "undefined";
  throw Error(code, message).with(key, shape.str());
}

bool is_float_matrix(const at::Tensor& tensor) {
  return tensor.defined() && tensor.dim() == 2 && at::isFloatingType(tensor.scalar_type());
}

void require_device(const at::Device& device, std::initializer_list<at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && !may_move_to(device, tensor))
      throw Error(ErrorCode::kInvalidArgument,
                  "the teacher's signal must be on the device of the student's hidden states, or "
                  "on the host")
          .with("device", tensor.device().str())
          .with("hidden_device", device.str());
}

void check_hidden(const TeacherHidden& signal, const SignalSizes& sizes) {
  require(is_float_matrix(signal.hidden), ErrorCode::kInvalidArgument,
          "the teacher's hidden states must be [R, Ht] of a float dtype", "hidden", signal.hidden);
  require(signal.hidden.size(0) == sizes.rows, ErrorCode::kMismatch,
          "the teacher's hidden states and the student's have different row counts", "hidden",
          signal.hidden);
  require(is_float_matrix(signal.weight) && signal.weight.size(1) == signal.hidden.size(1),
          ErrorCode::kMismatch,
          "the teacher's head must be [Vt, Ht] with the Ht of its hidden states", "weight",
          signal.weight);
  require(!signal.bias.defined() ||
              (signal.bias.dim() == 1 && signal.bias.size(0) == signal.weight.size(0)),
          ErrorCode::kMismatch, "the teacher's bias must be [Vt] with the Vt of its head", "bias",
          signal.bias);
  require_device(sizes.device, {signal.hidden, signal.weight, signal.bias});
}

void check_full(const TeacherFull& signal, const SignalSizes& sizes) {
  require(is_float_matrix(signal.logps), ErrorCode::kInvalidArgument,
          "full log-probabilities must be [R, V] of a float dtype", "logps", signal.logps);
  require(signal.logps.size(0) == sizes.rows, ErrorCode::kMismatch,
          "the teacher's log-probabilities and the student's hidden states have "
          "different row counts",
          "logps", signal.logps);
  if (signal.logps.size(1) != sizes.own_common)
    throw Error(ErrorCode::kMismatch,
                "full log-probabilities must be as wide as the common vocabulary, or as this "
                "rank's part of it")
        .with("width", signal.logps.size(1))
        .with("common_vocab", sizes.common)
        .with("expected", sizes.own_common);
  require_device(sizes.device, {signal.logps});
}

void check_top_k(const TeacherTopK& signal, const SignalSizes& sizes) {
  require(signal.ids.defined() && signal.ids.dim() == 2 && signal.ids.scalar_type() == at::kInt &&
              signal.ids.size(1) > 0,
          ErrorCode::kInvalidArgument, "top-k ids must be [R, K] int32 with K > 0", "ids",
          signal.ids);
  require(signal.ids.size(0) == sizes.rows, ErrorCode::kMismatch,
          "the teacher's top-k and the student's hidden states have different row "
          "counts",
          "ids", signal.ids);
  require(is_float_matrix(signal.logps) && signal.logps.sizes() == signal.ids.sizes(),
          ErrorCode::kMismatch,
          "top-k log-probabilities must have the shape of the ids and a float dtype", "logps",
          signal.logps);
  require(signal.log_tail.defined() && signal.log_tail.dim() == 1 &&
              at::isFloatingType(signal.log_tail.scalar_type()) &&
              signal.log_tail.size(0) == sizes.rows,
          ErrorCode::kMismatch, "log_tail must be [R] of a float dtype", "log_tail",
          signal.log_tail);
  if (signal.ids.size(1) > sizes.common)
    throw Error(ErrorCode::kMismatch, "more top-k ids than the common vocabulary has")
        .with("k", signal.ids.size(1))
        .with("common_vocab", sizes.common);
  require_device(sizes.device, {signal.ids, signal.logps, signal.log_tail});
}

void check_sampled(const TeacherSampled& signal, const SignalSizes& sizes) {
  require(signal.ids.defined() && signal.ids.dim() == 2 && signal.ids.scalar_type() == at::kInt &&
              signal.ids.size(1) > 0,
          ErrorCode::kInvalidArgument, "drawn ids must be [R, N] int32 with N > 0", "ids",
          signal.ids);
  require(signal.ids.size(0) == sizes.rows, ErrorCode::kMismatch,
          "the teacher's draws and the student's hidden states have different row counts", "ids",
          signal.ids);
  require(is_float_matrix(signal.logps) && signal.logps.sizes() == signal.ids.sizes(),
          ErrorCode::kMismatch,
          "log-probabilities of draws must have the shape of the ids and a float dtype", "logps",
          signal.logps);
  require(
      !signal.kappa.defined() || (signal.kappa.dim() == 1 && signal.kappa.size(0) == sizes.rows &&
                                  signal.ids.size(1) <= sizes.common),
      ErrorCode::kMismatch, "kappa must be [R], of at most as many draws as there are common ids",
      "kappa", signal.kappa);
  require_device(sizes.device, {signal.ids, signal.logps, signal.kappa});
}

}  // namespace

double log_mass_tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble ? 1e-3 : 0.1;
}

TeacherSignal moved_to(const at::Device& device, const TeacherSignal& signal) {
  if (const auto* top_k = std::get_if<TeacherTopK>(&signal)) {
    const auto there = parallel::staged_to(device, {top_k->ids, top_k->logps, top_k->log_tail});
    return TeacherTopK{there[0], there[1], there[2], top_k->padded};
  }
  if (const auto* sampled = std::get_if<TeacherSampled>(&signal)) {
    const auto there = parallel::staged_to(device, {sampled->ids, sampled->logps, sampled->kappa});
    return TeacherSampled{there[0], there[1], there[2]};
  }

  // Rows as wide as a model or a vocabulary are not copied to pinned memory first, which would keep
  // as much of it: the host waits for this copy, unless they came by a device map.
  const auto moved = [&](const at::Tensor& rows) {
    return rows.defined() ? rows.detach().to(device, rows.scalar_type(), /*non_blocking=*/true)
                          : rows;
  };
  if (const auto* full = std::get_if<TeacherFull>(&signal)) return TeacherFull{moved(full->logps)};
  const auto& hidden = std::get<TeacherHidden>(signal);
  return TeacherHidden{moved(hidden.hidden), moved(hidden.weight), moved(hidden.bias)};
}

void check_divergence(const TeacherSignal& signal, const DivergenceOptions& options) {
  const bool forward = options.type == DivergenceType::kForwardKl;
  if (!std::holds_alternative<TeacherSampled>(signal) || (forward && options.tail == Tail::kBucket))
    return;
  throw Error(ErrorCode::kInvalidArgument,
              "draws of the teacher estimate forward_kl alone (without a tail): a nonlinear "
              "function of an unbiased estimate is biased");
}

int64_t common_ids(const DivergenceOptions& options, int64_t vocab) {
  const int64_t common = options.common_vocab > 0 ? options.common_vocab : vocab;
  if (common > vocab)
    throw Error(ErrorCode::kMismatch, "common_vocab exceeds the student's vocabulary")
        .with("common_vocab", common)
        .with("vocab", vocab);
  return common;
}

void check_signal(const TeacherSignal& signal, const SignalSizes& sizes) {
  if (const auto* top_k = std::get_if<TeacherTopK>(&signal)) return check_top_k(*top_k, sizes);
  if (const auto* full = std::get_if<TeacherFull>(&signal)) return check_full(*full, sizes);
  if (const auto* sampled = std::get_if<TeacherSampled>(&signal))
    return check_sampled(*sampled, sizes);
  check_hidden(std::get<TeacherHidden>(signal), sizes);
}

void check_vocabularies(int64_t teacher_vocab, int64_t vocab, const DivergenceOptions& options) {
  if (teacher_vocab >= common_ids(options, vocab) &&
      (options.common_vocab > 0 || teacher_vocab == vocab))
    return;
  throw Error(
      ErrorCode::kMismatch,
      "the vocabularies of teacher and student differ: set common_vocab to the ids that both know")
      .with("teacher_vocab", teacher_vocab)
      .with("student_vocab", vocab)
      .with("common_vocab", options.common_vocab);
}

}  // namespace retort::losses::detail
