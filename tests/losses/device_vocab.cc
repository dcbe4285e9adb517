#include "tests/losses/device_vocab.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>

#include <functional>
#include <string>
#include <vector>

#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/losses/linear_distill.h"
#include "recipes/losses/linear_log_probs.h"
#include "tests/losses/fixtures.h"
#include "tests/losses/stand_in_device.h"
#include "tests/parallel/rank_process.h"
#include "tests/parallel/stand_in/backends.h"
#include "tests/support/require.h"

namespace retort::losses::testing {
namespace {

using parallel::VocabShard;
using parallel::World;
using test::require;

constexpr int64_t kRanks = 2, kRows = 45, kVocab = 67, kChunk = 7;
constexpr int64_t kChunks = (kRows + kChunk - 1) / kChunk;
constexpr double kTolerance = 1e-5;

// One rank's side of a loss: the vocabulary's rows, and where it computes.
struct Part {
  VocabShard vocab;
  at::Device device = at::kCPU;
  at::Tensor hidden, weight;  // leaves

  at::Tensor rows_of(const at::Tensor& whole) const {
    if (vocab.whole()) return whole.to(device);
    const int64_t end = parallel::vocab_end(vocab.total, kRanks, vocab.group->rank());
    return whole.narrow(0, vocab.begin, end - vocab.begin).to(device);
  }
};

Part part_of(const Problem& p, const VocabShard& vocab, const at::Device& device) {
  Part part{.vocab = vocab, .device = device, .hidden = {}, .weight = {}};
  part.hidden = p.hidden.detach().to(device, at::kFloat, false, true).requires_grad_();
  part.weight =
      part.rows_of(p.weight.detach()).to(device, at::kFloat, false, true).requires_grad_();
  return part;
}

// A scalar with autograd.
using Loss = std::function<at::Tensor(const Problem& p, const Part& part)>;

at::Tensor cross_entropy(const Problem& p, const Part& part) {
  return unread_cross_entropy(part.hidden, part.weight, {}, p.targets, kChunk, part.vocab).loss_sum;
}

at::Tensor log_probs(const Problem& p, const Part& part) {
  const LogProbs got = linear_log_probs(
      part.hidden, part.weight, {}, p.targets,
      {.entropy = true, .entropy_gradient = true, .chunk_tokens = kChunk}, part.vocab);
  const at::Tensor scale = at::sin(at::arange(kRows, at::kFloat) + 1);
  return (got.log_probs * scale.to(part.device)).sum() +
         (got.entropy * scale.flip(0).to(part.device)).sum();
}

Loss distill(DivergenceType type) {
  return [type](const Problem& p, const Part& part) {
    const TeacherHidden teacher{.hidden = p.teacher_hidden.to(part.device),
                                .weight = part.rows_of(p.teacher_weight),
                                .bias = {}};
    return unread_distill(part.hidden, part.weight, {}, p.targets, teacher,
                          {.type = type, .kd_ratio = 0.5, .chunk_tokens = kChunk}, part.vocab)
        .loss_sum;
  };
}

void require_close(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  const double off = test::relative_difference(got, expected);
  require(off <= kTolerance, what + " is off by " + std::to_string(off));
}

// `sums`: all-reduces of a chunk.
void compare_on_device(const std::string& name, const Loss& loss, int64_t sums, World& world,
                       const World::Options& options) {
  const Problem p = random_problem(
      {.rows = kRows, .vocab = kVocab, .width = 12, .teacher_vocab = kVocab, .teacher_width = 10},
      41);
  const Part whole = part_of(p, {}, at::kCPU);
  const at::Tensor expected = loss(p, whole);
  (expected * 0.25).backward();

  const VocabShard vocab{.group = &world.tp(),
                         .begin = parallel::vocab_begin(kVocab, kRanks, world.tp().rank()),
                         .total = kVocab};
  const Part mine = part_of(p, vocab, world.device());
  const int64_t before = test::stand_in_collectives(options);
  test::RecordedReads recorded;
  const at::Tensor got = loss(p, mine);
  const std::vector<std::string> reads = recorded.take();
  require(reads.empty(), name + " reads " + (reads.empty() ? "" : reads.front()));
  require(test::stand_in_collectives(options) - before == sums * kChunks,
          name + " has its all-reduces on the device, " + std::to_string(sums) + " a chunk");

  // dH is what these rows contribute, dW theirs alone.
  (got * 0.25).backward();
  require(recorded.take().empty(), name + " reads nothing in backward");
  require_close(got, expected, name);
  at::Tensor dh = mine.hidden.grad().contiguous();
  world.tp().all_reduce(dh);
  require_close(dh, whole.hidden.grad(), name + " dH");
  require_close(mine.weight.grad(), mine.rows_of(whole.weight.grad()), name + " dW");
}

}  // namespace

void device_vocab_scenario() {
  const World::Options options =
      test::on_stand_in(parallel::testing::child_world_options("devices", {.tp = kRanks}));
  {
    World world(options);
    compare_on_device("cross_entropy", cross_entropy, 2, world, options);
    compare_on_device("log_probs", log_probs, 2, world, options);
    compare_on_device("forward_kl", distill(DivergenceType::kForwardKl), 2, world, options);
    compare_on_device("jsd", distill(DivergenceType::kJsd), 3, world, options);
  }
  const auto failure = test::stand_in_failure(options);
  require(!failure, failure.value_or(""));
}

}  // namespace retort::losses::testing
