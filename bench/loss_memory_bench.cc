// Memory and time of linear_distill and linear_cross_entropy against the textbook ATen expressions
// (both logits whole, one autograd graph), forward and backward. Peak bytes are those of LibTorch's
// allocator; on a CPU times are CPU seconds of the process, the minimum of the repetitions. The two
// sides alternate, so that a busy machine disturbs both.
//   loss_memory_bench [--tokens 4096] [--vocab 32000] [--width 256] [--teacher_width 512]
//   loss_memory_bench --device cuda --dtype bfloat16 --width 4096 --teacher_width 4096
//       --vocab 128256: on a device, whose allocator's peak and whose time are measured
// OMP_NUM_THREADS sets the threads. Exits 1 if a peak is above 15 % (on a device, where chunks are
// larger, 75 %) or the losses disagree.
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
#include <c10/core/CachingDeviceAllocator.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "parallel/world.h"
#include "recipes/losses/distill_shares.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/losses/linear_distill.h"
#include "tests/losses/peak_allocation.h"

namespace {

using namespace retort::losses;

struct Options {
  std::string device = "cpu";
  std::string dtype = "float32";
  int64_t tokens = 4096;
  int64_t vocab = 32000;
  int64_t width = 256;
  int64_t teacher_width = 512;
  int64_t repetitions = 3;
  int64_t chunk_tokens = 0;
};

void read(CLI::App& app, Options& o) {
  app.add_option("--device", o.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--dtype", o.dtype)->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--chunk_tokens", o.chunk_tokens, "rows of a chunk of ours; 0: its default");
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, int64_t*>>{{"--tokens", &o.tokens},
                                                     {"--vocab", &o.vocab},
                                                     {"--width", &o.width},
                                                     {"--teacher_width", &o.teacher_width},
                                                     {"--repetitions", &o.repetitions}})
    app.add_option(name, *value)->check(CLI::PositiveNumber)->capture_default_str();
}

struct Inputs {
  at::Tensor hidden, weight, targets, teacher_hidden, teacher_weight;
};
using Loss = std::function<at::Tensor(const Inputs&)>;

