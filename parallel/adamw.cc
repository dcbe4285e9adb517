#include "parallel/adamw.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

namespace retort::parallel {
namespace {

bool needs_master(const at::Tensor& parameter) { return parameter.scalar_type() != at::kFloat; }

void check_parameter(const NamedParameter& p) {
  const at::Tensor& v = p.value;
  const char* problem = nullptr;
  if (!v.defined() || !v.device().is_cpu())
    problem = "is not a tensor on the CPU";
  else if (!v.is_contiguous())
    problem = "is not contiguous";
  else if (v.scalar_type() != at::kFloat && v.scalar_type() != at::kBFloat16 && v.scalar_type() != at::kHalf)
    problem = "has an unsupported dtype, expected float32, bfloat16 or float16";
  if (problem != nullptr) throw Error(ErrorCode::kInvalidArgument, "parameter '" + p.name + "' " + problem);
}

void check_options(const AdamW::Options& o) {
  const auto require = [](bool ok, const char* field, const char* expected, double value) {
    if (ok) return;
    throw Error(ErrorCode::kInvalidArgument, std::string(field) + " must be " + expected).with("value", value);
  };
  require(o.beta1 >= 0 && o.beta1 < 1, "adam_beta1", "in [0, 1)", o.beta1);
  require(o.beta2 >= 0 && o.beta2 < 1, "adam_beta2", "in [0, 1)", o.beta2);
  require(o.eps >= 0, "adam_epsilon", "0 or more", o.eps);
  require(o.weight_decay >= 0, "weight_decay", "0 or more", o.weight_decay);
}

// The tensors of one update with one weight decay.
struct UpdateGroup {
  std::vector<at::Tensor> values, grads, exp_avg, exp_avg_sq, steps;
};

}  // namespace

AdamW::AdamW(std::vector<NamedParameter> parameters, Options options)
    : parameters_(std::move(parameters)), options_(std::move(options)) {
  check_options(options_);
  const at::NoGradGuard no_grad;
  for (const NamedParameter& p : parameters_) {
    check_parameter(p);
    exp_avg_.push_back(at::zeros(p.value.sizes(), at::kFloat));
    exp_avg_sq_.push_back(at::zeros(p.value.sizes(), at::kFloat));
    master_.push_back(needs_master(p.value) ? p.value.detach().to(at::kFloat) : at::Tensor());
  }
}

bool AdamW::decays(const std::string& name) const {
  return std::ranges::none_of(options_.no_decay_suffixes, [&](const std::string& suffix) { return name.ends_with(suffix); });
}

void AdamW::step(const GradBuckets& grads, double learning_rate) {
  if (grads.size() != parameters_.size())
    throw Error(ErrorCode::kInvalidArgument, "the gradients belong to other parameters than the optimizer's")
        .with("gradients", grads.size())
        .with("parameters", parameters_.size());
  const at::NoGradGuard no_grad;
  ++step_;
  const at::Tensor step_tensor = at::full({}, static_cast<double>(step_), at::kFloat);
  UpdateGroup groups[2];  // without and with weight decay
  for (size_t i = 0; i < parameters_.size(); ++i) {
    RETORT_CHECK(grads.parameter(i).value.is_same(parameters_[i].value))
        << "gradient " << i << " is of '" << grads.parameter(i).name << "', the optimizer's parameter is '" << parameters_[i].name
        << "'";
    if (parameters_[i].value.numel() == 0) continue;
    UpdateGroup& group = groups[decays(parameters_[i].name) ? 1 : 0];
    group.values.push_back(master_[i].defined() ? master_[i] : parameters_[i].value.detach());
    group.grads.push_back(grads.main_grad(i));
    group.exp_avg.push_back(exp_avg_[i]);
    group.exp_avg_sq.push_back(exp_avg_sq_[i]);
    group.steps.push_back(step_tensor);
  }
  for (int decay = 0; decay < 2; ++decay) {
    const UpdateGroup& g = groups[decay];
    if (g.values.empty()) continue;
    at::_fused_adamw_(g.values, g.grads, g.exp_avg, g.exp_avg_sq, /*max_exp_avg_sqs=*/{}, g.steps, learning_rate, options_.beta1,
                      options_.beta2, decay == 1 ? options_.weight_decay : 0.0, options_.eps, /*amsgrad=*/false,
                      /*maximize=*/false);
  }
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (master_[i].defined()) parameters_[i].value.detach().copy_(master_[i]);
}

int64_t AdamW::state_bytes() const {
  int64_t bytes = 0;
  for (const auto* tensors : {&exp_avg_, &exp_avg_sq_, &master_})
    for (const at::Tensor& t : *tensors)
      if (t.defined()) bytes += static_cast<int64_t>(t.nbytes());
  return bytes;
}

AdamW::State AdamW::state() const {
  State state{.step = step_, .tensors = {}};
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i].name;
    state.tensors.emplace_back(name + ".exp_avg", exp_avg_[i]);
    state.tensors.emplace_back(name + ".exp_avg_sq", exp_avg_sq_[i]);
    if (master_[i].defined()) state.tensors.emplace_back(name + ".master", master_[i]);
  }
  return state;
}

void AdamW::load_state(const State& state) {
  const std::map<std::string, at::Tensor> given(state.tensors.begin(), state.tensors.end());
  const State mine = this->state();
  // Everything is checked before anything is written.
  for (const auto& [name, tensor] : mine.tensors) {
    const auto found = given.find(name);
    if (found == given.end() || !found->second.defined())
      throw Error(ErrorCode::kMismatch,
                  "the optimizer state lacks '" + name + "'; was it saved with other parameters or dtypes?");
    if (found->second.sizes() == tensor.sizes() && found->second.scalar_type() == at::kFloat) continue;
    std::ostringstream shapes;
    shapes << c10::toString(found->second.scalar_type()) << found->second.sizes() << ", expected Float" << tensor.sizes();
    throw Error(ErrorCode::kMismatch, "the optimizer state's '" + name + "' is " + shapes.str());
  }
  for (const auto& [name, tensor] : state.tensors)
    if (std::ranges::none_of(mine.tensors, [&](const auto& m) { return m.first == name; }))
      throw Error(ErrorCode::kMismatch, "the optimizer state holds '" + name + "', which no parameter here has");
  if (state.step < 0) throw Error(ErrorCode::kMismatch, "the optimizer state's step is negative").with("step", state.step);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : mine.tensors) at::Tensor(tensor).copy_(given.at(name));
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (master_[i].defined()) parameters_[i].value.detach().copy_(master_[i]);
  step_ = state.step;
}

}  // namespace retort::parallel
