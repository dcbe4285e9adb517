// Memory and time of linear_distill and linear_cross_entropy against the textbook ATen expressions
// (both logits whole, one autograd graph), forward and backward, float32. Peak bytes are LibTorch's
// CPU allocator's; times are CPU seconds of the process, the minimum of the repetitions. The two
// sides alternate, so that a busy machine disturbs both.
//   loss_memory_bench [tokens=4096] [vocab=32000] [student_width=256] [teacher_width=512]
//       [repetitions=3] [chunk_tokens=0]
// OMP_NUM_THREADS sets the threads. Exits 1 if a peak is above 15 % or the losses disagree.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/topk.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "base/sizes.h"
#include "recipes/losses/distill_shares.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/losses/linear_distill.h"
#include "tests/losses/peak_allocation.h"

namespace {

using namespace retort::losses;

struct Inputs {
  at::Tensor hidden, weight, targets, teacher_hidden, teacher_weight;
};
using Loss = std::function<at::Tensor(const Inputs&)>;

// Processor time of this process.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Measured {
  int64_t peak_bytes = 0;
  double seconds = 1e30;
  double loss = 0;
  double gradient_norm = 0;
};

// One forward and backward pass; `best` keeps the fastest.
void measure(const Inputs& inputs, const Loss& loss, Measured& best) {
  Inputs fresh = inputs;
  fresh.hidden = inputs.hidden.detach().clone().requires_grad_();
  fresh.weight = inputs.weight.detach().clone().requires_grad_();
  const PeakAllocation meter;
  const double start = cpu_seconds();
  const at::Tensor value = loss(fresh);
  value.backward();
  best.seconds = std::min(best.seconds, cpu_seconds() - start);
  best.peak_bytes = meter.peak_bytes();
  best.loss = value.item<double>();
  best.gradient_norm = fresh.weight.grad().norm().item<double>();
}

at::Tensor nll(const at::Tensor& logits, const at::Tensor& targets) {
  return at::nll_loss(at::log_softmax(logits, -1), targets, {}, at::Reduction::Sum);
}

at::Tensor textbook(const Inputs& x, DivergenceType type, double kd_ratio) {
  const at::Tensor logits = at::mm(x.hidden, x.weight.t());
  const at::Tensor lp = at::log_softmax(logits, -1);
  const at::Tensor lq = at::log_softmax(at::mm(x.teacher_hidden, x.teacher_weight.t()), -1);
  const auto kl = [](const at::Tensor& a, const at::Tensor& b) {
    return (a.exp() * (a - b)).sum();
  };
  at::Tensor kd;
  if (type == DivergenceType::kForwardKl) {
    kd = kl(lq, lp);
  } else {
    const at::Tensor m = at::log((lq.exp() + lp.exp()) * 0.5);
    kd = 0.5 * kl(lq, m) + 0.5 * kl(lp, m);
  }
  return kd_ratio == 1 ? kd : kd_ratio * kd + (1 - kd_ratio) * nll(logits, x.targets);
}

TeacherTopK top_k_of(const Inputs& x, int64_t k) {
  const at::Tensor lq = at::log_softmax(at::mm(x.teacher_hidden, x.teacher_weight.t()), -1);
  const auto [logps, ids] = at::topk(lq, k, -1);
  return {ids.to(at::kInt), logps, lq.scatter(1, ids, -INFINITY).logsumexp(-1)};
}

// The K + 1 categories (the teacher's best tokens and all others in one) from the student's whole
// log-softmax.
at::Tensor textbook_top_k(const Inputs& x, const TeacherTopK& top) {
  const at::Tensor lp = at::log_softmax(at::mm(x.hidden, x.weight.t()), -1);
  const at::Tensor ids = top.ids.to(at::kLong);
  const at::Tensor coarse_p =
      at::cat({lp.gather(1, ids), lp.scatter(1, ids, -INFINITY).logsumexp(-1, true)}, 1);
  const at::Tensor coarse_q = at::cat({top.logps, top.log_tail.unsqueeze(1)}, 1);
  return (coarse_q.exp() * (coarse_q - coarse_p)).sum();
}

