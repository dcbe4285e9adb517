// Does prefetch hide the teacher? For each payload three things are timed in one run, with one
// thread and one core for each of two processes:
//   teacher alone   the teacher process answers the same requests, nobody computes meanwhile
//   student alone   the same optimizer step fed from payloads that are already in memory
//   together        the distillation step with two requests in flight
// The teacher's depth is chosen so that the first two are close. Prints medians of 30 steps and the
// ratio together / max(teacher alone, student alone), which is 1 where the prefetch hides all.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/sizes.h"
#include "models/decoder/decoder.h"
#include "parallel/world.h"
#include "recipes/losses/linear_distill.h"
#include "roles/serving_loop.h"
#include "roles/teacher/client.h"
#include "roles/teacher/server.h"
#include "roles/trainer/trainer.h"
#include "tests/support/process.h"

namespace {

using namespace retort;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr int64_t kVocab = 4096;
constexpr int64_t kSequences = 8;
constexpr int64_t kLength = 96;
constexpr int kSteps = 30;
constexpr int kWarmup = 3;
constexpr const char* kSecret = "bench";

void pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0)
    std::fprintf(stderr, "cannot pin to cpu %d\n", cpu);
  at::set_num_threads(1);
}

models::Decoder make_model(int64_t hidden, int64_t layers) {
  models::ModelConfig config = models::parse_model_config(
      "{\"model_type\": \"llama\", \"vocab_size\": " + std::to_string(kVocab) +
          ", \"hidden_size\": " + std::to_string(hidden) + ", \"intermediate_size\": " +
          std::to_string(hidden * 3) + ", \"num_hidden_layers\": " + std::to_string(layers) +
          ", \"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"max_position_embeddings\": "
          "512, \"hidden_act\": \"silu\","
          " \"rms_norm_eps\": 1e-6, \"tie_word_embeddings\": true}",
      "bench");
  return models::Decoder::random(config, 1, at::kFloat);
}

// A word-level tokenizer of kVocab entries, of which only the fingerprint is used.
void write_tokenizer(const fs::path& folder) {
  std::ofstream file(folder / "tokenizer.json");
  file
      << R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,)"
      << R"("pre_tokenizer":{"type":"WhitespaceSplit"},"post_processor":null,"decoder":null,)"
      << R"("model":{"type":"WordLevel","vocab":{)";
  for (int64_t i = 0; i < kVocab; ++i)
    file << (i ? "," : "") << "\"w" << i << "\":" << i;
  file << R"(},"unk_token":"w0"}})";
}

int run_teacher(const fs::path& folder, int64_t layers) {
  pin_to(1);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  roles::Teacher teacher("teacher/0", make_model(256, layers), models::Tokenizer::load(folder));
  auto queue = std::make_shared<rpc::HandlerQueue>(64);
  rpc::Agent agent({.name = "teacher/0", .secret = kSecret});
  teacher.serve(agent, queue);
  std::printf("%s\n", agent.address().c_str());
  std::fflush(stdout);
  roles::run_serving_loop(
      *queue, [] { return false; }, {}, [&] { return teacher.work(); });
  return 0;
}

// A teacher process and this process's connection to it.
class TeacherProcess {
 public:
  TeacherProcess(const fs::path& folder, int64_t layers, roles::PayloadSpec spec)
      : process_(test::ChildProcess::spawn(
            {.role = {},
             .args = {"--teacher", folder.string(), std::to_string(layers)},
             .env = {},
             .program = "/proc/self/exe"})),
        agent_({.name = "student/0", .secret = kSecret}) {
    const std::string address = process_.read_line(Deadline::after(std::chrono::minutes(5)));
    agent_.connect("teacher/0", address, Deadline::after(seconds(30)));
    client_ = std::make_unique<roles::TeacherClient>(
        agent_,
        roles::TeacherClient::Options{
            .role = "teacher",
            .replicas = {roles::TeacherReplica{.leader = "teacher/0", .holders = {}}},
            .spec = spec,
            .student_vocab_rows = kVocab},
        models::Tokenizer::load(folder));
  }
  ~TeacherProcess() {
    client_.reset();
    agent_.close();
    agent_.join();
  }
  roles::TeacherClient& client() { return *client_; }
  uint64_t bytes_received() const { return agent_.stats("teacher/0").bytes_received; }

