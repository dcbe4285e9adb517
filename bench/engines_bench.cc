// What it costs a client to ask other engines rather than a teacher of ours: bytes, time of the CPU
// and of the clock a position, of given tokens alone (a reference) and of the 64 most probable ones
// (a teacher). Each server is a process of its own on this host, on one small model with a
// vocabulary of 150,000, and gets the same sequences one after the other.
//
//   engines_bench [sequences]     llama.cpp: RETORT_ENGINES_PYTHON; Triton: RETORT_TRITON_PYTHON
//
// vLLM is not there: a process of ours writes answers in the form that vLLM 0.32.0 was recorded
// with (tests/engines/recorded), which the real adapter reads; its wall time is not vLLM's.
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>

#include "base/sizes.h"
#include "bench/engines/fake_vllm.h"
#include "engines/contract/engine.h"
#include "engines/contract/options.h"
#include "engines/make_engine.h"
#include "models/loaded_model.h"
#include "models/ops/packed.h"
#include "roles/serving_loop.h"
#include "roles/teacher/client.h"
#include "roles/teacher/server.h"
#include "rpc/agent.h"
#include "tests/support/command.h"
#include "tests/support/process.h"

// Every byte that HTTP sends and receives in this process passes here. (RPC counts its own: most of
// it does not pass a socket.)
namespace {
std::atomic<uint64_t> socket_bytes_out = 0, socket_bytes_in = 0;

ssize_t counted(ssize_t bytes, std::atomic<uint64_t>& counter) {
  if (bytes > 0) counter += static_cast<uint64_t>(bytes);
  return bytes;
}
}  // namespace

extern "C" {
ssize_t send(int fd, const void* data, size_t size, int flags) {
  return counted(syscall(SYS_sendto, fd, data, size, flags, nullptr, 0), socket_bytes_out);
}
ssize_t recv(int fd, void* data, size_t size, int flags) {
  return counted(syscall(SYS_recvfrom, fd, data, size, flags, nullptr, nullptr), socket_bytes_in);
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return counted(syscall(SYS_sendmsg, fd, message, flags), socket_bytes_out);
}
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  return counted(syscall(SYS_recvmsg, fd, message, flags), socket_bytes_in);
}
}

namespace {

using namespace retort;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kVocab = 150'000;
constexpr int64_t kTopK = 64;
constexpr const char* kSecret = "bench";
const std::vector<size_t> kLengths{64, 256};

Deadline soon() { return Deadline::after(std::chrono::minutes(10)); }

fs::path source_folder() { return fs::path(RETORT_BENCH_FOLDER).parent_path(); }

void retort_command(std::vector<std::string> arguments) {
  const fs::path here = fs::read_symlink("/proc/self/exe").parent_path();
  arguments.insert(arguments.begin(), here.parent_path() / "bin/retort");
  const test::CommandResult result = test::Command(arguments).wait();
  if (result.exit_code != 0) throw Error(ErrorCode::kUnavailable, result.output);
}

// A Qwen3 of one layer; most of its ids have no text.
fs::path make_model(const fs::path& folder) {
  const std::string data = folder / "data.jsonl", tokenizer = folder / "tokenizer";
  const fs::path model = folder / "model";
  retort_command({"data", "arithmetic", "--count", "300", "--output", data});
  retort_command(
      {"tokenizer", "train", "--data", data, "--vocab-size", "400", "--output", tokenizer});
  retort_command({"model", "init", "--arch", "qwen3", "--tokenizer", tokenizer, "--vocab-size",
                  std::to_string(kVocab), "--hidden-size", "64", "--num-hidden-layers", "1",
                  "--num-attention-heads", "2", "--initializer-range", "0.1", "--output", model});
  retort_command({"model", "export", model, "--format", "gguf", "--output", folder / "m.gguf"});
  return model;
}

std::vector<int32_t> sequence(size_t length, uint64_t seed) {
  std::vector<int32_t> ids(length);
  uint64_t state = seed * 7919 + 1;
  for (int32_t& id : ids) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    id = static_cast<int32_t>((state >> 33) % kVocab);
  }
  return ids;
}

// Of all threads of this process.
double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Bytes {
  uint64_t out = 0, in = 0;
};

// Of one position.
struct Cost {
  double out = 0, in = 0, cpu_us = 0, wall_us = 0;
};

// A server and what asks it. `ask`: every position of a sequence but the last, top_k 0: given.
struct Contestant {
  std::string name;
  std::function<void(const std::vector<int32_t>& ids, int64_t top_k)> ask;
  std::function<Bytes()> bytes;
};

Cost cost(const Contestant& contestant, size_t length, int64_t top_k, size_t num_sequences) {
  contestant.ask(sequence(length, 99), top_k);  // connections, first pages
  const Bytes before = contestant.bytes();
  const double cpu = cpu_seconds();
  const auto start = Clock::now();
  for (size_t i = 0; i < num_sequences; ++i)
    contestant.ask(sequence(length, i), top_k);

  const double wall = std::chrono::duration<double>(Clock::now() - start).count();
  const double used = cpu_seconds() - cpu;
  const Bytes after = contestant.bytes();
  const auto positions = static_cast<double>(num_sequences * (length - 1));
  return {.out = static_cast<double>(after.out - before.out) / positions,
          .in = static_cast<double>(after.in - before.in) / positions,
          .cpu_us = used * 1e6 / positions,
          .wall_us = wall * 1e6 / positions};
}

void report(const Contestant& contestant, size_t num_sequences) {
  for (const int64_t top_k : {int64_t{0}, kTopK})
    for (const size_t length : kLengths) {
      const Cost each = cost(contestant, length, top_k, num_sequences);
      std::printf("%-20s %-7s %7zu %11.1f %11.1f %11.2f %11.1f\n", contestant.name.c_str(),
                  top_k == 0 ? "given" : "top-64", length, each.out, each.in, each.cpu_us,
                  each.wall_us);
      std::fflush(stdout);
    }
}

