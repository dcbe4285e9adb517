#include "parallel/grad_buckets.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "base/sizes.h"
#include "base/thread_checker.h"
#include "parallel/detail/bucket_layout.h"
#include "parallel/detail/gradient_squares.h"
#include "parallel/detail/one_device.h"
#include "parallel/detail/partial_gradients.h"
#include "parallel/gradient_sink.h"

namespace retort::parallel {
namespace {

// At most so many reduce-scatters are in flight where they go through host memory, because there
// each holds what arrives until it is summed.
constexpr size_t kMaxScatters = 4;

}  // namespace

struct GradBuckets::Impl {
  struct Bucket {
    at::Tensor flat;  // its part of the buffer
    // After the reduction this rank has the sums of these elements: all of `flat`, or with `shard`
    // its own part of it.
    at::Tensor sums;
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
  std::vector<Place> places;           // per parameter
  std::vector<Part> parts;             // per parameter
  std::vector<char> filled;            // per parameter: has a gradient of this step
  std::vector<char> ready;             // per parameter
  std::vector<Bucket> buckets;
  size_t num_early = 0;     // buckets [num_early, buckets.size()) wait for finish()
  size_t num_launched = 0;  // buckets [0, num_launched) are in flight
  double pending_scale = 1;
  Phase phase = Phase::kIdle;
  ThreadChecker compute_thread;

  Impl(std::vector<NamedParameter> p, Group& group, Options o)
      : parameters(std::move(p)), dp(group), options(o) {
    check_parameters();
    lay_out();
    add_hooks();
  }
  ~Impl() { remove_hooks(parameters.size()); }

  void check_parameters() const;
  void lay_out();
  void add_hooks();
  void remove_hooks(size_t count);
  GradientSink::Sum take(size_t index);
  void on_gradient(size_t index, const at::Tensor& parameter);
  void check_awaited(size_t index) const;
  void launch_next();
  void launch_in_backward(bool all);
  void launch_all(size_t end);
  bool limits_scatters() const;
  void zero_unless_filled(size_t index);
  void zero_unfilled();
  bool sharded() const { return options.shard && dp.size() > 1; }
  at::Tensor part_of_grad(size_t i) const;
};

namespace {

struct Hook final : torch::autograd::PostAccumulateGradHook, GradientSink {
  Hook(GradBuckets::Impl* owner_in, size_t index_in) : owner(owner_in), index(index_in) {}
  void operator()(const at::Tensor& parameter) override;
  Sum take() override;
  GradBuckets::Impl* owner;
  size_t index;
};

}  // namespace

void GradBuckets::Impl::check_parameters() const {
  if (options.bucket_bytes < 4)
    throw Error(ErrorCode::kInvalidArgument,
                "bucket_bytes must be at least one fp32 element (4 bytes)");
  for (const NamedParameter& p : parameters) {
    detail::check_device(p, parameters.front());
    const at::Tensor& v = p.value;
    const char* problem = nullptr;
    if (!v.is_floating_point())
      problem = "is not a floating-point tensor";
    else if (!v.is_leaf() || !v.requires_grad())
      problem = "is not a leaf that requires a gradient";
    else if (torch::autograd::impl::post_acc_grad_hooks(v) != nullptr)
      problem = "already has a gradient hook (listed twice, or in other buckets?)";
    if (problem != nullptr)
      throw Error(ErrorCode::kInvalidArgument, "parameter '" + p.name + "' " + problem);
    detail::check_partial(p, options);
  }
}

void GradBuckets::Impl::lay_out() {
  // Parameters of whose gradient this rank has only a part go into late buckets: finish() completes
  // them before they are sent.
  std::vector<char> late;
  for (const NamedParameter& p : parameters)
    late.push_back(detail::is_partial(p, options) ? 1 : 0);
  const int64_t num_parts = sharded() ? dp.size() : 1;
  const int64_t my_part = sharded() ? dp.rank() : 0;
  detail::BucketLayout layout =
      detail::lay_out_buckets(parameters, late, options.bucket_bytes, num_parts);
  num_early = layout.num_early;
  places = std::move(layout.places);
  filled.resize(parameters.size());
  ready.resize(parameters.size());

  // All buckets are views of one buffer, and so are the elements that this rank gets the sums of: a
  // reduce-scatter needs no memory for its result.
  const at::Device device = parameters.empty() ? at::kCPU : parameters.front().value.device();
  buffer = at::zeros({layout.numel}, at::TensorOptions(at::kFloat).device(device));
  for (const detail::BucketLayout::Bucket& b : layout.buckets) {
    Bucket& bucket = buckets.emplace_back();
    bucket.flat = buffer.narrow(0, b.begin, b.numel);
    bucket.sums = bucket.flat.narrow(0, my_part * (b.numel / num_parts), b.numel / num_parts);
    bucket.num_parameters = b.num_parameters;
  }

  // main_grad is a view as well, so that the hook accumulates straight into the bucket.
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& flat = buckets[places[i].bucket].flat;
    const int64_t numel = parameters[i].value.numel();
    main_grads.push_back(flat.narrow(0, places[i].offset, numel).view(parameters[i].value.sizes()));
    parts.push_back(detail::part_of(flat.numel(), num_parts, my_part, places[i].offset, numel));
  }
}

void GradBuckets::Impl::add_hooks() {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (torch::autograd::impl::post_acc_grad_hooks(parameters[i].value) != nullptr) {
      remove_hooks(i);
      throw Error(
          ErrorCode::kInvalidArgument,
          "parameter '" + parameters[i].name + "' is listed twice; a tied weight is one parameter");
    }
    torch::autograd::impl::set_post_acc_grad_hooks(parameters[i].value,
                                                   std::make_unique<Hook>(this, i));
  }
}

