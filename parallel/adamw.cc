#include "parallel/adamw.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include "base/sizes.h"
#include "parallel/detail/adamw_kernel.h"
#include "parallel/detail/one_device.h"

namespace retort::parallel {
namespace {

bool needs_master(const at::Tensor& parameter) { return parameter.scalar_type() != at::kFloat; }

void check_parameter(const NamedParameter& p, const NamedParameter& first) {
  detail::check_device(p, first);
  const at::Tensor& v = p.value;
  const at::ScalarType dtype = v.scalar_type();
  const char* problem = nullptr;
  if (!v.is_contiguous())
    problem = "is not contiguous";
  else if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf)
    problem = "has an unsupported dtype, expected float32, bfloat16 or float16";
  if (problem != nullptr)
    throw Error(ErrorCode::kInvalidArgument, "parameter '" + p.name + "' " + problem);
}

void check_options(const AdamW::Options& o) {
  const auto require = [](bool ok, const char* field, const char* expected, double value) {
    if (ok) return;
    throw Error(ErrorCode::kInvalidArgument, std::string(field) + " must be " + expected)
        .with("value", value);
  };
  require(o.beta1 >= 0 && o.beta1 < 1, "adam_beta1", "in [0, 1)", o.beta1);
  require(o.beta2 >= 0 && o.beta2 < 1, "adam_beta2", "in [0, 1)", o.beta2);
  require(o.eps >= 0, "adam_epsilon", "0 or more", o.eps);
  require(o.weight_decay >= 0, "weight_decay", "0 or more", o.weight_decay);
}

// An UpdateGroup holds the tensors of one update with one weight decay. The kernel divides each
// gradient by grad_scale as it reads it, and leaves it divided.
struct UpdateGroup {
  std::vector<at::Tensor> values, grads, exp_avg, exp_avg_sq, steps;
  std::optional<at::Tensor> grad_scale;
};

// One call of torch's fused kernel for all tensors of the group.
void update(const UpdateGroup& g, double learning_rate, double weight_decay,
            const AdamW::Options& options) {
  if (g.values.empty()) return;
  at::_fused_adamw_(g.values, g.grads, g.exp_avg, g.exp_avg_sq, /*max_exp_avg_sqs=*/{}, g.steps,
                    learning_rate, options.beta1, options.beta2, weight_decay, options.eps,
                    /*amsgrad=*/false, /*maximize=*/false, g.grad_scale);
}

}  // namespace

AdamW::~AdamW() = default;

AdamW::AdamW(std::vector<NamedParameter> parameters, Options options)
    : parameters_(std::move(parameters)), options_(std::move(options)) {
  for (const NamedParameter& p : parameters_)
    parts_.push_back({.begin = 0, .end = p.value.defined() ? p.value.numel() : 0});
  allocate();
}

AdamW::AdamW(const GradBuckets& grads, Options options) : options_(std::move(options)) {
  for (size_t i = 0; i < grads.size(); ++i) {
    parameters_.push_back(grads.parameter(i));
    parts_.push_back(grads.part(i));
  }
  allocate();
}

void AdamW::allocate() {
  check_options(options_);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    check_parameter(parameters_[i], parameters_.front());
    const at::TensorOptions fp32 =
        at::TensorOptions(at::kFloat).device(parameters_[i].value.device());
    exp_avg_.push_back(at::zeros({parts_[i].size()}, fp32));
    exp_avg_sq_.push_back(at::zeros({parts_[i].size()}, fp32));
    master_.push_back(needs_master(parameters_[i].value) ? value_part(i).to(at::kFloat)
                                                         : at::Tensor());
  }
  if (std::ranges::all_of(parameters_, &detail::AdamwKernel::takes, &NamedParameter::value))
    kernel_ = std::make_unique<detail::AdamwKernel>();
}

at::Tensor AdamW::value_part(size_t i) const {
  const at::Tensor& value = parameters_[i].value;
  return value.detach().view({value.numel()}).narrow(0, parts_[i].begin, parts_[i].size());
}

void AdamW::set_parameters_from_masters() {
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (master_[i].defined()) value_part(i).copy_(master_[i]);
}

bool AdamW::decays(const std::string& name) const {
  return std::ranges::none_of(options_.no_decay_suffixes,
                              [&](const std::string& suffix) { return name.ends_with(suffix); });
}

void AdamW::check_same_parameters(const GradBuckets& grads) const {
  if (grads.size() != parameters_.size())
    throw Error(ErrorCode::kInvalidArgument,
                "the gradients belong to other parameters than the optimizer's")
        .with("gradients", grads.size())
        .with("parameters", parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    RETORT_CHECK(grads.parameter(i).value.is_same(parameters_[i].value))
        << "gradient " << i << " is of '" << grads.parameter(i).name
        << "', the optimizer's parameter is '" << parameters_[i].name << "'";
    const GradBuckets::Part part = grads.part(i);
    RETORT_CHECK(part.begin == parts_[i].begin && part.end == parts_[i].end)
        << "the gradients of '" << parameters_[i].name
        << "' are summed for another part than the optimizer's";
  }
}

void AdamW::step(GradBuckets& grads, double learning_rate) {
  compute_thread_.check("AdamW::step()");
  check_not_half_loaded();
  check_same_parameters(grads);
  ++step_;
  if (parameters_.empty()) return;

  const at::NoGradGuard no_grad;
  if (kernel_ != nullptr)
    step_by_kernel(grads, learning_rate);
  else
    step_by_torch(grads, learning_rate);
}

