#include "parallel/detail/partial_gradients.h"

#include <map>

#include <ATen/ops/zeros.h>

namespace retort::parallel::detail {
namespace {

bool has_partial_copies(const NamedParameter& p) {
  return p.shard.partial_gradient && p.shard.copies > 1;
}

bool is_tied(const NamedParameter& p, const GradBuckets::Options& options) {
  return p.shard.tied_stages && options.embedding != nullptr && options.embedding->size() > 1;
}

// One all-reduce for all parameters with this number of copies. The ranks of tp that hold the same
// slice (those with the same rank / copies) write into the same slot of the buffer, which is zero
// elsewhere: the sum over all of tp is then the sum over the copies in each slot.
void sum_copies(const std::vector<at::Tensor>& gradients, int64_t copies, Group& tp) {
  int64_t total = 0;
  for (const at::Tensor& g : gradients)
    total += g.numel();
  at::Tensor slots = at::zeros({tp.size() / copies, total}, gradients.front().options());
  const at::Tensor own = slots.select(0, tp.rank() / copies);
  int64_t offset = 0;
  for (const at::Tensor& g : gradients) {
    own.narrow(0, offset, g.numel()).copy_(g.view({g.numel()}));
    offset += g.numel();
  }

  tp.all_reduce(slots);

  offset = 0;
  for (const at::Tensor& g : gradients) {
    g.view({g.numel()}).copy_(own.narrow(0, offset, g.numel()));
    offset += g.numel();
  }
}

}  // namespace

void check_partial(const NamedParameter& p, const GradBuckets::Options& options) {
  const ParameterShard& s = p.shard;
  if (has_partial_copies(p)) {
    const int64_t ranks = options.tp == nullptr ? 1 : options.tp->size();
    if (ranks % s.copies != 0)
      throw Error(ErrorCode::kInvalidArgument,
                  "parameter '" + p.name +
                      "' has copies with a part of the gradient each, expected "
                      "Options::tp with a multiple of that many ranks")
          .with("copies", s.copies)
          .with("tp", ranks);
  }
  if (s.tied_stages && options.embedding == nullptr)
    throw Error(
        ErrorCode::kInvalidArgument,
        "parameter '" + p.name + "' is tied to one of another stage, expected Options::embedding");
}

bool is_partial(const NamedParameter& p, const GradBuckets::Options& options) {
  return has_partial_copies(p) || is_tied(p, options);
}

void sum_partial_gradients(const std::vector<NamedParameter>& parameters,
                           const std::vector<at::Tensor>& main_grads,
                           const GradBuckets::Options& options) {
  // The map's order is the order of the collectives, the same on all ranks.
  std::map<int64_t, std::vector<at::Tensor>> by_copies;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (has_partial_copies(parameters[i]))
      by_copies[parameters[i].shard.copies].push_back(main_grads[i]);
  for (const auto& [copies, gradients] : by_copies)
    sum_copies(gradients, copies, *options.tp);

  // A tied parameter is one weight on two stages, each of which has its own part of the gradient.
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!is_tied(parameters[i], options)) continue;
    at::Tensor gradient = main_grads[i];
    options.embedding->all_reduce(gradient);
  }
}

}  // namespace retort::parallel::detail