 private:
  test::ChildProcess process_;  // first: it ends when the agent is closed
  rpc::Agent agent_;
  std::unique_ptr<roles::TeacherClient> client_;
};

struct Batch {
  models::PackedTokens tokens;
  at::Tensor positions, targets;
};

Batch make_batch(int step) {
  std::vector<std::vector<int32_t>> rows(kSequences);
  std::vector<int64_t> positions, targets;
  uint64_t state = static_cast<uint64_t>(step) * 7919 + 1;
  for (int64_t s = 0; s < kSequences; ++s) {
    for (int64_t i = 0; i < kLength; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      rows[to_size(s)].push_back(static_cast<int32_t>((state >> 33) % kVocab));
      if (i > 0) {
        positions.push_back(s * kLength + i - 1);
        targets.push_back(rows[to_size(s)].back());
      }
    }
  }
  return {models::pack_rows(rows), at::tensor(positions, at::kLong),
          at::tensor(targets, at::kLong)};
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(fs::path folder, roles::PayloadSpec spec) : folder_(std::move(folder)), spec_(spec) {
    for (int i = 0; i < kSteps + kWarmup; ++i)
      batches_.push_back(make_batch(i));
    world_ = std::make_unique<parallel::World>(parallel::World::Options{.role = "student"});
    trainer_ = std::make_unique<roles::Trainer>(
        make_model(192, 4), *world_,
        roles::Trainer::Options{.schedule = {.learning_rate = 1e-4, .max_steps = 1000000}});
  }

  // Seconds between answers with two requests in flight; keeps the payloads when asked.
  double teacher_alone(TeacherProcess& teacher, int steps, std::vector<roles::Payload>* keep) {
    std::deque<roles::PendingPayload> flight;
    std::vector<double> times;
    int sent = 0;
    auto last = Clock::now();
    for (int i = 0; i < steps; ++i) {
      while (sent < steps && sent <= i + 2)
        flight.push_back(send(teacher, sent++));
      roles::Payload payload = teacher.client().receive(std::move(flight.front()));
      flight.pop_front();
      const auto now = Clock::now();
      if (i >= kWarmup) times.push_back(std::chrono::duration<double>(now - last).count());
      last = now;
      if (keep) keep->push_back(std::move(payload));
    }
    return median(times);
  }

  double student_alone(TeacherProcess& teacher, const std::vector<roles::Payload>& payloads) {
    std::vector<double> times;
    for (int i = 0; i < kSteps + kWarmup; ++i) {
      const auto start = Clock::now();
      student_step(i, teacher, [&] { return payloads[to_size(i)]; });
      if (i >= kWarmup)
        times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    return median(times);
  }

  double together(TeacherProcess& teacher) {
    std::deque<roles::PendingPayload> flight;
    std::vector<double> times;
    int sent = 0;
    for (int i = 0; i < kSteps + kWarmup; ++i) {
      const auto start = Clock::now();
      while (sent < kSteps + kWarmup && sent <= i + 2)
        flight.push_back(send(teacher, sent++));
      student_step(i, teacher, [&] {
        roles::Payload payload = teacher.client().receive(std::move(flight.front()));
        flight.pop_front();
        return payload;
      });
      if (i >= kWarmup)
        times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    return median(times);
  }

  // The depth at which the teacher takes as long as the student, from two measured depths.
  int64_t balanced_layers() {
    double student = 0;
    double shallow = 0;
    {
      TeacherProcess teacher(folder_, 2, spec_);
      std::vector<roles::Payload> payloads;
      shallow = teacher_alone(teacher, kSteps + kWarmup, &payloads);
      student = student_alone(teacher, payloads);
    }
    double deep = 0;
    {
      TeacherProcess teacher(folder_, 8, spec_);
      deep = teacher_alone(teacher, kWarmup + 10, nullptr);
    }

    const double layer = (deep - shallow) / 6;  // seconds that one layer adds
    return std::clamp<int64_t>(static_cast<int64_t>(std::llround(2 + (student - shallow) / layer)),
                               1, 64);
  }

  void report(const char* name) {
    const int64_t layers = balanced_layers();
    TeacherProcess teacher(folder_, layers, spec_);
    std::vector<roles::Payload> payloads;
    const uint64_t before = teacher.bytes_received();
    const double t = teacher_alone(teacher, kSteps + kWarmup, &payloads);
    const double bytes = static_cast<double>(teacher.bytes_received() - before);
    const double rows = static_cast<double>((kSteps + kWarmup) * kSequences * (kLength - 1));

    const double s = student_alone(teacher, payloads);
    const double both = together(teacher);

    // What the messages have beyond the payload's own formula is their headers.
    const int64_t formula = roles::payload_bytes_per_row(teacher.client().spec(), 256, kVocab, 4);
    std::printf("%-14s %6lld %12.2f %12.2f %9.2f %12.2f %9.3f %12lld %12.2f\n", name,
                static_cast<long long>(layers), t * 1e3, s * 1e3, std::max(t, s) / std::min(t, s),
                both * 1e3, both / std::max(t, s), static_cast<long long>(formula),
                (bytes - rows * static_cast<double>(formula)) / (kSteps + kWarmup));
    std::fflush(stdout);
  }

 private:
  roles::PendingPayload send(TeacherProcess& teacher, int step) {
    const Batch& batch = batches_[to_size(step)];
    return teacher.client().send(static_cast<uint64_t>(step), step, batch.tokens, batch.positions);
  }

  template <class Receive>
  void student_step(int step, TeacherProcess& teacher, Receive receive) {
    // The forward pass overlaps with the teacher; the payload is asked for behind it.
    const Batch& batch = batches_[to_size(step)];
    trainer_->begin_step();
    const at::Tensor rows =
        trainer_->decoder().hidden(batch.tokens).index_select(0, batch.positions);
    const roles::Payload payload = receive();

    losses::TeacherSignal signal =
        losses::TeacherHidden{payload.hidden, teacher.client().head_weight(), {}};
    if (spec_.kind == roles::PayloadKind::kTopK)
      signal = losses::TeacherTopK{payload.ids, payload.logps, payload.log_tail};
    if (spec_.kind == roles::PayloadKind::kFull) signal = losses::TeacherFull{payload.logps};

    losses::DivergenceOptions options;
    options.common_vocab = teacher.client().spec().common_vocab;
    const auto loss = losses::linear_distill(rows, trainer_->decoder().head_weight(), {},
                                             batch.targets, signal, options);
    trainer_->backward(loss.loss_sum, true);
    trainer_->finish_step(static_cast<double>(loss.count));
  }

  fs::path folder_;
  roles::PayloadSpec spec_;
  std::vector<Batch> batches_;
  std::unique_ptr<parallel::World> world_;
  std::unique_ptr<roles::Trainer> trainer_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--teacher")
    return run_teacher(argv[2], std::atoll(argv[3]));
  pin_to(0);
  const fs::path folder =
      fs::temp_directory_path() / ("retort-bench-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  write_tokenizer(folder);
  std::printf(
      "distillation step, one thread and one core for each process, %lld tokens a step, vocabulary "
      "%lld, median of %d steps\n",
      static_cast<long long>(kSequences * kLength), static_cast<long long>(kVocab), kSteps);
  std::printf("%-14s %6s %12s %12s %9s %12s %9s %12s %12s\n", "payload", "layers", "teacher ms",
              "student ms", "balance", "together ms", "ratio", "bytes/row", "header B/msg");
  Bench(folder, {.kind = roles::PayloadKind::kHiddenStates}).report("hidden_states");
  Bench(folder, {.kind = roles::PayloadKind::kTopK, .top_k = 64}).report("topk 64");
  Bench(folder, {.kind = roles::PayloadKind::kTopK, .top_k = 64, .bfloat16 = true})
      .report("topk 64 bf16");
  Bench(folder, {.kind = roles::PayloadKind::kFull}).report("full");
  fs::remove_all(folder);
  return 0;
}
