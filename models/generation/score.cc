#include "models/generation/score.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/generation/cpu_kernels/products.h"
#include "models/generation/cpu_kernels/vector_kernels.h"

namespace retort::models {
namespace {

void check(const ScoreRequest& request, int64_t vocab_size) {
  const auto fail = [](const std::string& what, size_t sequence) {
    throw Error(ErrorCode::kInvalidArgument, "scoring: " + what).with("sequence", sequence);
  };
  if (request.prompt_lengths.size() != request.sequences.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                "scoring: one prompt length for each sequence is expected")
        .with("sequences", request.sequences.size())
        .with("prompt_lengths", request.prompt_lengths.size());
  }
  for (size_t s = 0; s < request.sequences.size(); ++s) {
    const auto length = static_cast<int64_t>(request.sequences[s].size());
    if (request.prompt_lengths[s] < 1 || request.prompt_lengths[s] > length) {
      fail("a prompt length must be from 1 to the sequence's length " + std::to_string(length), s);
    }
    for (const int32_t id : request.sequences[s]) {
      if (id < 0 || id >= vocab_size)
        fail("token id " + std::to_string(id) + " lies outside the vocabulary", s);
    }
  }
}

// Keeps a running log(sum(exp)) as the largest value and the sum relative to it, which cannot
// overflow.
struct LogSum {
  double largest = -INFINITY;
  double sum = 0;
  void add(double other_largest, double other_sum) {
    if (other_sum == 0) return;  // it is over no rows
    if (other_largest > largest) {
      sum = sum * std::exp(largest - other_largest) + other_sum;
      largest = other_largest;
    } else {
      sum += other_sum * std::exp(other_largest - largest);
    }
  }
};

void add_logits(const float* row, int64_t size, LogSum& sum) {
  const VectorKernels& kernels = vector_kernels();
  float largest = 0;
  float smallest = 0;
  kernels.range(row, size, &largest, &smallest);
  sum.add(largest, kernels.exponentials(row, nullptr, size, largest, 1.0f));
}

// Merges the sums and target logits over each rank's rows of the vocabulary into those over all of
// it. Every rank merges in rank order, so that all have the same bits; a target lies on one rank,
// and the others have 0 for it.
void merge_ranks(parallel::Group& group, std::vector<LogSum>& sums, std::vector<double>& chosen) {
  // score() runs in inference mode, but the group works on ordinary tensors.
  const c10::InferenceMode ordinary(false);
  const auto count = static_cast<int64_t>(sums.size());
  at::Tensor mine = at::empty({count, 3}, at::TensorOptions().dtype(at::kDouble));
  auto* number = mine.mutable_data_ptr<double>();
  for (size_t r = 0; r < sums.size(); ++r) {
    *number++ = sums[r].largest;
    *number++ = sums[r].sum;
    *number++ = chosen[r];
  }
  const at::Tensor all = group.all_gather(mine).contiguous();
  const auto* next = all.const_data_ptr<double>();
  sums.assign(sums.size(), {});
  chosen.assign(chosen.size(), 0.0);
  for (int rank = 0; rank < group.size(); ++rank)
    for (size_t r = 0; r < sums.size(); ++r, next += 3) {
      sums[r].add(next[0], next[1]);
      chosen[r] += next[2];
    }
}

// Computes log p(target) for the rows of `states` [count, H].
void score_rows(WorkerPool& pool, const float* states, const int32_t* targets, int64_t count,
                const Head& local, int64_t vocab_chunk, std::vector<float>& logits, float* out) {
  const at::Tensor& head = local.weight;
  const int64_t vocab_size = head.size(0);
  const int64_t width = head.size(1);
  std::vector<LogSum> sums(static_cast<size_t>(count));
  std::vector<double> chosen(static_cast<size_t>(count), 0.0);

  // This rank's rows of the vocabulary are multiplied a chunk at a time, so that logits [count, V]
  // never exist.
  for (int64_t first = 0; first < vocab_size; first += vocab_chunk) {
    const int64_t size = std::min(vocab_chunk, vocab_size - first);
    const Matrix part(head.narrow(0, first, size), {});
    logits.resize(static_cast<size_t>(std::max(static_cast<int64_t>(logits.size()), count * size)));
    multiply(pool, states, width, count, {{&part, logits.data(), size}});
    pool.run(count, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        float* row = logits.data() + r * size;
        if (local.softcap > 0)
          vector_kernels().softcap(row, size, 1.0f, static_cast<float>(local.softcap));
        add_logits(row, size, sums[static_cast<size_t>(r)]);
        const int64_t target = targets[r] - local.vocab.begin - first;
        if (target >= 0 && target < size) chosen[static_cast<size_t>(r)] = row[target];
      }
    });
  }

  // log p is the logit of the target less the log-sum over the whole vocabulary.
  if (!local.vocab.whole()) merge_ranks(*local.vocab.group, sums, chosen);
  for (size_t r = 0; r < sums.size(); ++r)
    out[r] = static_cast<float>(chosen[r] - (sums[r].largest + std::log(sums[r].sum)));
}

