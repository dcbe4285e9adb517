#include "tests/roles/teacher_layouts_scenarios.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "models/checkpoint/checkpoint.h"
#include "roles/serving_loop.h"
#include "roles/teacher/client.h"
#include "roles/teacher/server.h"
#include "tests/parallel/rank_process.h"
#include "tests/roles/ask_teacher.h"
#include "tests/support/source_folder.h"

namespace retort::roles {
namespace {

using namespace std::chrono_literals;
using parallel::Layout;
using parallel::StoreClient;
using parallel::World;
using parallel::testing::error_of;
using parallel::testing::require;

constexpr double kTolerance = 1e-6;

std::string golden_folder() {
  return (test::source_folder() / "tests/recipes/goldens/teacher").string();
}

// "golden": 64 rows, all of them known to the tokenizer; "padded": 67 rows, which no rank count
// divides.
models::Decoder make_decoder(const std::string& model, const models::Placement& placement) {
  if (model == "golden") return models::load_decoder(golden_folder(), at::kFloat, placement);
  models::ModelConfig config = models::load_decoder(golden_folder(), at::kFloat).config();
  config.vocab_size = 67;
  return models::Decoder::random(config, 7, at::kFloat, placement);
}

StoreClient store_of(const World::Options& options, const char* prefix) {
  return {options.store_host, options.store_port, prefix, 60s};
}
std::string wait_for(StoreClient& store, const std::string& key) {
  return store.get(key, Deadline::after(60s));
}

Layout parse_layout(const std::string& text) {
  Layout layout;
  std::istringstream(text) >> layout.tp >> layout.pp >> layout.dp;
  return layout;
}

struct Wanted {
  models::PackedTokens tokens;
  at::Tensor positions;
};

// Requests of different sizes; the last has fewer rows than ranks.
Wanted wanted(uint64_t id) {
  const std::vector<std::vector<std::vector<int32_t>>> packs{
      {{1, 2, 3, 4, 9}, {5, 6, 7}}, {{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5}}, {{8, 9}}};
  Wanted wanted{.tokens = models::pack_rows(packs[id % packs.size()]), .positions = {}};
  std::vector<int64_t> rows;
  for (size_t s = 0; s + 1 < wanted.tokens.cu_seqlens.size(); ++s)
    for (int64_t i = wanted.tokens.cu_seqlens[s]; i + 1 < wanted.tokens.cu_seqlens[s + 1]; ++i)
      rows.push_back(i);
  wanted.positions = at::tensor(rows, at::kLong);
  return wanted;
}

// Ids that a student may name, distinct in a row.
at::Tensor named_ids(int64_t rows, int64_t k, int64_t vocab) {
  return (at::arange(rows).unsqueeze(1) * 7 + at::arange(k).unsqueeze(0) * 3).remainder(vocab);
}

void require_near(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  require(got.defined() == expected.defined(), what + " is there");
  if (!got.defined()) return;
  require(got.sizes() == expected.sizes() && got.scalar_type() == expected.scalar_type(),
          what + " has its shape and dtype");
  if (got.numel() == 0) return;
  const at::Tensor a = got.to(at::kDouble), b = expected.to(at::kDouble);
  const at::Tensor equal = a == b;  // infinities too
  const double tolerance = got.scalar_type() == at::kFloat ? kTolerance : 1e-2;
  const double error = at::where(equal, at::zeros_like(a), a - b).norm().item<double>();
  // Logarithms are differences of larger numbers: no element is smaller than 1 here.
  const double norm =
      at::where(equal.logical_and(b.isinf()), at::ones_like(b), b.abs().clamp_min(1))
          .norm()
          .item<double>();
  require(error <= tolerance * norm,
          what + " is that of one rank, not off by " + std::to_string(error / norm));
}

// Where a student rank meets a teacher role.
class Student {
 public:
  Student()
      : world(parallel::testing::child_world_options()),
        teacher_(store_of(world.options(), kTeacher)) {
    layout = parse_layout(wait_for(teacher_, "layout"));
    model = wait_for(teacher_, "model");
    for (int64_t dp = 0; dp < layout.dp; ++dp) {
      TeacherReplica replica{.leader = meet(rank_of(layout, {.tp = 0, .dp = dp, .pp = 0})),
                             .holders = {}};
      for (int64_t tp = 0; tp < layout.tp; ++tp)
        replica.holders.push_back(meet(rank_of(layout, {.tp = tp, .dp = dp, .pp = layout.pp - 1})));
      replicas.push_back(std::move(replica));
    }
  }
  TeacherClient client(const PayloadSpec& spec, int64_t vocab_rows,
                       std::chrono::milliseconds timeout = 60s) {
    return TeacherClient(agent,
                         {.role = "teacher",
                          .replicas = replicas,
                          .spec = spec,
                          .timeout = timeout,
                          .student_vocab_rows = vocab_rows,
                          .tp = &world.tp()},
                         models::Tokenizer::load(golden_folder()));
  }
  uint64_t bytes_received() const {
    uint64_t bytes = 0;
    for (const std::string& peer : agent.peers())
      bytes += agent.stats(peer).bytes_received;
    return bytes;
  }
  std::string say_and_wait(const std::string& word) {
    StoreClient run = store_of(world.options(), kRun);
    if (world.rank() == 0) run.set(word, "1");
    return wait_for(run, word + "/done");
  }

