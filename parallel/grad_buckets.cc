#include "parallel/grad_buckets.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <sstream>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace retort::parallel {
namespace {

// Sum of squares in fp64, in eight lanes that are added in order: the same bits for every number of threads.
double sum_of_squares(std::span<const float> values) {
  double lanes[8] = {};
  size_t i = 0;
  for (; i + 8 <= values.size(); i += 8)
    for (size_t lane = 0; lane < 8; ++lane) {
      const double x = values[i + lane];
      lanes[lane] += x * x;
    }
  for (; i < values.size(); ++i) lanes[0] += static_cast<double>(values[i]) * values[i];
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

std::span<const float> elements(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), static_cast<size_t>(tensor.numel())};
}

}  // namespace

struct GradBuckets::Impl {
  struct Bucket {
    at::Tensor flat;  // its part of the buffer
    int64_t num_parameters = 0;
    int64_t num_ready = 0;  // parameters whose last gradient of this step has been added
    Work work;
  };
  enum class Phase { kIdle, kAccumulate, kLastMicroBatch };

  std::vector<NamedParameter> parameters;
  Group& dp;
  Options options;
  at::Tensor buffer;
  std::vector<at::Tensor> main_grads;  // per parameter, views into buffer
  std::vector<size_t> bucket_of;       // per parameter
  std::vector<char> ready;             // per parameter
  std::vector<Bucket> buckets;
  size_t num_launched = 0;  // buckets [0, num_launched) are in flight
  Phase phase = Phase::kIdle;

  Impl(std::vector<NamedParameter> p, Group& group, Options o) : parameters(std::move(p)), dp(group), options(o) {
    check_parameters();
    lay_out();
    add_hooks();
  }
  ~Impl() { remove_hooks(parameters.size()); }

  void check_parameters() const;
  void lay_out();
  void add_hooks();
  void remove_hooks(size_t count);
  void on_gradient(size_t index, const at::Tensor& parameter);
  void launch_ready(bool all);
};

namespace {

struct Hook final : torch::autograd::PostAccumulateGradHook {
  Hook(GradBuckets::Impl* owner_in, size_t index_in) : owner(owner_in), index(index_in) {}
  void operator()(const at::Tensor& parameter) override;
  GradBuckets::Impl* owner;
  size_t index;
};

}  // namespace

void GradBuckets::Impl::check_parameters() const {
  if (options.bucket_bytes < 4)
    throw Error(ErrorCode::kInvalidArgument, "bucket_bytes must be at least one fp32 element (4 bytes)");
  for (const NamedParameter& p : parameters) {
    const at::Tensor& v = p.value;
    const char* problem = nullptr;
    if (!v.defined())
      problem = "is not defined";
    else if (!v.device().is_cpu())
      problem = "is not on the CPU";
    else if (!v.is_floating_point())
      problem = "is not a floating-point tensor";
    else if (!v.is_leaf() || !v.requires_grad())
      problem = "is not a leaf that requires a gradient";
    else if (torch::autograd::impl::post_acc_grad_hooks(v) != nullptr)
      problem = "already has a gradient hook (listed twice, or in other buckets?)";
    if (problem != nullptr) throw Error(ErrorCode::kInvalidArgument, "parameter '" + p.name + "' " + problem);
  }
}

void GradBuckets::Impl::lay_out() {
  int64_t total = 0;
  for (const NamedParameter& p : parameters) total += p.value.numel();
  buffer = at::zeros({total}, at::kFloat);
  main_grads.resize(parameters.size());
  bucket_of.resize(parameters.size());
  ready.resize(parameters.size());
  // Backward reaches the last parameter first.
  int64_t offset = 0, bucket_start = 0;
  const auto close = [&] { buckets.back().flat = buffer.narrow(0, bucket_start, offset - bucket_start); };
  for (size_t i = parameters.size(); i-- > 0;) {
    const int64_t numel = parameters[i].value.numel();
    const bool full = !buckets.empty() && (offset - bucket_start + numel) * 4 > options.bucket_bytes;
    if (full) close();
    if (buckets.empty() || full) {
      buckets.emplace_back();
      bucket_start = offset;
    }
    main_grads[i] = buffer.narrow(0, offset, numel).view(parameters[i].value.sizes());
    bucket_of[i] = buckets.size() - 1;
    ++buckets.back().num_parameters;
    offset += numel;
  }
  if (!buckets.empty()) close();
}

void GradBuckets::Impl::add_hooks() {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (torch::autograd::impl::post_acc_grad_hooks(parameters[i].value) != nullptr) {
      remove_hooks(i);
      throw Error(ErrorCode::kInvalidArgument,
                  "parameter '" + parameters[i].name + "' is listed twice; a tied weight is one parameter");
    }
    torch::autograd::impl::set_post_acc_grad_hooks(parameters[i].value, std::make_unique<Hook>(this, i));
  }
}