bool compare(const char* name, const Inputs& inputs, const Loss& ours, const Loss& theirs,
             int repetitions, double most_memory = 0.15) {
  Measured a, b;
  for (int i = 0; i < repetitions; ++i) {
    measure(inputs, ours, a);
    measure(inputs, theirs, b);
  }
  const double memory = static_cast<double>(a.peak_bytes) / static_cast<double>(b.peak_bytes);
  const double off = std::abs(a.loss - b.loss) / std::abs(b.loss);
  const double gradient_off = std::abs(a.gradient_norm - b.gradient_norm) / b.gradient_norm;
  std::printf("%-28s %9.1f %11.1f %7.3f %9.3f %11.3f %7.2f   %.1e %.1e\n", name,
              a.peak_bytes / 1048576.0, b.peak_bytes / 1048576.0, memory, a.seconds, b.seconds,
              a.seconds / b.seconds, off, gradient_off);
  std::fflush(stdout);
  return memory <= most_memory && off < 1e-4 && gradient_off < 1e-4;
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, int64_t value) {
    return i < argc ? std::atoll(argv[i]) : value;
  };
  const int64_t tokens = argument(1, 4096);
  const int64_t vocab = argument(2, 32000);
  const int64_t width = argument(3, 256);
  const int64_t teacher_width = argument(4, 512);
  const int repetitions = retort::to_int(argument(5, 3));
  const int64_t chunk = argument(6, 0);

  // Weights of a scale that gives logits of about 2.
  at::manual_seed(1);
  Inputs x{at::randn({tokens, width}),
           at::randn({vocab, width}) * (2 / std::sqrt(static_cast<double>(width))),
           at::randint(vocab, {tokens}, at::kLong), at::randn({tokens, teacher_width}),
           at::randn({vocab, teacher_width}) * (2 / std::sqrt(static_cast<double>(teacher_width)))};
  std::printf("tokens %ld, vocab %ld, widths %ld / %ld, %d threads\n", tokens, vocab, width,
              teacher_width, at::get_num_threads());
  std::printf("%-28s %9s %11s %7s %9s %11s %7s   %s\n", "", "MiB", "textbook", "ratio", "seconds",
              "textbook", "ratio", "loss, |dW| off");

  // The two sides of a comparison from hidden states.
  const auto distill = [chunk](double kd_ratio, DivergenceType type) -> Loss {
    return [=](const Inputs& in) {
      return linear_distill(in.hidden, in.weight, {}, in.targets,
                            TeacherHidden{in.teacher_hidden, in.teacher_weight, {}},
                            {.type = type, .kd_ratio = kd_ratio, .chunk_tokens = chunk})
          .loss_sum;
    };
  };
  const auto book = [](double kd_ratio, DivergenceType type) -> Loss {
    return [=](const Inputs& in) { return textbook(in, type, kd_ratio); };
  };

  using T = DivergenceType;
  bool ok = compare("forward_kl, hidden", x, distill(1, T::kForwardKl), book(1, T::kForwardKl),
                    repetitions);
  ok &= compare("forward_kl + ce, hidden", x, distill(0.5, T::kForwardKl), book(0.5, T::kForwardKl),
                repetitions);
  ok &= compare("jsd, hidden", x, distill(1, T::kJsd), book(1, T::kJsd), repetitions);

  // From the teacher's best 64 tokens, and without a teacher.
  const TeacherTopK top = top_k_of(x, 64);
  ok &= compare(
      "forward_kl, top-64 bucket", x,
      [&](const Inputs& in) {
        return linear_distill(in.hidden, in.weight, {}, in.targets, top, {.chunk_tokens = chunk})
            .loss_sum;
      },
      [&](const Inputs& in) { return textbook_top_k(in, top); }, repetitions);
  ok &= compare(
      "cross-entropy", x,
      [&](const Inputs& in) {
        return linear_cross_entropy(in.hidden, in.weight, {}, in.targets, chunk).loss_sum;
      },
      [](const Inputs& in) { return nll(at::mm(in.hidden, in.weight.t()), in.targets); },
      repetitions);

  // Two teachers of all rows in one pass, beside a call for each.
  ok &= compare(
      "two teachers, hidden", x,
      [&](const Inputs& in) {
        const TeacherHidden teacher{in.teacher_hidden, in.teacher_weight, {}};
        return unread_distill_shares(
                   in.hidden, in.weight, {}, in.targets,
                   {{.signal = teacher, .weight = 0.5}, {.signal = teacher, .weight = 0.5}},
                   {.chunk_tokens = chunk})
            .loss_sum;
      },
      [&](const Inputs& in) {
        const TeacherHidden teacher{in.teacher_hidden, in.teacher_weight, {}};
        const auto one = [&] {
          return linear_distill(in.hidden, in.weight, {}, in.targets, teacher,
                                {.chunk_tokens = chunk})
              .loss_sum;
        };
        return one() * 0.5 + one() * 0.5;
      },
      repetitions, /*most_memory=*/2);
  return ok ? 0 : 1;
}
