// Real TensorPipe pipes over the transport: what is sent arrives, in every size and order, and
// every callback runs once. Also the check that tensorpipe_abi.h fits the wheel.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/rpc/transport/echo_pipe.h"
#include "tests/rpc/transport/node.h"

namespace retort::rpc::transport::testing {
namespace {

struct Variant {
  const char* name;
  std::vector<std::string> channels;
  bool tls;
  bool probes = false;  // between all other frames
};

class Conformance : public ::testing::TestWithParam<Variant> {
 protected:
  static NodeOptions options(std::string name) {
    auto made = node_options(std::move(name));
    made.channels = GetParam().channels;
    made.tls = GetParam().tls;
    if (GetParam().probes) made.context.probe_interval = 1ms;
    made.context.silence_timeout = 60'000ms;
    return made;
  }
  Node server{options("teacher/0")};
  Node client{options("student/0")};
};

TEST_P(Conformance, MessagesOfEverySizeArrive) {
  const auto pipe = client.pipe(client.connect("teacher/0", server.address()));
  const std::vector<std::vector<size_t>> shapes{{},
                                                {0},
                                                {1},
                                                {1 << 10},
                                                {0, 5},
                                                {16 << 10, 3, 1 << 20},
                                                {8 << 20, 1, 0, 77'777, 8192, 8191},
                                                {64 << 20},
                                                {16 << 20, 16 << 20}};
  uint64_t seed = 1;
  for (const auto& shape : shapes)
    for (const size_t payload : {size_t{0}, size_t{1}, size_t{100}, size_t{300'000}}) {
      const auto parcel = make_parcel(++seed, payload, shape);
      const auto answer = converse(pipe, parcel);
      ASSERT_TRUE(answer->same_content(*parcel)) << answer->error.what();
    }
}

TEST_P(Conformance, TwoHundredInFlightKeepTheirOrder) {
  const auto pipe = client.pipe(client.connect("teacher/0", server.address()));
  std::vector<std::shared_ptr<Parcel>> parcels;
  std::vector<std::future<std::shared_ptr<Parcel>>> answers;
  for (size_t i = 0; i < 200; ++i)
    parcels.push_back(
        make_parcel(i + 1, i * 97, i % 3 == 0 ? std::vector{i * 1000} : std::vector<size_t>{}));
  for (const auto& parcel : parcels) {
    answers.push_back(receive(pipe));
    send(pipe, parcel);
  }
  for (size_t i = 0; i < parcels.size(); ++i)
    ASSERT_TRUE(answers[i].get()->same_content(*parcels[i])) << i;
}

TEST_P(Conformance, ManyPipesOfOneSession) {
  const auto session = client.connect("teacher/0", server.address());
  std::vector<std::shared_ptr<tensorpipe::Pipe>> pipes;
  for (int i = 0; i < 20; ++i)
    pipes.push_back(client.pipe(session));
  for (const auto& pipe : pipes)
    EXPECT_TRUE(answers(pipe));
  EXPECT_EQ(server.pipes_served, 20);
}

TEST_P(Conformance, BothSidesServeOverTwoSessions) {
  const auto there = client.pipe(client.connect("teacher/0", server.address()));
  const auto back = server.pipe(server.connect("student/0", client.address()));
  EXPECT_TRUE(answers(there));
  EXPECT_TRUE(answers(back));
}

TEST_P(Conformance, TheEndOfASessionEndsItsPipesAlone) {
  const auto first = client.connect("teacher/0", server.address());
  const auto second = client.connect("teacher/0", server.address());
  const auto pipe = client.pipe(first), other = client.pipe(second);
  ASSERT_TRUE(answers(pipe));
  ASSERT_TRUE(answers(other));

  auto never = receive(pipe);
  client.end_session(first);
  EXPECT_TRUE(never.get()->error);
  EXPECT_TRUE(converse(pipe, make_parcel(1, 5, {5}))->error);
  EXPECT_TRUE(answers(other));
  EXPECT_TRUE(answers(client.pipe(second)));
}

TEST_P(Conformance, ClosingWithMessagesUnderWayCallsBackOnce) {
  const auto pipe = client.pipe(client.connect("teacher/0", server.address()));
  ASSERT_TRUE(answers(pipe));
  std::vector<std::future<tensorpipe::Error>> sent;
  auto never = receive(pipe);
  auto parcel = make_parcel(3, 10, {16 << 20});
  parcel->how = "sink";
  for (int i = 0; i < 20; ++i)
    sent.push_back(send(pipe, parcel));
  client.close();  // a promise that is set twice would throw
  for (auto& future : sent)
    ASSERT_EQ(future.wait_for(0s), std::future_status::ready);
  EXPECT_TRUE(never.get()->error);
  EXPECT_TRUE(send(pipe, parcel).get()) << "a write after the end fails at once";
}

INSTANTIATE_TEST_SUITE_P(Variants, Conformance,
                         ::testing::Values(Variant{"Basic", {"basic"}, false},
                                           Variant{"Cma", {"cma", "basic"}, false},
                                           Variant{"BasicTls", {"basic"}, true},
                                           Variant{"BasicProbed", {"basic"}, false, true},
                                           Variant{"TlsProbed", {"basic"}, true, true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace retort::rpc::transport::testing