  World world;
  Layout layout;
  std::string model;
  rpc::Agent agent{{.name = "student/" + std::to_string(world.rank()), .secret = "s"}};
  std::vector<TeacherReplica> replicas;

 private:
  std::string meet(int64_t rank) {
    const std::string name = "teacher/" + std::to_string(rank);
    const auto peers = agent.peers();
    if (std::find(peers.begin(), peers.end(), name) == peers.end())
      agent.connect(name, wait_for(teacher_, "address/" + std::to_string(rank)),
                    Deadline::after(60s));
    return name;
  }
  StoreClient teacher_;
};

// What one answer of the ranks has to be: the whole model's, or of its columns this rank's `own`.
void require_same(const Payload& got, const Payload& expected, const PayloadSpec& spec, Range own) {
  const std::string name(enum_name(spec.kind));
  require_near(got.hidden, expected.hidden, name + " hidden");
  require(got.ids.defined() == expected.ids.defined() &&
              (!got.ids.defined() || at::equal(got.ids, expected.ids)),
          "ids are equal");
  require_near(got.log_tail, expected.log_tail, name + " log_tail");
  require_near(got.kappa, expected.kappa, name + " kappa");

  // Of the full vocabulary a rank has its columns alone.
  const int64_t width =
      expected.logps.defined() && expected.logps.dim() == 2 ? expected.logps.size(1) : 0;
  const Range columns =
      spec.kind == PayloadKind::kFull ? intersect(own, {0, width}) : Range{0, width};
  const at::Tensor logps =
      spec.kind == PayloadKind::kFull
          ? expected.logps.narrow(1, std::min(columns.begin, width), columns.size())
          : expected.logps;
  require_near(got.logps, logps, name + " logps");

  require(std::abs(got.masked_mass_sum - expected.masked_mass_sum) <
              1e-6 * std::max(1.0, expected.masked_mass_sum),
          name + " masked mass");
  require(got.label.num_rows == expected.label.num_rows && got.label.parts == 1,
          "the label is that of the whole");
}

// All requests are in flight before the first answer is taken. `whole`: one rank with all of the
// model.
void compare(Student& student, Teacher& whole, const PayloadSpec& spec, int64_t vocab_rows,
             uint64_t first_id) {
  TeacherClient client = student.client(spec, vocab_rows);
  const int64_t ranks = student.world.tp().size(), rank = student.world.tp().rank();
  const int64_t teacher_rows = client.info().vocab_rows;
  const Range own = shard_of(vocab_rows, ranks, rank);
  if (spec.kind == PayloadKind::kHiddenStates) {
    const int64_t end = own.size() > 0 && own.end == vocab_rows ? teacher_rows : own.end;
    const at::Tensor all = whole.head({0, teacher_rows}).weight;
    require(at::equal(client.head_weight(),
                      all.narrow(0, std::min(own.begin, end), end - std::min(own.begin, end))),
            "the head is this rank's rows");
  }

  // Three requests in flight, and what the whole model says to each of them.
  student.world.tp().barrier();
  const uint64_t before = student.bytes_received();
  std::vector<PendingPayload> pending;
  for (uint64_t id = first_id; id < first_id + 3; ++id) {
    const Wanted asked = wanted(id);
    pending.push_back(client.send(id, 1, asked.tokens, asked.positions));
  }
  const int64_t known =
      client.spec().common_vocab > 0 ? client.spec().common_vocab : client.info().vocab_rows;
  if (spec.names_ids()) {
    // As in a step, where the teacher is far ahead: no rank's ids overtake what is to be kept.
    for (PendingPayload& one : pending)
      if (one.kept.valid()) one.kept.get(Deadline::after(60s));
    student.world.tp().barrier();
    for (PendingPayload& one : pending)
      client.name_ids(one,
                      named_ids(one.request.positions.numel(), std::min(spec.top_k, known), known));
  }

  // Each answer, and the bytes that it may have cost.
  int64_t payload_bytes = 0;
  for (PendingPayload& one : pending) {
    ForwardRequest alone = one.request;
    alone.part = 0;
    alone.parts = 1;
    alone.columns.clear();
    Payload expected = ask_teacher(whole, alone);
    if (spec.support == Support::kStudent) expected.ids = alone.ids;  // not sent back
    require_same(client.receive(std::move(one)), expected, spec, own);
    const int64_t common =
        client.spec().common_vocab > 0 ? client.spec().common_vocab : teacher_rows;
    payload_bytes += expected.label.num_rows *
                     payload_bytes_per_row(client.spec(), client.info().hidden_size, common, 4);
  }

  const auto received = static_cast<int64_t>(student.bytes_received() - before);
  const int64_t all_received = student.world.tp().all_reduce(received);
  // Nothing but the payload, once, and envelopes.
  const int64_t envelopes = 3 * ranks * 1024 * (1 + student.layout.tp) * (spec.names_ids() ? 2 : 1);
  require(all_received >= payload_bytes && all_received <= payload_bytes + envelopes,
          "bytes received: " + std::to_string(all_received) + " of a payload of " +
              std::to_string(payload_bytes));
}

}  // namespace

void teacher_scenario() {
  // The rank's world, and of its replica its part of the model.
  World::Options options = parallel::testing::child_world_options();
  options.role = "teacher";
  World world(options);
  StoreClient store = store_of(options, kTeacher);
  const bool alone = options.layout.tp * options.layout.pp == 1;
  const std::string leader =
      "teacher/" + std::to_string(alone ? options.rank : world.mp().ranks().front());
  Teacher teacher(leader,
                  make_decoder(wait_for(store, "model"),
                               alone ? models::Placement{} : models::Placement::of(world)),
                  models::Tokenizer::load(golden_folder()),
                  {.world = alone ? nullptr : &world, .folder = golden_folder()});

  // It serves, and says where when the others of its replica do too.
  auto queue = std::make_shared<rpc::HandlerQueue>(1024);
  rpc::Agent agent({.name = "teacher/" + std::to_string(options.rank), .secret = "s"});
  teacher.serve(agent, queue);
  world.mp().barrier();
  if (teacher.answers()) store.set("address/" + std::to_string(options.rank), agent.address());

  // Until the student has what it wants; what fails is told by its code.
  try {
    if (teacher.leads()) {
      run_serving_loop(
          *queue, [&] { return store.contains("stop"); }, {}, [&] { return teacher.work(); });
      teacher.stop();
      store.set("forwards/" + std::to_string(options.rank), std::to_string(teacher.forwards()));
    } else {
      teacher.follow(*queue);
    }
  } catch (const Error& error) {
    store.set("failed/" + std::to_string(options.rank),
              std::string(to_string(error.code())) + ": " + error.what());
    throw;
  }
  store.set("kept/" + std::to_string(options.rank), std::to_string(teacher.store().kept_bytes()));
}

void student_scenario() {
  Student student;
  Teacher whole("whole", make_decoder(student.model, {}), models::Tokenizer::load(golden_folder()));
  uint64_t id = 0;
  // 61: some ids are masked, the last shard is shorter; 20: some ranks have none of the ids.
  for (const int64_t vocab_rows : {64, 61, 20})
    for (const PayloadSpec& spec : std::vector<PayloadSpec>{
             {.kind = PayloadKind::kHiddenStates},
             {.kind = PayloadKind::kTopK, .top_k = 5, .temperature = 0.7},
             {.kind = PayloadKind::kTopK, .top_k = 40},
             {.kind = PayloadKind::kTopK, .top_k = 9, .bfloat16 = true},
             {.kind = PayloadKind::kTopK,
             .top_k = 7,
             .temperature = 1.4,
             .support = Support::kStudent},
             {.kind = PayloadKind::kTopK, .top_k = 9, .bfloat16 = true, .support = Support::kUnion},
             {.kind = PayloadKind::kTopK, .top_k = 40, .support = Support::kUnion},
             {.kind = PayloadKind::kFull, .temperature = 2.0},
             {.kind = PayloadKind::kSampled,
             .temperature = 1.5,
             .num_samples = 9,
             .replacement = true,
             .seed = 5},
             {.kind = PayloadKind::kSampled, .num_samples = 7, .replacement = false, .seed = 6},
             // as many as there are, or more than a rank has
             {.kind = PayloadKind::kSampled, .num_samples = 64, .replacement = false, .seed = 7},
             {.kind = PayloadKind::kTargetLogProbs}}) {
      compare(student, whole, spec, vocab_rows, id);
      id += 3;
    }
  student.agent.close();
  student.agent.join();
}

// A bad request is refused on every rank, and the next one answered.
void refused_scenario() {
  Student student;
  const TeacherInfo info =
      student.agent.call(student.replicas[0].leader, kTeacherInfo, {64, true}).get();
  require(info.weights_fingerprint == models::weights_fingerprint(make_decoder(student.model, {})),
          "the fingerprint is that of the whole model");
  TeacherClient client = student.client({.kind = PayloadKind::kTargetLogProbs}, 64);
  Wanted bad = wanted(0);
  bad.positions = at::tensor({4}, at::kLong);  // the last of its sequence
  PendingPayload refused = client.send(1, 1, bad.tokens, bad.positions);
  Wanted good = wanted(1);
  PendingPayload answered = client.send(2, 1, good.tokens, good.positions);
  const Error error = error_of([&] { client.receive(std::move(refused)); });
  require(error.code() == ErrorCode::kInvalidArgument, error.what());
  require(client.receive(std::move(answered)).logps.size(0) == good.positions.numel(),
          "the next one is answered");
}

// The parent kills a rank of the first replica while answers are asked for.
void failover_scenario() {
  Student student;
  TeacherClient client = student.client({.kind = PayloadKind::kHiddenStates}, 64, 20s);
  Teacher whole("whole", make_decoder(student.model, {}), models::Tokenizer::load(golden_folder()));
  const auto ask = [&](uint64_t id) {
    return client.send(id, 1, wanted(id).tokens, wanted(id).positions);
  };
  const auto take = [&](PendingPayload pending) {
    ForwardRequest alone = pending.request;
    alone.part = 0;
    alone.parts = 1;
    const at::Tensor expected = ask_teacher(whole, alone).hidden;
    require_near(client.receive(std::move(pending)).hidden, expected, "hidden");
  };
  take(ask(0));
  take(ask(1));
  student.say_and_wait("kill");
  std::vector<PendingPayload> pending;
  for (uint64_t id = 2; id < 8; ++id)
    pending.push_back(ask(id));
  for (PendingPayload& one : pending)
    take(std::move(one));
}

// Of logits with many equal values: the lowest ids, on one rank and on several.
void ties_scenario() {
  World world(parallel::testing::child_world_options());
  constexpr int64_t kRows = 37, kVocab = 67, kHidden = 4;
  const auto small = [](at::IntArrayRef sizes, int64_t phase) {
    return ((at::arange(c10::multiply_integers(sizes), at::kLong) * 7 + phase).remainder(5) - 2)
        .view(sizes)
        .to(at::kFloat);
  };
  const at::Tensor hidden = small({kRows, kHidden}, 1), weight = small({kVocab, kHidden}, 3);
  const Range own = shard_of(kVocab, world.tp().size(), world.tp().rank());
  const parallel::VocabShard vocab{.group = &world.tp(), .begin = own.begin, .total = kVocab};
  for (const int64_t k : {1, 6, 30, 64}) {
    const PayloadSpec spec{.kind = PayloadKind::kTopK, .top_k = k, .common_vocab = 64};
    const Payload one = make_payload(hidden, weight, spec);
    const Payload several =
        make_payload(hidden, weight.narrow(0, own.begin, own.size()), spec, {}, vocab);
    const at::Tensor order = std::get<1>(at::sort(at::matmul(hidden, weight.t()).narrow(1, 0, 64),
                                                  /*stable=*/true, /*dim=*/1, /*descending=*/true));
    require(at::equal(one.ids.to(at::kLong), order.narrow(1, 0, k)),
            "one rank takes the lowest ids");
    require(at::equal(one.ids, several.ids), "several ranks take them too");
    require_near(several.logps, one.logps, "logps");
    require_near(several.log_tail, one.log_tail, "log_tail");
    require(std::abs(several.masked_mass_sum - one.masked_mass_sum) < 1e-6 * one.masked_mass_sum,
            "masked mass");
  }

  // Capped logits by their definition.
  constexpr double kCap = 3;
  const at::Tensor own_rows = weight.narrow(0, own.begin, own.size());
  const at::Tensor all = at::log_softmax(kCap * (at::matmul(hidden, weight.t()) / kCap).tanh(), 1);
  const PayloadSpec full{.kind = PayloadKind::kFull}, top{.kind = PayloadKind::kTopK, .top_k = 6};
  require_near(make_payload(hidden, weight, full, {}, {}, kCap).logps, all, "capped");
  require_near(make_payload(hidden, own_rows, full, {}, vocab, kCap).logps,
               all.narrow(1, own.begin, own.size()), "capped, by several ranks");
  require_near(make_payload(hidden, own_rows, top, {}, vocab, kCap).logps,
               std::get<0>(at::topk(all, 6, 1)), "the largest of them");
}

}  // namespace retort::roles
