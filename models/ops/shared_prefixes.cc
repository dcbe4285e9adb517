#include "models/ops/shared_prefixes.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace retort::models {
namespace {

// Counts the tokens that each sequence shares with the one before it; 0 if they are too few.
std::vector<int64_t> shared_with_previous(const int64_t* ids, const std::vector<int64_t>& cu) {
  std::vector<int64_t> shared(cu.size() - 1, 0);
  for (size_t s = 1; s < shared.size(); ++s) {
    const int64_t* begin = ids + cu[s];
    const int64_t* other_end = ids + cu[s];
    const auto differ = std::mismatch(begin, ids + cu[s + 1], ids + cu[s - 1], other_end);
    const int64_t count = differ.first - begin;
    if (count >= kLeastSharedPrefix) shared[s] = count;
  }
  return shared;
}

// A run of neighbours [begin, end) becomes one sequence; all of them begin with `prefix` tokens.
struct Run {
  size_t begin = 0;
  size_t end = 0;
  int64_t prefix = 0;
};

// Finds the division into runs that saves most, by dynamic programming: a best division of the
// first n sequences ends with a run [b, n), behind a best one of the first b.
std::vector<Run> best_runs(const std::vector<int64_t>& shared) {
  std::vector<Run> last(shared.size() + 1);
  std::vector<int64_t> saved(shared.size() + 1, 0);
  for (size_t n = 1; n <= shared.size(); ++n) {
    last[n] = {n - 1, n, 0};
    saved[n] = saved[n - 1];
    // A run shares the shortest of the prefixes that its neighbours share.
    int64_t prefix = shared[n - 1];
    for (size_t b = n - 1; b > 0 && prefix > 0; prefix = std::min(prefix, shared[--b])) {
      const int64_t total = saved[b - 1] + prefix * static_cast<int64_t>(n - b);
      if (total <= saved[n]) continue;
      saved[n] = total;
      last[n] = {b - 1, n, prefix};
    }
  }

  // The runs of the best division are read off from its end.
  std::vector<Run> runs;
  for (size_t n = shared.size(); n > 0; n = last[n].begin)
    runs.push_back(last[n]);
  std::reverse(runs.begin(), runs.end());
  return runs;
}

at::Tensor int64_tensor(const std::vector<int64_t>& values) {
  at::Tensor out =
      at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions().dtype(at::kLong));
  std::copy(values.begin(), values.end(), out.mutable_data_ptr<int64_t>());
  return out;
}

}  // namespace

SharedPrefixes share_prefixes(const PackedTokens& given) {
  RETORT_CHECK(!given.cu_seqlens.empty() && given.forks.empty() && given.input_ids.is_cpu() &&
               given.positions.is_cpu())
      << "prefixes are shared of sequences that do not fork, in host memory";
  const at::Tensor ids = given.input_ids.contiguous();
  const std::vector<int64_t>& cu = given.cu_seqlens;
  SharedPrefixes shared;
  shared.tokens.cu_seqlens = {0};
  std::vector<int64_t> kept;  // of the tokens given, in their order
  std::vector<int64_t> rows;

  for (const Run& run : best_runs(shared_with_previous(ids.const_data_ptr<int64_t>(), cu))) {
    // The first sequence of a run stands whole; of the others only what they do not share with it
    // is kept.
    const auto begin = static_cast<int64_t>(kept.size());
    Fork fork{.prefix = run.prefix, .begins = {}};
    for (size_t s = run.begin; s < run.end; ++s) {
      const int64_t prefix = s == run.begin ? 0 : run.prefix;
      for (int64_t i = 0; i < prefix; ++i)
        rows.push_back(begin + i);
      if (s > run.begin) fork.begins.push_back(static_cast<int64_t>(kept.size()) - begin);
      for (int64_t token = cu[s] + prefix; token < cu[s + 1]; ++token) {
        rows.push_back(static_cast<int64_t>(kept.size()));
        kept.push_back(token);
      }
    }
    shared.tokens.forks.push_back(std::move(fork));
    shared.tokens.cu_seqlens.push_back(static_cast<int64_t>(kept.size()));
  }

  // Where nothing is shared, the tokens stay as they were given.
  shared.rows = int64_tensor(rows);
  if (kept.size() == rows.size()) {
    shared.tokens = given;
    return shared;
  }
  const at::Tensor from = int64_tensor(kept);
  shared.tokens.input_ids = rows_at(given.input_ids, from);
  shared.tokens.positions = rows_at(given.positions, from);
  return shared;
}

}  // namespace retort::models