void GradBuckets::Impl::remove_hooks(size_t count) {
  for (size_t i = 0; i < count; ++i) torch::autograd::impl::set_post_acc_grad_hooks(parameters[i].value, nullptr);
}

void GradBuckets::Impl::on_gradient(size_t index, const at::Tensor& parameter) {
  if (phase == Phase::kIdle)
    throw Error(ErrorCode::kInvalidArgument, "backward reached parameter '" + parameters[index].name +
                                                 "' outside of a step: call begin_step() before the first micro-batch");
  if (bucket_of[index] < num_launched)
    throw Error(ErrorCode::kInvalidArgument,
                "parameter '" + parameters[index].name +
                    "' got a second gradient after its bucket was sent: set_last_micro_batch(true) must "
                    "hold for one backward() only, and a nested backward() needs overlap = false");
  const at::NoGradGuard no_grad;
  at::Tensor& grad = parameter.mutable_grad();
  main_grads[index].add_(grad);
  grad.reset();
  if (phase != Phase::kLastMicroBatch || ready[index]) return;
  ready[index] = 1;
  ++buckets[bucket_of[index]].num_ready;
  if (options.overlap) launch_ready(false);
}

// Launches the next buckets in index order: those whose parameters are all ready, or all that are left.
void GradBuckets::Impl::launch_ready(bool all) {
  while (num_launched < buckets.size()) {
    Bucket& bucket = buckets[num_launched];
    if (!all && bucket.num_ready < bucket.num_parameters) return;
    bucket.work = dp.all_reduce_async(bucket.flat);
    ++num_launched;
  }
}

void Hook::operator()(const at::Tensor& parameter) { owner->on_gradient(index, parameter); }

GradBuckets::GradBuckets(std::vector<NamedParameter> parameters, Group& dp, Options options)
    : impl_(std::make_unique<Impl>(std::move(parameters), dp, options)) {}

GradBuckets::~GradBuckets() = default;

void GradBuckets::begin_step() {
  if (impl_->phase != Impl::Phase::kIdle && impl_->num_launched > 0)
    throw Error(ErrorCode::kInvalidArgument,
                "begin_step() while the buckets of the last step are in flight: call finish() first");
  impl_->buffer.zero_();
  std::ranges::fill(impl_->ready, 0);
  for (Impl::Bucket& bucket : impl_->buckets) bucket.num_ready = 0;
  impl_->num_launched = 0;
  impl_->phase = Impl::Phase::kAccumulate;
}

void GradBuckets::set_last_micro_batch(bool last) {
  if (impl_->phase == Impl::Phase::kIdle)
    throw Error(ErrorCode::kInvalidArgument, "set_last_micro_batch() outside of a step: call begin_step() first");
  impl_->phase = last ? Impl::Phase::kLastMicroBatch : Impl::Phase::kAccumulate;
}

void GradBuckets::finish() {
  if (impl_->phase == Impl::Phase::kIdle)
    throw Error(ErrorCode::kInvalidArgument, "finish() outside of a step: call begin_step() first");
  impl_->launch_ready(true);
  for (Impl::Bucket& bucket : impl_->buckets) {
    bucket.work.wait();
    bucket.work = {};
  }
  impl_->phase = Impl::Phase::kIdle;
}

void GradBuckets::scale(double factor) { impl_->buffer.mul_(factor); }

double GradBuckets::norm() const {
  double sum = 0;
  for (const at::Tensor& grad : impl_->main_grads) sum += sum_of_squares(elements(grad));
  return std::sqrt(sum);
}

std::vector<std::string> GradBuckets::non_finite() const {
  std::vector<std::string> found;
  for (size_t i = 0; i < impl_->main_grads.size(); ++i) {
    // Squares of finite fp32 values never overflow fp64.
    const double norm = std::sqrt(sum_of_squares(elements(impl_->main_grads[i])));
    if (std::isfinite(norm)) continue;
    std::ostringstream text;
    text << impl_->parameters[i].name << " (norm " << norm << ")";
    found.push_back(text.str());
  }
  return found;
}

size_t GradBuckets::size() const { return impl_->parameters.size(); }
const NamedParameter& GradBuckets::parameter(size_t i) const { return impl_->parameters[i]; }
at::Tensor GradBuckets::main_grad(size_t i) const { return impl_->main_grads[i]; }
int64_t GradBuckets::num_buckets() const { return static_cast<int64_t>(impl_->buckets.size()); }

}  // namespace retort::parallel