void GradBuckets::Impl::remove_hooks(size_t count) {
  for (size_t i = 0; i < count; ++i)
    torch::autograd::impl::set_post_acc_grad_hooks(parameters[i].value, nullptr);
}

// Throws where wrong numbers would pass in silence: a gradient outside of a step would change sums
// that the optimizer reads, and one that comes after its bucket was sent would be missing from the
// sum.
void GradBuckets::Impl::check_awaited(size_t index) const {
  if (phase == Phase::kIdle)
    throw Error(ErrorCode::kInvalidArgument,
                "backward reached parameter '" + parameters[index].name +
                    "' outside of a step: call begin_step() before the first micro-batch");
  if (places[index].bucket < num_launched)
    throw Error(
        ErrorCode::kInvalidArgument,
        "parameter '" + parameters[index].name +
            "' got a second gradient after its bucket was sent: set_last_micro_batch(true) must "
            "hold for one backward() only, and a nested backward() needs overlap = false");
}

// The first gradient of a step overwrites what the last step left, which saves a pass that zeroes
// the buffer.
GradientSink::Sum GradBuckets::Impl::take(size_t index) {
  check_awaited(index);
  const bool is_empty = !filled[index];
  filled[index] = 1;
  return {main_grads[index], is_empty};
}

void GradBuckets::Impl::on_gradient(size_t index, const at::Tensor& parameter) {
  check_awaited(index);

  // param.grad is dropped at once, so that no gradient is held twice. There is none where all that
  // backward has reached the parameter by gave it none, as those do that take its sum: LibTorch
  // runs the hook there as well.
  const at::NoGradGuard no_grad;
  if (at::Tensor& grad = parameter.mutable_grad(); grad.defined()) {
    const auto [sum, is_empty] = take(index);
    if (is_empty)
      sum.copy_(grad);
    else
      sum.add_(grad);
    grad.reset();
  }

  // A bucket is sent when its last gradient has come, unless an earlier one is not full yet: all
  // ranks must send their buckets in one order, in whatever order the gradients come.
  if (phase != Phase::kLastMicroBatch || ready[index]) return;
  zero_unless_filled(index);
  ready[index] = 1;
  ++buckets[places[index].bucket].num_ready;
  launch_in_backward(/*all=*/false);
}

