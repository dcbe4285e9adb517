#include "recipes/losses/detail/device_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "kernels/device_kernels.h"
#include "kernels/launch_shapes.h"
#include "recipes/losses/detail/linear_head.h"

namespace retort::losses::detail {
namespace {

using kernels::device_kernels;
using kernels::Launch;
using kernels::LaunchShape;
using kernels::read_address;
using kernels::ShapedKernel;
using kernels::write_address;

// The first pieces of a row stay in registers, of the others some in shared memory.
constexpr int64_t kFrontPieces = 4;

// Of a piece in which a block walks over a row (kernels/row_softmax.cuh).
int64_t piece_bytes(const LaunchShape& shape) {
  constexpr int64_t kPieceFours = 4;
  return kPieceFours * 16 * shape.threads;
}

int64_t kept_pieces(const at::Tensor& logits, const LaunchShape& shape) {
  const int64_t bytes = piece_bytes(shape);
  const int64_t pieces = (logits.size(1) * 4 + bytes - 1) / bytes;
  const int64_t room = device_kernels(logits.device())->max_shared_bytes(logits.device());
  return std::clamp<int64_t>(pieces - kFrontPieces, 0, std::min(shape.share, room / bytes));
}

const LaunchShape& row_shape(ShapedKernel kernel, const at::Tensor& logits) {
  return kernels::launch_shape(kernel, logits.device());
}

// A block for each row.
Launch block_a_row(ShapedKernel kernel, const at::Tensor& logits) {
  return {.grid_x = logits.size(0), .block = row_shape(kernel, logits).threads};
}

void launch(const char* name, GradientDtype gradient, const at::Tensor& logits, Launch shape,
            auto&&... arguments) {
  const auto dtype = gradient == GradientDtype::kBfloat16 ? at::kBFloat16 : at::kFloat;
  kernels::launch_kernel_for(dtype, name, logits.device(), shape, arguments...);
}

at::Tensor row_numbers(const at::Tensor& logits, int64_t count) {
  return at::empty({count, logits.size(0)}, logits.options().dtype(at::kDouble));
}

}  // namespace

bool has_row_kernels(const at::Tensor& logits) {
  return device_kernels(logits.device()) != nullptr && logits.scalar_type() == at::kFloat &&
         logits.is_contiguous() && logits.size(1) > 0;
}

int64_t logit_chunk_rows(int64_t asked, const VocabGroup& vocab, const at::Device& device) {
  constexpr int64_t kBytes = int64_t{1280} << 20;
  const int64_t floats = vocab.rows_per_rank();
  if (vocab.split() || device_kernels(device) == nullptr)
    return aten_chunk_rows(asked, floats, device);
  return chunk_rows(asked, floats, kBytes);
}

at::Tensor over_front(const at::Tensor& logits) {
  return logits.view(at::kBFloat16).narrow(1, 0, logits.size(1));
}

at::Tensor cross_entropy_rows(at::Tensor logits, const at::Tensor& targets,
                              GradientDtype gradient) {
  at::Tensor numbers = row_numbers(logits, 3);
  at::Tensor log_prob = numbers.select(0, 0), entropy = numbers.select(0, 1),
             correct = numbers.select(0, 2);
  const LaunchShape& shape = row_shape(ShapedKernel::kCeRows, logits);
  const int64_t kept = kept_pieces(logits, shape);
  const void* all_one = nullptr;  // the rows' weights
  launch(
      "retort_ce_rows", gradient, logits,
      {.grid_x = logits.size(0), .block = shape.threads, .shared_bytes = kept * piece_bytes(shape)},
      write_address(logits), logits.size(1), static_cast<int32_t>(kept), read_address(targets),
      all_one, write_address(log_prob), write_address(entropy), write_address(correct));
  return numbers;
}

// The kernel is launched twice, because a row's weight follows from its statistics.
at::Tensor dft_rows(at::Tensor logits, const at::Tensor& targets, GradientDtype gradient) {
  const int64_t rows = logits.size(0), first_column = 0;
  at::Tensor max = at::empty({rows}, logits.options());
  at::Tensor numbers = row_numbers(logits, 3);
  at::Tensor sum = numbers.select(0, 0), moment = numbers.select(0, 1),
             target_logit = numbers.select(0, 2);
  at::Tensor first = at::empty({rows}, targets.options());
  const float inv_temperature = 1;
  Launch statistics = block_a_row(ShapedKernel::kCeStatistics, logits);
  statistics.name = "retort_ce_rows_statistics";
  kernels::launch_kernel(*device_kernels(logits.device()), logits.device(), statistics,
                         read_address(logits), logits.size(1), read_address(targets), first_column,
                         inv_temperature, write_address(max), write_address(sum),
                         write_address(moment), write_address(target_logit), write_address(first));

  const at::Tensor log_sum = sum.log();
  const at::Tensor log_prob = target_logit - max - log_sum;
  const at::Tensor p = log_prob.exp();
  const at::Tensor weights = p.to(at::kFloat);
  launch("retort_ce_rows_gradient", gradient, logits,
         block_a_row(ShapedKernel::kCeGradient, logits), write_address(logits), logits.size(1),
         read_address(targets), first_column, read_address(max), read_address(sum),
         read_address(weights));

  // A row that is NaN has no largest logit: its sum is NaN too, which does not equal itself.
  const at::Tensor correct = (first == targets).logical_and_(sum == sum);
  return at::stack({p * log_prob, log_sum - moment / sum, correct.to(at::kDouble)});
}

at::Tensor divergence_rows(at::Tensor student, const at::Tensor& teacher, int64_t common,
                           const at::Tensor& targets, const RowLoss& loss,
                           double teacher_inv_temperature, GradientDtype gradient) {
  at::Tensor numbers = row_numbers(student, 7);
  launch("retort_divergence_rows", gradient, student,
         block_a_row(ShapedKernel::kDivergence, student), write_address(student), student.size(1),
         read_address(teacher), teacher.size(1), common, read_address(targets),
         static_cast<int32_t>(loss.type), static_cast<float>(loss.mix),
         static_cast<float>(loss.inv_temperature), static_cast<float>(teacher_inv_temperature),
         static_cast<float>(loss.ce_weight), static_cast<float>(loss.kd_weight),
         static_cast<int32_t>(loss.gradient), student.size(0), write_address(numbers));
  return numbers;
}

void log_prob_rows(const at::Tensor& logits, const at::Tensor& targets, double inv_temperature,
                   LogProbOutputs outputs) {
  Launch rows = block_a_row(ShapedKernel::kLogProb, logits);
  rows.name = "retort_log_prob_rows";
  kernels::launch_kernel(
      *device_kernels(logits.device()), logits.device(), rows, read_address(logits), logits.size(1),
      read_address(targets), static_cast<float>(inv_temperature), write_address(outputs.log_probs),
      write_address(outputs.entropy), write_address(outputs.max), write_address(outputs.sum));
}

void log_prob_rows_gradient(at::Tensor logits, const at::Tensor& targets, double inv_temperature,
                            const LogProbOutputs& saved, const at::Tensor& incoming,
                            const at::Tensor& of_entropy, GradientDtype gradient) {
  const int64_t first_column = 0;
  launch("retort_log_prob_rows_gradient", gradient, logits,
         block_a_row(ShapedKernel::kLogProbGradient, logits), write_address(logits), logits.size(1),
         read_address(targets), first_column, static_cast<float>(inv_temperature),
         read_address(saved.max), read_address(saved.sum), read_address(saved.entropy),
         read_address(incoming), read_address(of_entropy));
}

}  // namespace retort::losses::detail
