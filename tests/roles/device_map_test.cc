// What roles exchange when a device map joins their devices: a teacher's answers and head, and
// pushed weights, from the stand-in device to the stand-in device over RPC, against the same
// through host memory. The host cannot touch that memory, and copies to the host are counted.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "roles/generator/client.h"
#include "roles/generator/weight_buckets.h"
#include "roles/generator/weight_checksum.h"
#include "roles/generator/weight_staging.h"
#include "roles/handler_thread.h"
#include "roles/serving_loop.h"
#include "roles/teacher/client.h"
#include "roles/teacher/server.h"
#include "tests/losses/stand_in_device.h"
#include "tests/rpc/stand_in_transfer.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::roles {
namespace {

using namespace std::chrono_literals;
using test::stand_in_device;

rpc::Agent::Options agent_options(const std::string& name, const std::string& peer_role,
                                  bool mapped) {
  rpc::Agent::Options options{.name = name, .secret = "s", .rpc = {}};
  if (mapped) options.rpc.device_maps[peer_role]["0"] = 0;
  options.devices = rpc::testing::stand_in_transfer();
  return options;
}

std::string golden_model() {
  return (test::source_folder() / "tests/recipes/goldens/teacher").string();
}

// A teacher whose model lies on the stand-in device, and a student that asks it.
class Exchange {
 public:
  Exchange(bool answers_on_device, bool mapped)
      : teacher_("teacher/0",
                 models::load_decoder(golden_model(), at::kFloat, {}, stand_in_device()),
                 models::Tokenizer::load(golden_model()), {.answers_on_device = answers_on_device}),
        server_(agent_options("teacher/0", "student", mapped)),
        agent_(agent_options("student/0", "teacher", mapped)),
        answers_on_device_(answers_on_device) {
    teacher_.serve(server_, queue_);
    serving_ = std::thread([this] {
      run_serving_loop(
          *queue_, [this] { return stop_.load(); }, [](int64_t) {},
          [this] { return teacher_.work(); });
      teacher_.stop();
    });
    agent_.connect("teacher/0", server_.address(), Deadline::after(30s));
  }
  ~Exchange() {
    stop_ = true;
    serving_.join();
  }

  TeacherClient client(PayloadKind kind) {
    const models::Tokenizer tokenizer = models::Tokenizer::load(golden_model());
    TeacherClient::Options options{.role = "teacher",
                                   .replicas = {{.leader = "teacher/0", .holders = {}}},
                                   .spec = {.kind = kind, .top_k = 5},
                                   .timeout = 30s,
                                   .student_vocab_rows = tokenizer.vocab_size()};
    if (answers_on_device_) options.device = stand_in_device();
    return {agent_, std::move(options), tokenizer};
  }
  Payload ask(TeacherClient& client) {
    const models::PackedTokens tokens = models::pack_rows({{3, 5, 7, 9}, {2, 4, 6, 8, 10, 12}});
    return client.receive(client.send(++requests_, 1, tokens, at::arange(3)));
  }