void GradBuckets::Impl::launch_next() {
  Bucket& bucket = buckets[num_launched];
  bucket.work = sharded() ? dp.reduce_scatter_async(bucket.sums, bucket.flat)
                          : dp.all_reduce_async(bucket.flat);
  ++num_launched;
}

// Whether this rank has to wait for one of its reduce-scatters before it may begin another.
bool GradBuckets::Impl::limits_scatters() const {
  return sharded() && (buffer.is_cpu() || !dp.has_device_backend());
}

// Launches the next buckets in index order: those whose parameters are all ready, or all that are
// to be launched before finish(), the same ones on every rank. It waits for none: this rank would
// wait for the others to reach the same place, and one of them that gets no gradient there may
// itself be waiting for this rank.
void GradBuckets::Impl::launch_in_backward(bool all) {
  if (!options.overlap) return;
  const size_t end = limits_scatters() ? std::min(num_early, kMaxScatters) : num_early;
  while (num_launched < end) {
    const Bucket& next = buckets[num_launched];
    if (!all && next.num_ready < next.num_parameters) return;
    launch_next();
  }
}

// Launches what is left before `end`, in index order. Every rank comes here, so it may wait: a
// reduce-scatter keeps the other ranks' parts until wait() sums them, and the oldest is finished
// before the next one begins.
void GradBuckets::Impl::launch_all(size_t end) {
  while (num_launched < end) {
    if (limits_scatters() && num_launched >= kMaxScatters)
      buckets[num_launched - kMaxScatters].work.wait();
    launch_next();
  }
}

// A parameter that got no gradient in this step still has the last step's in the buffer; its
// gradient is zero.
void GradBuckets::Impl::zero_unless_filled(size_t index) {
  if (filled[index]) return;
  main_grads[index].zero_();
  filled[index] = 1;
}

void GradBuckets::Impl::zero_unfilled() {
  for (size_t i = 0; i < parameters.size(); ++i)
    zero_unless_filled(i);
}

at::Tensor GradBuckets::Impl::part_of_grad(size_t i) const {
  return main_grads[i].view({main_grads[i].numel()}).narrow(0, parts[i].begin, parts[i].size());
}

void Hook::operator()(const at::Tensor& parameter) { owner->on_gradient(index, parameter); }
GradientSink::Sum Hook::take() { return owner->take(index); }

GradBuckets::GradBuckets(std::vector<NamedParameter> parameters, Group& dp, Options options)
    : impl_(std::make_unique<Impl>(std::move(parameters), dp, options)) {}

GradBuckets::~GradBuckets() = default;

void GradBuckets::begin_step() {
  impl_->compute_thread.check("GradBuckets::begin_step()");
  if (impl_->phase != Impl::Phase::kIdle && impl_->num_launched > 0)
    throw Error(
        ErrorCode::kInvalidArgument,
        "begin_step() while the buckets of the last step are in flight: call finish() first");
  std::ranges::fill(impl_->filled, 0);
  std::ranges::fill(impl_->ready, 0);
  for (Impl::Bucket& bucket : impl_->buckets)
    bucket.num_ready = 0;
  impl_->num_launched = 0;
  impl_->pending_scale = 1;
  impl_->phase = Impl::Phase::kAccumulate;
}

void GradBuckets::set_last_micro_batch(bool last) {
  if (impl_->phase == Impl::Phase::kIdle)
    throw Error(ErrorCode::kInvalidArgument,
                "set_last_micro_batch() outside of a step: call begin_step() first");
  impl_->phase = last ? Impl::Phase::kLastMicroBatch : Impl::Phase::kAccumulate;
}

void GradBuckets::end_last_backward() {
  impl_->compute_thread.check("GradBuckets::end_last_backward()");
  if (impl_->phase == Impl::Phase::kIdle)
    throw Error(ErrorCode::kInvalidArgument,
                "end_last_backward() outside of a step: call begin_step() first");
  impl_->zero_unfilled();
  impl_->launch_in_backward(/*all=*/true);
}