void AdamW::step_by_kernel(const GradBuckets& grads, double learning_rate) {
  const at::Device device = parameters_.front().value.device();
  std::vector<detail::AdamwUpdate> updates;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    // With sharded gradients another dp rank may update all of this parameter.
    const GradBuckets::Part& part = parts_[i];
    if (part.size() == 0) continue;
    const at::Tensor& value = parameters_[i].value;
    RETORT_CHECK(value.is_contiguous() && value.device() == device)
        << "parameter '" << parameters_[i].name << "' was given memory of another kind";
    auto* weight =
        static_cast<uint8_t*>(value.mutable_data_ptr()) + part.begin * value.element_size();
    const bool has_master = master_[i].defined();
    const bool decayed = decays(parameters_[i].name);
    updates.push_back({.values = has_master ? master_[i].mutable_data_ptr<float>()
                                            : reinterpret_cast<float*>(weight),
                       .exp_avg = exp_avg_[i].mutable_data_ptr<float>(),
                       .exp_avg_sq = exp_avg_sq_[i].mutable_data_ptr<float>(),
                       .grad = grads.main_grad(i).const_data_ptr<float>() + part.begin,
                       .weight = has_master ? weight : nullptr,
                       .count = part.size(),
                       .weight_decay = decayed ? static_cast<float>(options_.weight_decay) : 0});
  }

  // The gradients stay as they are, so their scale goes on to be pending: norms that are asked for
  // after the step count it.
  kernel_->run(updates,
               {.number = step_,
                .learning_rate = learning_rate,
                .beta1 = options_.beta1,
                .beta2 = options_.beta2,
                .eps = options_.eps,
                .grad_scale = grads.pending_scale()},
               device);
}

void AdamW::step_by_torch(GradBuckets& grads, double learning_rate) {
  // The fused kernel takes one weight decay for all tensors of a call, hence two calls.
  const at::Tensor step_tensor =
      at::full({}, static_cast<double>(step_), exp_avg_.front().options());
  UpdateGroup without_decay;
  UpdateGroup with_decay;
  // The kernel applies the scale as it reads the gradients, which saves a pass over them. It
  // divides, hence the inverse.
  if (grads.pending_scale() != 1) {
    with_decay.grad_scale = at::full({}, 1 / grads.pending_scale(), exp_avg_.front().options());
    without_decay.grad_scale = with_decay.grad_scale;
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    // With sharded gradients another dp rank may update all of this parameter.
    if (parts_[i].size() == 0) continue;
    UpdateGroup& group = decays(parameters_[i].name) ? with_decay : without_decay;
    group.values.push_back(master_[i].defined() ? master_[i] : value_part(i));
    group.grads.push_back(grads.main_grad_part(i));
    group.exp_avg.push_back(exp_avg_[i]);
    group.exp_avg_sq.push_back(exp_avg_sq_[i]);
    group.steps.push_back(step_tensor);
  }

  // Parameters of a lower precision are updated in their fp32 masters, where small changes are not
  // rounded away, and then take over the values.
  update(without_decay, learning_rate, 0.0, options_);
  update(with_decay, learning_rate, options_.weight_decay, options_);
  grads.scale_applied();
  set_parameters_from_masters();
}

int64_t AdamW::state_bytes() const {
  int64_t bytes = 0;
  for (const auto* tensors : {&exp_avg_, &exp_avg_sq_, &master_})
    for (const at::Tensor& t : *tensors)
      if (t.defined()) bytes += to_int64(t.storage().nbytes());
  return bytes;
}

std::vector<TensorPiece> AdamW::state(bool counted_only) const {
  check_not_half_loaded();
  return pieces(counted_only);
}

// Whoever caught the error of load_state() may not train on what it left, nor save it.
void AdamW::check_not_half_loaded() const {
  RETORT_CHECK(!half_loaded_)
      << "the optimizer's state was loaded in part, which ended in an error";
}

std::vector<TensorPiece> AdamW::pieces(bool counted_only) const {
  std::vector<TensorPiece> pieces;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const NamedParameter& p = parameters_[i];
    if (parts_[i].size() == 0 || (counted_only && !p.shard.counted)) continue;
    const auto add = [&](const char* what, const at::Tensor& values) {
      pieces.push_back({.name = p.name + what,
                        .shape = p.shard.shape.empty() ? p.value.sizes().vec() : p.shard.shape,
                        .slice_shape = p.value.sizes().vec(),
                        .dim = p.shard.dim,
                        .offset = p.shard.begin,
                        .begin = parts_[i].begin,
                        .values = values});
    };
    add(".exp_avg", exp_avg_[i]);
    add(".exp_avg_sq", exp_avg_sq_[i]);
    if (master_[i].defined()) add(".master", master_[i]);
  }
  return pieces;
}

void AdamW::load_state(int64_t step, const ReadPiece& read) {
  if (step < 0)
    throw Error(ErrorCode::kMismatch, "the optimizer state's step is negative").with("step", step);

  // The pieces are read into place one by one, so an error leaves a mixture of two states. The flag
  // keeps it from being used.
  half_loaded_ = true;
  const at::NoGradGuard no_grad;
  for (TensorPiece& piece : pieces(/*counted_only=*/false))
    read(piece);
  set_parameters_from_masters();
  step_ = step;
  half_loaded_ = false;
}

}  // namespace retort::parallel
