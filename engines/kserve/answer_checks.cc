#include "engines/kserve/answer_checks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace retort::engines::kserve {
namespace {

// "topk_ids[3, 1]" of the number `index` of a contiguous tensor.
std::string place(const std::string& name, const at::Tensor& values, int64_t index) {
  std::string text;
  for (int64_t dim = values.dim() - 1; dim >= 0; --dim) {
    text = std::to_string(index % values.size(dim)) + (text.empty() ? "" : ", ") + text;
    index /= values.size(dim);
  }
  return name + "[" + text + "]";
}

[[noreturn]] void corrupt(const std::string& where, const std::string& why) {
  throw Error(ErrorCode::kCorrupt, where + why + "; see what the server's model computes");
}

// A number of `Bits` is finite unless all bits of its exponent are set.
template <class Bits>
void check_exponents(const std::string& name, const at::Tensor& values, Bits exponent) {
  const auto* bits = static_cast<const Bits*>(values.const_data_ptr());
  for (int64_t i = 0; i < values.numel(); ++i)
    if ((bits[i] & exponent) == exponent)
      corrupt(place(name, values, i), " is no number, or an infinite one");
}

}  // namespace

void check_log_probs(const std::string& name, const at::Tensor& values) {
  const auto* numbers = values.const_data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i)
    if (!(numbers[i] <= 0))
      corrupt(place(name, values, i), " is " + std::to_string(numbers[i]) +
                                          "; a log-probability is a number that is at most 0");
}

void check_top_k(const at::Tensor& ids, const at::Tensor& log_probs, int64_t vocab_rows) {
  check_log_probs("topk_logprobs", log_probs);
  const int64_t k = ids.size(1);
  // The answer is a model's that others wrote. Each row must be the beginning of one distribution:
  // ids of the vocabulary, none of them twice, falling numbers.
  const auto* id = ids.const_data_ptr<int32_t>();
  const auto* log_prob = log_probs.const_data_ptr<float>();
  std::vector<int32_t> sorted(static_cast<size_t>(k));
  for (int64_t begin = 0; begin < ids.numel(); begin += k) {
    for (int64_t i = begin; i < begin + k; ++i) {
      if (id[i] < 0 || (vocab_rows > 0 && id[i] >= vocab_rows))
        corrupt(
            place("topk_ids", ids, i),
            " is " + std::to_string(id[i]) + "; the vocabulary " +
                (vocab_rows > 0 ? "has " + std::to_string(vocab_rows) + " ids" : "begins at 0"));
      if (i > begin && log_prob[i] > log_prob[i - 1])
        corrupt(place("topk_logprobs", log_probs, i),
                " is " + std::to_string(log_prob[i]) + ", more than the one before it, " +
                    std::to_string(log_prob[i - 1]) + "; expected falling numbers");
    }

    std::copy(id + begin, id + begin + k, sorted.begin());
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end())
      corrupt("topk_ids[" + std::to_string(begin / k) + "]",
              " has id " + std::to_string(*twice) + " twice");
  }
}

void check_finite(const std::string& name, const at::Tensor& values) {
  switch (values.scalar_type()) {
    case at::kFloat: return check_exponents<uint32_t>(name, values, 0x7f800000);
    case at::kBFloat16: return check_exponents<uint16_t>(name, values, 0x7f80);
    case at::kHalf: return check_exponents<uint16_t>(name, values, 0x7c00);
    default: RETORT_CHECK(false) << "no floating point: " << values.scalar_type();
  }
}

}  // namespace retort::engines::kserve