void GradBuckets::finish() {
  impl_->compute_thread.check("GradBuckets::finish()");
  if (impl_->phase == Impl::Phase::kIdle)
    throw Error(ErrorCode::kInvalidArgument, "finish() outside of a step: call begin_step() first");

  impl_->zero_unfilled();

  // The late buckets go last: other ranks of the replica have parts of their gradients, which must
  // be summed before dp sums the replicas.
  impl_->launch_all(impl_->num_early);
  detail::sum_partial_gradients(impl_->parameters, impl_->main_grads, impl_->options);
  impl_->launch_all(impl_->buckets.size());

  // The optimizer may read the sums only when all of them have arrived.
  for (Impl::Bucket& bucket : impl_->buckets) {
    bucket.work.wait();
    bucket.work = {};
  }
  impl_->phase = Impl::Phase::kIdle;
}

void GradBuckets::scale(double factor) { impl_->pending_scale *= factor; }
double GradBuckets::pending_scale() const { return impl_->pending_scale; }
void GradBuckets::scale_applied() { impl_->pending_scale = 1; }

double GradBuckets::norm() const {
  std::vector<at::Tensor> counted;
  for (size_t i = 0; i < size(); ++i)
    if (parameter(i).shard.counted) counted.push_back(impl_->part_of_grad(i));

  // Squares are added in the order of the parameters, which keeps the order of rounding fixed.
  // Other dp ranks count the parts that they have the sums of, other ranks of the replica their
  // slices.
  double sum = 0;
  for (const double squares : detail::sums_of_squares(counted))
    sum += squares;
  if (impl_->sharded()) sum = impl_->dp.all_reduce(sum);
  if (impl_->options.mp != nullptr) sum = impl_->options.mp->all_reduce(sum);
  return std::sqrt(sum) * impl_->pending_scale;
}

std::vector<double> GradBuckets::norms(const std::vector<size_t>& group_of,
                                       size_t num_groups) const {
  RETORT_CHECK(group_of.size() == size()) << group_of.size() << " groups named";
  std::vector<at::Tensor> counted;
  std::vector<size_t> groups;
  for (size_t i = 0; i < size(); ++i) {
    if (!parameter(i).shard.counted) continue;
    counted.push_back(impl_->part_of_grad(i));
    groups.push_back(group_of[i]);
  }

  // The sums of all groups travel together, so that many groups cost no more collectives than one.
  at::Tensor sums = at::zeros({to_int64(num_groups)}, at::kDouble);
  const std::vector<double> squares = detail::sums_of_squares(counted);
  for (size_t i = 0; i < squares.size(); ++i)
    sums.mutable_data_ptr<double>()[groups[i]] += squares[i];
  if (impl_->sharded()) impl_->dp.all_reduce(sums);
  if (impl_->options.mp != nullptr) impl_->options.mp->all_reduce(sums);
  const at::Tensor norms = sums.sqrt() * impl_->pending_scale;
  const double* first = norms.const_data_ptr<double>();
  return {first, first + num_groups};
}

std::vector<std::string> GradBuckets::non_finite() const {
  std::vector<at::Tensor> all;
  for (size_t i = 0; i < size(); ++i)
    all.push_back(impl_->part_of_grad(i));
  const std::vector<double> squares = detail::sums_of_squares(all);
  std::vector<std::string> found;
  for (size_t i = 0; i < size(); ++i) {
    const double norm = std::sqrt(squares[i]) * impl_->pending_scale;
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
GradBuckets::Part GradBuckets::part(size_t i) const { return impl_->parts[i]; }
at::Tensor GradBuckets::main_grad_part(size_t i) const { return impl_->part_of_grad(i); }
int64_t GradBuckets::num_buckets() const { return std::ssize(impl_->buckets); }
int64_t GradBuckets::num_late_buckets() const {
  return to_int64(impl_->buckets.size() - impl_->num_early);
}
int64_t GradBuckets::bucket_numel(size_t bucket) const {
  return impl_->buckets[bucket].flat.numel();
}
GradBuckets::Place GradBuckets::place(size_t i) const { return impl_->places[i]; }
bool GradBuckets::sharded() const { return impl_->sharded(); }
Group& GradBuckets::dp() const { return impl_->dp; }

}  // namespace retort::parallel