 private:
  Teacher teacher_;
  std::shared_ptr<rpc::HandlerQueue> queue_ = std::make_shared<rpc::HandlerQueue>(64);
  std::atomic<bool> stop_{false};
  std::thread serving_;
  rpc::Agent server_, agent_;  // end before what their handlers use
  const bool answers_on_device_;
  uint64_t requests_ = 0;
};

void expect_same(const Payload& there, const Payload& here, at::Device device) {
  const auto same = [&](const at::Tensor& a, const at::Tensor& b, const char* name) {
    ASSERT_EQ(a.defined(), b.defined()) << name;
    if (!a.defined()) return;
    EXPECT_EQ(a.device(), device) << name;
    EXPECT_TRUE(b.is_cpu()) << name;
    EXPECT_TRUE(at::equal(a.cpu(), b)) << name;
  };
  same(there.hidden, here.hidden, "hidden");
  same(there.ids, here.ids, "ids");
  same(there.logps, here.logps, "logps");
  same(there.log_tail, here.log_tail, "log_tail");
}

class Answers : public testing::TestWithParam<PayloadKind> {};

TEST_P(Answers, GoFromDeviceToDeviceWhereAMapSaysSo) {
  Exchange here(false, false), there(true, true);
  TeacherClient host = here.client(GetParam());
  const int64_t copies_before = test::stand_in_copies_to_host();
  TeacherClient device = there.client(GetParam());
  EXPECT_EQ(test::stand_in_copies_to_host(), copies_before) << "of the head";
  if (GetParam() == PayloadKind::kHiddenStates) {
    EXPECT_EQ(device.head_weight().device(), stand_in_device());
    EXPECT_TRUE(at::equal(device.head_weight().cpu(), host.head_weight()));
  }

  const rpc::testing::StandInTraffic before = rpc::testing::stand_in_traffic();
  const int64_t copies = test::stand_in_copies_to_host();
  const int64_t uses = test::stand_in_recorded_uses();
  const Payload answer = there.ask(device);
  const int64_t tensors = GetParam() == PayloadKind::kTopK ? 3 : 1;
  if (may_be_on_device(GetParam())) {
    EXPECT_EQ(test::stand_in_copies_to_host(), copies) << "no detour";
    EXPECT_EQ(rpc::testing::stand_in_traffic().received - before.received, tensors);
    EXPECT_EQ(test::stand_in_recorded_uses() - uses, tensors) << "for the stream that reads them";
    expect_same(answer, here.ask(host), stand_in_device());
  } else {
    EXPECT_EQ(rpc::testing::stand_in_traffic().received, before.received);
    expect_same(answer, here.ask(host), at::kCPU);
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, Answers,
                         testing::Values(PayloadKind::kHiddenStates, PayloadKind::kTopK,
                                         PayloadKind::kFull, PayloadKind::kTargetLogProbs),
                         [](const auto& info) { return std::string(enum_name(info.param)); });

TEST(AnswersWithoutAMap, GoThroughPinnedHostMemory) {
  Exchange exchange(false, false);
  TeacherClient client = exchange.client(PayloadKind::kHiddenStates);
  EXPECT_TRUE(client.head_weight().is_cpu());
  const rpc::testing::StandInTraffic before = rpc::testing::stand_in_traffic();
  const int64_t pinned = test::stand_in_pinned_blocks();
  EXPECT_TRUE(exchange.ask(client).hidden.is_cpu());
  EXPECT_EQ(test::stand_in_pinned_blocks(), pinned + 2)
      << "one for the numbers of the teacher's forward pass, one for its answer";
  EXPECT_EQ(rpc::testing::stand_in_traffic().sent, before.sent);
}

TEST(AnswersWithoutAMap, AreRefusedWhereTheyShouldStayOnTheDevice) {
  Exchange there(true, false);
  TeacherClient client = there.client(PayloadKind::kFull);
  const int64_t copies = test::stand_in_copies_to_host();
  test::expect_error(ErrorCode::kInvalidArgument, "no entry rpc.device_maps.student.0",
                     [&] { there.ask(client); });
  EXPECT_EQ(test::stand_in_copies_to_host(), copies);
}

// A generator's rank as far as pushed weights go, with its model on `device`.
class Receiver {
 public:
  Receiver(at::Device device, bool mapped)
      : decoder(models::load_decoder(golden_model(), at::kFloat, {}, device)),
        server_(agent_options("generator/0", "student", mapped)) {
    const models::Tokenizer tokenizer = models::Tokenizer::load(golden_model());
    const GeneratorInfo info{.name = "generator/0",
                             .vocabulary_fingerprint = tokenizer.vocabulary_fingerprint(),
                             .parameters = parameters_hash(decoder, nullptr),
                             .slices = weight_slices(decoder)};
    server_.serve(kGeneratorInfo, handlers_.queue(),
                  [info](Empty, const rpc::CallContext&) { return info; });
    server_.serve(kWeightsBucket, handlers_.queue(),
                  [this](WeightBucket bucket, const rpc::CallContext& caller) {
                    ++buckets;
                    for (const WeightPart& part : bucket.parts)
                      on_device += part.values.device() == stand_in_device() ? 1 : 0;
                    if (damage) bucket.parts[0].values.view({-1}).narrow(0, 1, 1).add_(1e-3);
                    staging_.add(std::move(bucket), caller.peer);
                    return Empty{};
                  });
    server_.serve(kWeightsCommit, handlers_.queue(),
                  [this](const CommitWeights& commit, const rpc::CallContext&) {
                    const uint64_t checksum =
                        weights_checksum(std::vector<uint64_t>{staging_.check(commit)});
                    staging_.apply();
                    return CommitReply{.version = commit.version, .checksum = checksum};
                  });
  }
  std::string address() const { return server_.address(); }

  models::Decoder decoder;
  std::atomic<int64_t> buckets{0};    // that arrived
  std::atomic<int64_t> on_device{0};  // parts that arrived there
  std::atomic<bool> damage{false};    // each bucket, once it is here

 private:
  WeightStaging staging_{decoder};
  HandlerThread handlers_;
  rpc::Agent server_;
};

// A student on the stand-in device with weights of its own, and who receives them.
struct Push {
  explicit Push(at::Device receiver_device, bool on_device, bool mapped)
      : receiver(receiver_device, mapped), agent(agent_options("student/0", "generator", mapped)) {
    for (const parallel::NamedParameter& parameter : student.parameters())
      parameter.value.detach().mul_(0.5);
    agent.connect("generator/0", receiver.address(), Deadline::after(30s));
    client =
        std::make_unique<GeneratorClient>(agent,
                                          GeneratorClient::Options{.role = "generator",
                                                                   .peers = {"generator/0"},
                                                                   .timeout = 30s,
                                                                   .generation_timeout = 30s,
                                                                   .weights_on_device = on_device},
                                          models::Tokenizer::load(golden_model()), student);
  }
  void run() { client->wait_pushed(client->push(student, 2, 4096, false)); }
  void expect_taken_over() const {
    EXPECT_EQ(models::weights_fingerprint(receiver.decoder), models::weights_fingerprint(student));
  }

  models::Decoder student = models::load_decoder(golden_model(), at::kFloat, {}, stand_in_device());
  Receiver receiver;
  rpc::Agent agent;
  std::unique_ptr<GeneratorClient> client;
};

TEST(HandlerThreads, HaveTheDeviceThatTheyAreTold) {
  HandlerThread thread;
  const auto device_there = [&] {
    std::promise<int64_t> device;
    thread.queue()->push([&] { device.set_value(test::stand_in_device_of_thread()); },
                         Deadline::after(30s));
    return device.get_future().get();
  };
  thread.use_device(at::kCPU);
  EXPECT_EQ(device_there(), -1);
  thread.use_device(at::Device(stand_in_device().type(), 2));
  EXPECT_EQ(device_there(), 2);
}

TEST(PushedWeights, GoFromDeviceToDeviceWhereAMapSaysSo) {
  Push push(stand_in_device(), true, true);
  const int64_t uses = test::stand_in_recorded_uses();
  test::RecordedReads recorded;
  push.run();
  EXPECT_GT(push.receiver.on_device, 0);
  // No detour: of each bucket only the sums of its parts come to the host, once on each end.
  const std::vector<std::string> reads = recorded.take();
  EXPECT_EQ(std::ssize(reads), 2 * push.receiver.buckets);
  for (const std::string& read : reads)
    EXPECT_TRUE(read.starts_with("copy Long[")) << read;
  EXPECT_EQ(test::stand_in_recorded_uses() - uses, 2 * push.receiver.on_device)
      << "for the stream that checks them, and for the one that puts them in use";
  for (const parallel::NamedParameter& parameter : push.receiver.decoder.parameters())
    EXPECT_EQ(parameter.value.device(), stand_in_device()) << parameter.name;
  push.expect_taken_over();
}

TEST(PushedWeights, GoThroughPinnedHostMemoryWithoutAMap) {
  for (const at::Device device : {at::Device(at::kCPU), stand_in_device()}) {
    Push push(device, false, false);
    const int64_t pinned = test::stand_in_pinned_blocks();
    push.run();
    EXPECT_GT(test::stand_in_pinned_blocks(), pinned);
    EXPECT_EQ(push.receiver.on_device, 0);
    push.expect_taken_over();
  }
}

std::vector<const void*> places_of(const models::Decoder& decoder) {
  std::vector<const void*> places;
  for (const parallel::NamedParameter& parameter : decoder.parameters())
    places.push_back(parameter.value.const_data_ptr());
  return places;
}

// Launches that were recorded with the addresses of weights are good for the next ones too,
// whichever way these came: whole parameters and pieces of them.
TEST(PushedWeights, KeepTheirPlacesOnADevice) {
  for (const bool mapped : {true, false}) {
    Push push(stand_in_device(), mapped, mapped);
    const std::vector<const void*> places = places_of(push.receiver.decoder);
    push.run();
    EXPECT_EQ(places_of(push.receiver.decoder), places) << mapped;
    push.expect_taken_over();
  }
}

TEST(PushedWeights, AreRefusedWhereTheyShouldStayOnAnUnmappedDevice) {
  Push push(stand_in_device(), true, false);
  test::RecordedReads recorded;
  test::expect_error(ErrorCode::kInvalidArgument, "no entry rpc.device_maps.generator.0",
                     [&] { push.run(); });
  // The sums of the parts of a bucket were read before it was to leave, but no weight was.
  for (const std::string& read : recorded.take())
    EXPECT_TRUE(read.starts_with("copy Long[")) << read;
}

TEST(PushedWeights, DamageOnTheDeviceIsSeenThere) {
  Push push(stand_in_device(), true, true);
  push.receiver.damage = true;
  const auto before = models::weights_fingerprint(push.receiver.decoder);
  const std::vector<const void*> places = places_of(push.receiver.decoder);
  test::expect_error(ErrorCode::kCorrupt, "the checksum differs", [&] { push.run(); });
  EXPECT_EQ(models::weights_fingerprint(push.receiver.decoder), before);
  EXPECT_EQ(places_of(push.receiver.decoder), places);
}

}  // namespace
}  // namespace retort::roles