// ---- engines of others --------------------------------------------------------------------------

Contestant contestant_of(const std::string& name, engines::Engine& engine) {
  const auto ask = [&engine](const std::vector<int32_t>& ids, int64_t top_k) {
    engines::ScoreRequest request{.token_ids = ids, .top_k = top_k};
    for (size_t p = 0; p + 1 < ids.size(); ++p)
      request.positions.push_back(static_cast<int32_t>(p));
    const engines::Scored scored = engine.score(std::move(request), soon()).get();
    RETORT_CHECK(scored.given.size() + 1 == ids.size()) << "an answer of another size";
  };
  const auto bytes = [] { return Bytes{.out = socket_bytes_out, .in = socket_bytes_in}; };
  return {.name = name, .ask = ask, .bytes = bytes};
}

void report_engine(const std::string& name, engines::EngineKind kind, test::ChildProcess server,
                   size_t num_sequences) {
  const engines::ExternalOptions options{.engine = kind};
  engines::ExternalOptions with_name = options;
  if (kind == engines::EngineKind::kKserve) with_name.served_model = "small";
  const auto engine = engines::make_engine(with_name, server.read_line(soon()), "");
  engine->state(soon()).get();
  report(contestant_of(name, *engine), num_sequences);
}

// A script of tests/engines with the Python that `variable` names.
void report_script(const std::string& name, engines::EngineKind kind, const char* variable,
                   const std::string& script, std::vector<std::string> arguments,
                   size_t num_sequences) {
  const char* python = std::getenv(variable);
  if (python == nullptr) {
    std::printf("%-20s not measured: %s is not set\n", name.c_str(), variable);
    return;
  }
  arguments.insert(arguments.begin(), source_folder() / "tests/engines" / script);
  report_engine(name, kind,
                test::ChildProcess::spawn({.args = std::move(arguments), .program = python}),
                num_sequences);
}

// ---- a teacher of ours --------------------------------------------------------------------------

int run_teacher(const fs::path& model) {
  models::LoadedModel loaded = models::load_model(model, "float32");
  roles::Teacher teacher("teacher/0", std::move(loaded.decoder), std::move(loaded.tokenizer));
  auto queue = std::make_shared<rpc::HandlerQueue>(64);
  rpc::Agent agent({.name = "teacher/0", .secret = kSecret});
  teacher.serve(agent, queue);
  test::say(agent.address());
  roles::run_serving_loop(
      *queue, [] { return false; }, {}, [&] { return teacher.work(); });
  return 0;
}

test::ChildProcess this_program(std::vector<std::string> arguments) {
  return test::ChildProcess::spawn({.args = std::move(arguments), .program = "/proc/self/exe"});
}

void report_teacher(const fs::path& model, size_t num_sequences) {
  test::ChildProcess process = this_program({"--teacher", model});
  rpc::Agent agent({.name = "student/0", .secret = kSecret});
  agent.connect("teacher/0", process.read_line(soon()), soon());
  const auto client_of = [&](roles::PayloadSpec spec) {
    return roles::TeacherClient(
        agent,
        {.role = "teacher",
         .replicas = {roles::TeacherReplica{.leader = "teacher/0", .holders = {}}},
         .spec = spec,
         .student_vocab_rows = kVocab},
        models::Tokenizer::load(model));
  };
  roles::TeacherClient given = client_of({.kind = roles::PayloadKind::kTargetLogProbs});
  roles::TeacherClient top_k = client_of({.kind = roles::PayloadKind::kTopK, .top_k = kTopK});

  uint64_t request_id = 0;
  const auto ask = [&](const std::vector<int32_t>& ids, int64_t k) {
    roles::TeacherClient& client = k == 0 ? given : top_k;
    const at::Tensor positions = at::arange(std::ssize(ids) - 1, at::kLong);
    client.receive(client.send(++request_id, 0, models::pack_rows({ids}), positions));
  };
  const auto bytes = [&] {
    const rpc::PeerStats stats = agent.stats("teacher/0");
    return Bytes{.out = stats.bytes_sent, .in = stats.bytes_received};
  };
  report({.name = "teacher of ours", .ask = ask, .bytes = bytes}, num_sequences);
  agent.close();
  agent.join();
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--teacher" || first == "--vllm") {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return first == "--vllm" ? bench::run_fake_vllm(kVocab) : run_teacher(argv[2]);
  }
  const size_t num_sequences = first.empty() ? 4 : static_cast<size_t>(std::stoul(first));

  const fs::path folder =
      fs::temp_directory_path() / ("retort-bench-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const fs::path model = make_model(folder);
  std::printf("%zu sequences one after the other, vocabulary %lld; of one position:\n",
              num_sequences, static_cast<long long>(kVocab));
  std::printf("%-20s %-7s %7s %11s %11s %11s %11s\n", "", "asked", "tokens", "bytes out",
              "bytes in", "CPU us", "wall us");
  report_teacher(model, num_sequences);
  report_script("KServe, Triton", engines::EngineKind::kKserve, "RETORT_TRITON_PYTHON",
                "triton_server.py", {model}, num_sequences);
  report_engine("vLLM, as recorded", engines::EngineKind::kVllm, this_program({"--vllm"}),
                num_sequences);
  report_script("llama.cpp", engines::EngineKind::kLlamacpp, "RETORT_ENGINES_PYTHON",
                "llama_server.py", {folder / "m.gguf", "--slots", "1", "--context", "512"},
                num_sequences);
  fs::remove_all(folder);
  return 0;
}