// Lists the tokens to score in a pack, and the rows of the hidden states that predict them.
struct Targets {
  std::vector<int64_t> positions;
  std::vector<int32_t> ids;

  Targets(const ScoreRequest& request, size_t begin, size_t end) {
    int64_t first = 0;
    for (size_t s = begin; s < end; ++s) {
      const std::vector<int32_t>& tokens = request.sequences[s];
      // The state at a token predicts the token after it, so the row is one before the target.
      for (auto i = static_cast<size_t>(request.prompt_lengths[s]); i < tokens.size(); ++i) {
        positions.push_back(first + static_cast<int64_t>(i) - 1);
        ids.push_back(tokens[i]);
      }
      first += static_cast<int64_t>(tokens.size());
    }
  }
};

// Scores sequences [begin, end), which are one pack.
void score_pack(WorkerPool& pool, const Decoder& decoder, const ScoreRequest& request, size_t begin,
                size_t end, const ScoreOptions& options, std::vector<std::vector<float>>& scores) {
  const Targets targets(request, begin, end);
  if (targets.ids.empty()) return;

  // Only the states that predict a target go on to the head.
  at::Tensor index = at::empty({static_cast<int64_t>(targets.positions.size())},
                               at::TensorOptions().dtype(at::kLong));
  std::copy(targets.positions.begin(), targets.positions.end(), index.mutable_data_ptr<int64_t>());
  const at::Tensor hidden =
      decoder.hidden(pack_rows({request.sequences.begin() + static_cast<std::ptrdiff_t>(begin),
                                request.sequences.begin() + static_cast<std::ptrdiff_t>(end)}));
  const at::Tensor states = at::index_select(hidden, 0, index).to(at::kFloat).contiguous();

  // The head takes row_chunk states at a time, which bounds the buffer of logits.
  std::vector<float> logits;
  std::vector<float> values(targets.ids.size());
  const auto count = static_cast<int64_t>(targets.ids.size());
  for (int64_t row = 0; row < count; row += options.row_chunk) {
    score_rows(pool, states.const_data_ptr<float>() + row * states.size(1),
               targets.ids.data() + row, std::min(options.row_chunk, count - row), decoder.head(),
               options.vocab_chunk, logits, values.data() + row);
  }

  // The scores go back to their sequences.
  auto next = values.begin();
  for (size_t s = begin; s < end; ++s) {
    const auto size =
        static_cast<std::ptrdiff_t>(request.sequences[s].size()) - request.prompt_lengths[s];
    scores[s].assign(next, next + size);
    next += size;
  }
}

// A pack has at least one sequence, and more while they fit.
size_t end_of_pack(const ScoreRequest& request, size_t begin, int64_t max_tokens) {
  const auto length = [&](size_t s) { return static_cast<int64_t>(request.sequences[s].size()); };
  int64_t tokens = length(begin);
  size_t end = begin + 1;
  while (end < request.sequences.size() && tokens + length(end) <= max_tokens) {
    tokens += length(end);
    ++end;
  }
  return end;
}

}  // namespace

std::vector<std::vector<float>> score(const Decoder& decoder, const ScoreRequest& request,
                                      const ScoreOptions& options) {
  check(request, decoder.config().vocab_size);
  if (options.max_tokens_per_forward < 1 || options.vocab_chunk < 1 || options.row_chunk < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "scoring: max_tokens_per_forward, vocab_chunk and row_chunk must be at least 1");
  }
  if (!decoder.device().is_cpu())
    throw Error(ErrorCode::kUnavailable, "scoring runs on the CPU; move the model there");
  const c10::InferenceMode inference;
  WorkerPool pool(at::get_num_threads());
  std::vector<std::vector<float>> scores(request.sequences.size());
  for (size_t begin = 0; begin < request.sequences.size();) {
    const size_t end = end_of_pack(request, begin, options.max_tokens_per_forward);
    score_pack(pool, decoder, request, begin, end, options, scores);
    begin = end;
  }
  return scores;
}

}  // namespace retort::models