// Of this process's threads on a CPU; by the clock on a device, once `last` is there.
double seconds_at(const at::Tensor& last) {
  if (!last.is_cpu()) {
    last.flatten().narrow(0, 0, 1).cpu();
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// What tensors take at most while it lives, beyond those that there are when it is made.
class Meter {
 public:
  explicit Meter(at::Device device) : device_(device) {
    if (device.is_cpu()) return;
    allocator().resetPeakStats(device.index());
    before_ = held().current;
  }

  int64_t peak_bytes() const {
    return device_.is_cpu() ? host_.peak_bytes() : held().peak - before_;
  }

 private:
  static c10::DeviceAllocator& allocator() { return *c10::getDeviceAllocator(c10::kCUDA); }
  c10::CachingAllocator::Stat held() const {
    return allocator().getDeviceStats(device_.index()).allocated_bytes[0];
  }

  at::Device device_;
  PeakAllocation host_;
  int64_t before_ = 0;
};

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
  const Meter meter(inputs.hidden.device());
  const double start = seconds_at(fresh.weight.detach());
  const at::Tensor value = loss(fresh);
  value.backward();
  best.seconds = std::min(best.seconds, seconds_at(fresh.weight.grad()) - start);
  best.peak_bytes = meter.peak_bytes();
  best.loss = value.item<double>();
  best.gradient_norm = fresh.weight.grad().to(at::kFloat).norm().item<double>();
}

// As they are computed elsewhere: in the dtype of the model, then float32.
at::Tensor logits_of(const at::Tensor& hidden, const at::Tensor& weight) {
  return at::mm(hidden, weight.t()).to(at::kFloat);
}

at::Tensor nll(const at::Tensor& logits, const at::Tensor& targets) {
  return at::nll_loss(at::log_softmax(logits, -1), targets, {}, at::Reduction::Sum);
}

at::Tensor textbook(const Inputs& x, DivergenceType type, double kd_ratio) {
  const at::Tensor logits = logits_of(x.hidden, x.weight);
  const at::Tensor lp = at::log_softmax(logits, -1);
  const at::Tensor lq = at::log_softmax(logits_of(x.teacher_hidden, x.teacher_weight), -1);
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
  const at::Tensor lq = at::log_softmax(logits_of(x.teacher_hidden, x.teacher_weight), -1);
  const auto [logps, ids] = at::topk(lq, k, -1);
  return {ids.to(at::kInt), logps, lq.scatter(1, ids, -INFINITY).logsumexp(-1)};
}

// The K + 1 categories (the teacher's best tokens and all others in one) from the student's whole
// log-softmax.
at::Tensor textbook_top_k(const Inputs& x, const TeacherTopK& top) {
  const at::Tensor lp = at::log_softmax(logits_of(x.hidden, x.weight), -1);
  const at::Tensor ids = top.ids.to(at::kLong);
  const at::Tensor coarse_p =
      at::cat({lp.gather(1, ids), lp.scatter(1, ids, -INFINITY).logsumexp(-1, true)}, 1);
  const at::Tensor coarse_q = at::cat({top.logps, top.log_tail.unsqueeze(1)}, 1);
  return (coarse_q.exp() * (coarse_q - coarse_p)).sum();
}

// The comparisons of one kind of inputs.
struct Table {
  const Inputs& inputs;
  int64_t repetitions;
  double most_difference;  // of losses and gradients, relative

  bool compare(const char* name, const Loss& ours, const Loss& theirs,
               std::optional<double> most_memory = std::nullopt) const;
};

bool Table::compare(const char* name, const Loss& ours, const Loss& theirs,
                    std::optional<double> most_memory) const {
  Measured a, b;
  for (int64_t i = 0; i < repetitions; ++i) {
    measure(inputs, ours, a);
    measure(inputs, theirs, b);
  }
  const double memory = static_cast<double>(a.peak_bytes) / static_cast<double>(b.peak_bytes);
  const double off = std::abs(a.loss - b.loss) / std::abs(b.loss);
  const double gradient_off = std::abs(a.gradient_norm - b.gradient_norm) / b.gradient_norm;
  std::printf("%-28s %9.1f %11.1f %7.3f %9.4f %11.4f %7.2f   %.1e %.1e\n", name,
              a.peak_bytes / 1048576.0, b.peak_bytes / 1048576.0, memory, a.seconds, b.seconds,
              a.seconds / b.seconds, off, gradient_off);
  std::fflush(stdout);
  const double most = most_memory.value_or(inputs.hidden.is_cpu() ? 0.15 : 0.75);
  return memory <= most && off < most_difference && gradient_off < most_difference;
}

// Weights of a scale that gives logits of about 2.
Inputs random_inputs(const Options& o, at::Device device) {
  const at::ScalarType dtype = retort::models::parse_dtype(o.dtype);
  const at::TensorOptions floats = at::TensorOptions().device(device);
  const auto rows = [&](int64_t count, int64_t width) {
    return at::randn({count, width}, floats).to(dtype);
  };
  const auto head = [&](int64_t width) {
    return (at::randn({o.vocab, width}, floats) * (2 / std::sqrt(static_cast<double>(width))))
        .to(dtype);
  };
  at::manual_seed(1);
  Inputs x;
  x.hidden = rows(o.tokens, o.width);
  x.weight = head(o.width);
  x.targets = at::randint(o.vocab, {o.tokens}, floats.dtype(at::kLong));
  x.teacher_hidden = rows(o.tokens, o.teacher_width);
  x.teacher_weight = head(o.teacher_width);
  return x;
}

// Two teachers of all rows in one pass, beside a call for each.
bool compare_two_teachers(const Table& table, int64_t chunk) {
  return table.compare(
      "two teachers, hidden",
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
      /*most_memory=*/2);
}

int run(const Options& o) {
  // One rank, on the CPU or on a device.
  const bool cuda = o.device == "cuda";
  retort::parallel::Layout layout;
  if (cuda) layout.device = retort::parallel::Device::kCuda;
  const retort::parallel::World world(
      {.role = "student",
       .layout = layout,
       .device_module = cuda ? retort::parallel::DeviceModule::load() : nullptr});
  const Inputs x = random_inputs(o, world.device());
  const Table table{x, o.repetitions, o.dtype == "float32" ? 1e-4 : 1e-2};
  const int64_t chunk = o.chunk_tokens;
  std::printf("tokens %ld, vocab %ld, widths %ld / %ld, %s on %s, %d threads\n", o.tokens, o.vocab,
              o.width, o.teacher_width, o.dtype.c_str(), world.device().str().c_str(),
              at::get_num_threads());
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
  bool ok = table.compare("forward_kl, hidden", distill(1, T::kForwardKl), book(1, T::kForwardKl));
  ok &= table.compare("forward_kl + ce, hidden", distill(0.5, T::kForwardKl),
                      book(0.5, T::kForwardKl));
  ok &= table.compare("jsd, hidden", distill(1, T::kJsd), book(1, T::kJsd));

  // From the teacher's best 64 tokens, and without a teacher.
  const TeacherTopK top = top_k_of(x, 64);
  ok &= table.compare(
      "forward_kl, top-64 bucket",
      [&](const Inputs& in) {
        return linear_distill(in.hidden, in.weight, {}, in.targets, top, {.chunk_tokens = chunk})
            .loss_sum;
      },
      [&](const Inputs& in) { return textbook_top_k(in, top); });
  ok &= table.compare(
      "cross-entropy",
      [&](const Inputs& in) {
        return linear_cross_entropy(in.hidden, in.weight, {}, in.targets, chunk).loss_sum;
      },
      [](const Inputs& in) { return nll(logits_of(in.hidden, in.weight), in.targets); });

  ok &= compare_two_teachers(table, chunk);
  return ok ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Memory and time of losses from hidden states beside the textbook's");
  read(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(options);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}
