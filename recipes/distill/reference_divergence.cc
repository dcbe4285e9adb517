#include "recipes/distill/reference_divergence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace retort::recipes {
namespace {

using Row = std::vector<double>;
using losses::DivergenceType;

double log_sum_exp(const Row& x) {
  const double top = *std::max_element(x.begin(), x.end());
  if (!std::isfinite(top)) return top;
  double sum = 0;
  for (double v : x)
    sum += std::exp(v - top);
  return top + std::log(sum);
}

Row log_softmax(Row x, double temperature) {
  for (double& v : x)
    v /= temperature;
  const double total = log_sum_exp(x);
  for (double& v : x)
    v -= total;
  return x;
}

double kl(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (std::isfinite(a[i])) sum += std::exp(a[i]) * (a[i] - b[i]);
  return sum;
}

// log(w e^q + (1-w) e^p)
Row mixture(const Row& q, const Row& p, double w) {
  Row m(q.size());
  for (size_t i = 0; i < q.size(); ++i)
    m[i] = std::log(w * std::exp(q[i]) + (1 - w) * std::exp(p[i]));
  return m;
}

double divergence(const Row& q, const Row& p, const losses::DivergenceOptions& o) {
  switch (o.type) {
    case DivergenceType::kForwardKl: return kl(q, p);
    case DivergenceType::kReverseKl: return kl(p, q);
    case DivergenceType::kJsd: {
      if (o.beta == 0) return kl(q, p);
      if (o.beta == 1) return kl(p, q);
      const Row m = mixture(q, p, o.beta);
      return o.beta * kl(q, m) + (1 - o.beta) * kl(p, m);
    }
    case DivergenceType::kSkewedKl: return kl(q, mixture(q, p, o.skew_lambda));
    case DivergenceType::kSkewedReverseKl: return kl(p, mixture(q, p, 1 - o.skew_lambda));
    case DivergenceType::kTvd: {
      double sum = 0;
      for (size_t i = 0; i < q.size(); ++i)
        sum += std::abs(std::exp(q[i]) - std::exp(p[i]));
      return sum / 2;
    }
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

double reference_divergence(const Row& teacher_logits, const Row& student_logits,
                            const losses::DivergenceOptions& options, int64_t top_k) {
  std::vector<size_t> order(teacher_logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return teacher_logits[a] > teacher_logits[b]; });
  const auto vocab = static_cast<int64_t>(order.size());
  order.resize(static_cast<size_t>(top_k <= 0 ? vocab : std::min(top_k, vocab)));
  losses::DivergenceOptions whole = options;
  if (top_k <= 0) whole.tail = losses::Tail::kBucket;
  return reference_divergence(teacher_logits, student_logits, whole, order);
}

double reference_divergence(const Row& teacher_logits, const Row& student_logits,
                            const losses::DivergenceOptions& options,
                            const std::vector<size_t>& ids) {
  const double scale =
      options.scale_by_temperature_squared ? options.temperature * options.temperature : 1.0;
  const Row q = log_softmax(teacher_logits, options.temperature),
            p = log_softmax(student_logits, options.temperature);
  std::vector<bool> named(q.size(), false);
  for (const size_t id : ids)
    named.at(id) = true;
  Row q_top, p_top, q_rest, p_rest;
  for (size_t id = 0; id < q.size(); ++id) {
    (named[id] ? q_top : q_rest).push_back(q[id]);
    (named[id] ? p_top : p_rest).push_back(p[id]);
  }
  if (options.tail == losses::Tail::kBucket) {
    if (!q_rest.empty()) {
      q_top.push_back(log_sum_exp(q_rest));
      p_top.push_back(log_sum_exp(p_rest));
    }
    return scale * divergence(q_top, p_top, options);
  }
  if (options.tail == losses::Tail::kRenormalize) {
    const double mass = log_sum_exp(q_top);
    for (double& v : q_top)
      v -= mass;
  }
  return scale * kl(q_top, p_top);
}

}  // namespace retort::recipes
