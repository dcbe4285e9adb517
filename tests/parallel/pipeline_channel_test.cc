// Tensors between the stages of a pipeline: the traffic of both schedules, and how a wrong message,
// a lost and a stopped stage are reported.
#include "parallel/pipeline_channel.h"

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <random>

#include "base/sizes.h"
#include "parallel/detail/pipeline_header.h"
#include "tests/parallel/rank_process.h"

namespace retort::parallel::testing {
namespace {

using test::ChildProcess;
using test::hear;
using test::say;
using namespace std::chrono_literals;
using Kind = PipelineAction::Kind;

Deadline soon() { return Deadline::after(90s); }

constexpr std::array<at::ScalarType, 5> kDtypes{at::kFloat, at::kBFloat16, at::kLong, at::kDouble,
                                                at::kBool};

// The tensor of a message: shape, dtype and content follow from the label, so that both ends know
// it.
at::Tensor message_of(const PipelineAction& label, int64_t pass) {
  std::mt19937 random(static_cast<uint32_t>(pass * 10'000 + label.micro_batch * 100 +
                                            label.chunk * 10 + static_cast<int64_t>(label.kind)));
  const auto draw = [&](int64_t below) {
    return static_cast<int64_t>(random() % static_cast<uint32_t>(below));
  };
  const at::ScalarType dtype = kDtypes[to_size(draw(kDtypes.size()))];
  const int64_t rows = draw(5) == 0 ? 0 : draw(draw(4) == 0 ? 60'000 : 20);
  const int64_t columns = 1 + draw(9);
  const int64_t first = draw(100);
  const at::Tensor values = at::arange(first, first + rows * columns, at::kLong).remainder(101);
  if (draw(6) == 0) return values.to(dtype);                            // one dimension
  if (draw(6) == 0) return values.view({columns, rows}).to(dtype).t();  // not contiguous
  return values.view({rows, columns}).to(dtype);
}

// One step of this stage: every message of its schedule, with pauses instead of work.
void pass_messages(PipelineChannel& channel, const PipelineOptions& o, int64_t pass) {
  std::mt19937 random(static_cast<uint32_t>(o.stage + 17 * pass));
  for (const PipelineAction& action : pipeline_schedule(o)) {
    if (const auto input = pipeline_input(action, o.stage, o.pp, o.virtual_pp)) {
      const at::Tensor expected = message_of(input->label, pass);
      const at::Tensor got = pass % 2 == 0
                                 ? channel.recv(input->stage, input->label)
                                 : channel.recv(input->stage, input->label, expected.sizes().vec(),
                                                expected.scalar_type());
      require(got.scalar_type() == expected.scalar_type() && got.sizes() == expected.sizes() &&
                  at::equal(got, expected),
              "the input of " + to_string(action) + " is what was sent");
      require(got.is_contiguous() && !got.requires_grad(), "a fresh tensor");
    }
    ::usleep(static_cast<useconds_t>(random() % 1000));
    if (const auto output = pipeline_output(action, o.stage, o.pp, o.virtual_pp)) {
      at::Tensor tensor = message_of(output->label, pass);
      if (at::isFloatingType(tensor.scalar_type())) tensor.set_requires_grad(true);
      channel.send(tensor, output->stage, output->label);
    }
  }
  channel.flush();
  require(channel.in_flight() == 0, "flush() waits for all");
}

}  // namespace

void pipeline_traffic_scenario() {
  World world(child_world_options());
  Group& pp = world.pp();
  int64_t pass = 0;
  for (int64_t sends_in_flight : {kMinimumSendsInFlight, PipelineChannel::kSendsInFlight}) {
    PipelineChannel channel(pp, sends_in_flight);
    for (int64_t virtual_pp : {1, 2, 3})
      for (int64_t micro_batches : {1, 4, 7, 12})
        for (bool forward_only : {false, true})
          pass_messages(channel,
                        {.pp = pp.size(),
                         .stage = pp.rank(),
                         .virtual_pp = virtual_pp,
                         .micro_batches = micro_batches,
                         .forward_only = forward_only},
                        ++pass);
  }
}

class PipelineTraffic : public ::testing::TestWithParam<int64_t> {};

TEST_P(PipelineTraffic, OfBothSchedulesArrivesAsSent) {
  StoreServer store("127.0.0.1");
  auto ranks = spawn_ranks(store, {.scenario = "pipeline_traffic", .layout = {.pp = GetParam()}},
                           GetParam());
  expect_success(std::move(ranks));
}

INSTANTIATE_TEST_SUITE_P(PipelineChannel, PipelineTraffic, ::testing::Values(2, 3, 4),
                         ::testing::PrintToStringParamName());

void pipeline_kinds_scenario() {
  World world(child_world_options());
  PipelineChannel channel(world.pp());
  const PipelineAction forward{Kind::kForward, 0, 1};
  const PipelineAction backward{Kind::kBackward, 0, 0};
  if (world.rank() == 0) {
    channel.send(at::zeros({3, 4}), 1, forward);
    channel.send(at::zeros({5}), 1, backward);
    channel.flush();
  } else {
    require(channel.recv(0, backward).numel() == 5, "the backward");
    require(channel.recv(0, forward).numel() == 12, "the forward");
  }
}

TEST(PipelineChannel, ForwardsAndBackwardsDoNotWaitForEachOther) {
  StoreServer store("127.0.0.1");
  auto ranks =
      spawn_ranks(store, {.scenario = "pipeline_kinds", .layout = {.pp = 2}, .timeout = 20s}, 2);
  expect_success(std::move(ranks));
}

// Stage 1 takes nothing until the test says so, some time after stage 0 has posted as much as it
// may.
void pipeline_bound_scenario() {
  const World::Options options = child_world_options();
  World world(options);
  StoreClient store(options.store_host, options.store_port, options.store_prefix, options.timeout);
  PipelineChannel channel(world.pp(), 2);
  const auto label = [](int64_t m) { return PipelineAction{Kind::kForward, 0, m}; };

  if (world.rank() == 0) {
    for (int64_t m = 0; m < 2; ++m)
      channel.send(at::full({1000, 10}, m), 1, label(m));
    require(channel.in_flight() == 2, "two are on their way");
    say("two");
    channel.send(at::full({1000, 10}, 2), 1, label(2));
    require(store.contains("taking"), "the third send waits for the first receive");
    require(channel.in_flight() == 2, "two are on their way again");
    channel.flush();
    require(store.contains("taken"), "flush() waits for all receives");
    require(channel.in_flight() == 0, "none is on its way");
  } else {
    hear();  // stage 0 has sent what it may
    ::usleep(300'000);
    store.set("taking", "");
    for (int64_t m = 0; m < 3; ++m) {
      if (m == 2) {
        ::usleep(100'000);
        store.set("taken", "");
      }
      require(at::equal(channel.recv(0, label(m)), at::full({1000, 10}, m)), "the message");
    }
  }
  world.all().barrier();
}

TEST(PipelineChannel, SendsReturnAtOnceUntilTooManyAreOnTheirWay) {
  StoreServer store("127.0.0.1");
  auto ranks = spawn_ranks(store, {.scenario = "pipeline_bound", .layout = {.pp = 2}}, 2);
  EXPECT_EQ(ranks[0].read_line(soon()), "two");
  ranks[1].write_line("go");
  expect_success(std::move(ranks));
}

void pipeline_mismatch_scenario() {
  World world(child_world_options());
  Group& pp = world.pp();
  const at::Tensor message = at::zeros({3, 4});
  const auto exchange = [&](const PipelineAction& sent,
                            const std::function<void(PipelineChannel&)>& receive) {
    PipelineChannel channel(pp);
    if (pp.rank() == 0) channel.send(message, 1, sent);
    if (pp.rank() == 1) say(error_of([&] { receive(channel); }).what());
    pp.barrier();  // what was not taken is dropped afterwards
  };

  // What the sender refuses is not sent.
  if (pp.rank() == 0) {
    PipelineChannel channel(pp);
    for (const at::Tensor& wrong :
         {at::zeros({1, 2, 3}), at::zeros({2}, at::kComplexFloat), at::Tensor()})
      require(error_of([&] {
                channel.send(wrong, 1, {Kind::kForward, 0, 0});
              }).code() == ErrorCode::kInvalidArgument,
              "refused");
    require(error_of([&] {
              channel.send(message, 2, {Kind::kForward, 0, 0});
            }).code() == ErrorCode::kInvalidArgument,
            "no stage 2");
    require(error_of([&] { PipelineChannel(pp, 1); }).code() == ErrorCode::kInvalidArgument,
            "too few sends in flight");
    require(channel.in_flight() == 0, "nothing was sent");
  }

  // What the receiver refuses: another label, other sizes.
  exchange({Kind::kForward, 1, 3}, [](PipelineChannel& c) { c.recv(0, {Kind::kForward, 1, 2}); });
  // The tensor of the message that was refused is still there: the other kind has other tags.
  exchange({Kind::kBackward, 0, 0}, [](PipelineChannel& c) {
    c.recv(0, {Kind::kBackward, 0, 0}, std::vector<int64_t>{3, 5});
  });
}

TEST(PipelineChannel, AMessageThatIsNotTheExpectedOneIsAMismatch) {
  StoreServer store("127.0.0.1");
  auto ranks = spawn_ranks(store, {.scenario = "pipeline_mismatch", .layout = {.pp = 2}}, 2);
  EXPECT_EQ(
      ranks[1].read_line(soon()),
      "expected the input of forward of chunk 1, micro-batch 2, but got that of forward of chunk "
      "1, micro-batch 3; do all stages have the same schedule? "
      "[mismatch stage=1 from_stage=0 kind=forward chunk=1 micro_batch=2]");
  EXPECT_EQ(ranks[1].read_line(soon()),
            "expected Float[3, 5] from the other stage, but got Float[3, 4]; do all stages have "
            "the same batch and model? "
            "[mismatch stage=1 from_stage=0 kind=backward chunk=0 micro_batch=0]");
  expect_success(std::move(ranks));
}

namespace {

// Runs 1F1B; the middle stage ends after its first two actions by the signal that is the
// scenario's.
void lose_a_stage(int signal) {
  World world(child_world_options());
  Group& pp = world.pp();
  PipelineChannel channel(pp);
  pp.barrier();
  const Error e = error_of([&] {
    int64_t actions = 0;
    for (const PipelineAction& action :
         pipeline_schedule({.pp = 3, .stage = pp.rank(), .micro_batches = 8})) {
      if (pp.rank() == 1 && actions++ == 2) raise(signal);
      const auto input = pipeline_input(action, pp.rank(), 3, 1);
      const auto output = pipeline_output(action, pp.rank(), 3, 1);
      if (input) channel.recv(input->stage, input->label);
      if (output) channel.send(at::zeros({50, 7}), output->stage, output->label);
    }
    channel.flush();
  });
  say(std::string(to_string(e.code())));
  say(e.what());
  const Error again = error_of([&] { channel.send(at::zeros({1}), 1, {Kind::kForward, 0, 0}); });
  require(again.code() == ErrorCode::kCollective, "a lost pipeline stays lost");
}

void expect_named(const std::string& text, int stage) {
  const std::string other = stage == 0 ? "_stage=1" : "from_stage=1";
  for (const std::string& part :
       {std::string("group=student.pp"), "stage=" + std::to_string(stage), other,
        std::string("kind="), std::string("chunk=0"), std::string("micro_batch=")})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

}  // namespace

void pipeline_killed_scenario() { lose_a_stage(SIGKILL); }
void pipeline_stopped_scenario() { lose_a_stage(SIGSTOP); }

TEST(PipelineChannel, NeighboursOfAKilledStageGetANamedError) {
  StoreServer store("127.0.0.1");
  auto ranks =
      spawn_ranks(store, {.scenario = "pipeline_killed", .layout = {.pp = 3}, .timeout = 20s}, 3);
  EXPECT_EQ(ranks[1].wait(soon()), 128 + SIGKILL);
  for (int stage : {0, 2}) {
    ChildProcess& survivor = ranks[to_size(stage)];
    const std::string code = survivor.read_line(soon());
    EXPECT_TRUE(code == "collective" || code == "timeout") << code;
    expect_named(survivor.read_line(soon()), stage);
    EXPECT_EQ(survivor.wait(soon()), 0);
  }
}

TEST(PipelineChannel, AStoppedStageIsATimeoutOfItsNeighbours) {
  StoreServer store("127.0.0.1");
  auto ranks =
      spawn_ranks(store, {.scenario = "pipeline_stopped", .layout = {.pp = 3}, .timeout = 8s}, 3);
  for (int stage : {0, 2}) {
    ChildProcess& survivor = ranks[to_size(stage)];
    EXPECT_EQ(survivor.read_line(soon()), "timeout");
    expect_named(survivor.read_line(soon()), stage);
    EXPECT_EQ(survivor.wait(soon()), 0);
  }
}

TEST(PipelineHeader, SaysWhatIsSentAndRefusesTheRest) {
  const PipelineAction label{Kind::kBackward, 2, 5};
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{}, {7}, {0, 4}, {3, 2}})
    for (at::ScalarType dtype : kDtypes) {
      const auto header = detail::decode(detail::encode({label, dtype, sizes}));
      EXPECT_EQ(header.label, label);
      EXPECT_EQ(header.dtype, dtype);
      EXPECT_EQ(header.sizes, sizes);
    }

  // A good header with one word changed.
  const auto good = detail::encode({label, at::kFloat, {3, 2}});
  const auto code_with = [&](size_t word, int64_t value) -> std::string {
    auto words = good;
    words[word] = value;
    const std::optional<Error> error = test::thrown([&] { detail::decode(words); });
    return error ? std::string(to_string(error->code())) : "";
  };

  EXPECT_EQ(code_with(0, good[0] + 1), "mismatch") << "another version";
  EXPECT_EQ(code_with(0, 0), "corrupt") << "not a header";
  EXPECT_EQ(code_with(1, 2), "corrupt") << "kind";
  EXPECT_EQ(code_with(2, -1), "corrupt") << "chunk";
  EXPECT_EQ(code_with(3, -1), "corrupt") << "micro-batch";
  EXPECT_EQ(code_with(4, 200), "corrupt") << "dtype";
  EXPECT_EQ(code_with(4, static_cast<int64_t>(at::kComplexFloat)), "corrupt") << "complex";
  EXPECT_EQ(code_with(5, 3), "corrupt") << "dim";
  EXPECT_EQ(code_with(6, -3), "corrupt") << "size";
  EXPECT_EQ(code_with(6, int64_t{1} << 62), "corrupt") << "overflow";
  EXPECT_EQ(code_with(6, 5), "");
}

}  // namespace retort::parallel::testing

int main(int argc, char** argv) {
  using namespace retort::parallel::testing;
  return ranks_or_tests(argc, argv,
                        {{"pipeline_traffic", pipeline_traffic_scenario},
                         {"pipeline_kinds", pipeline_kinds_scenario},
                         {"pipeline_bound", pipeline_bound_scenario},
                         {"pipeline_mismatch", pipeline_mismatch_scenario},
                         {"pipeline_killed", pipeline_killed_scenario},
                         {"pipeline_stopped", pipeline_stopped_scenario}});
}
