#include "bench/rpc/gloo_contestant.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

namespace retort::bench {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
using Work = c10::intrusive_ptr<c10d::Work>;
enum Tag { kHeader, kData, kAnswer };

Group make_group(const std::string& store_file, int rank) {
  // The answering side waits for its next turn for long.
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::hours(1));
  options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  options->threads = 1;
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::FileStore>(store_file, 2), rank, 2, std::move(options));
}

Work send(const Group& group, int peer, const at::Tensor& tensor, Tag tag) {
  std::vector<at::Tensor> tensors{tensor};
  return group->send(tensors, peer, tag);
}
Work receive(const Group& group, int peer, const at::Tensor& tensor, Tag tag) {
  std::vector<at::Tensor> tensors{tensor};
  return group->recv(tensors, peer, tag);
}

class GlooContestant final : public Contestant {
 public:
  GlooContestant(const std::string& store_file, Source source)
      : source_(std::move(source)), group_(make_group(store_file, 0)) {}
  ~GlooContestant() override { say(0, 0, 0); }

  Turn run(int64_t bytes, int depth, int count) override {
    const at::Tensor tensor = source_.first(bytes);
    const at::Tensor answer = at::zeros({8}, at::kByte);
    say(bytes, depth, count);
    std::deque<std::pair<Work, Work>> works;
    return keep_on_their_way(
        depth, count,
        [&] {
          Work sent = send(group_, 1, tensor, kData);
          works.emplace_back(std::move(sent), receive(group_, 1, answer, kAnswer));
        },
        [&] {
          works.front().first->wait();
          works.front().second->wait();
          works.pop_front();
        });
  }

 private:
  void say(int64_t bytes, int64_t depth, int64_t count) {
    const at::Tensor header = at::zeros({3}, at::kLong);
    std::copy_n(std::array<int64_t, 3>{bytes, depth, count}.begin(), 3,
                header.mutable_data_ptr<int64_t>());
    send(group_, 1, header, kHeader)->wait();
  }

  const Source source_;
  const Group group_;
};

// Receives one turn's messages, as many at a time as there are on their way, and answers each.
void serve_turn(const Group& group, const at::Tensor& values, int64_t depth, int64_t count) {
  const at::Tensor answer = at::zeros({8}, at::kByte);
  std::deque<Work> arriving, answers;
  for (int64_t i = 0; i < std::min(depth, count); ++i)
    arriving.push_back(receive(group, 0, values, kData));
  for (int64_t i = 0; i < count; ++i) {
    arriving.front()->wait();
    arriving.pop_front();
    if (i + depth < count) arriving.push_back(receive(group, 0, values, kData));
    answers.push_back(send(group, 0, answer, kAnswer));
    if (answers.size() <= static_cast<size_t>(depth)) continue;
    answers.front()->wait();
    answers.pop_front();
  }
  for (const Work& work : answers)
    work->wait();
}

}  // namespace

void serve_gloo(const std::string& store_file) {
  const Group group = make_group(store_file, 1);
  const at::Tensor buffer = at::ones({kLargestBytes}, at::kByte);
  const at::Tensor header = at::zeros({3}, at::kLong);
  for (;;) {
    receive(group, 0, header, kHeader)->wait();
    const auto* numbers = header.const_data_ptr<int64_t>();
    if (numbers[2] == 0) return;
    serve_turn(group, buffer.narrow(0, 0, numbers[0]), numbers[1], numbers[2]);
  }
}

std::unique_ptr<Contestant> make_gloo_contestant(const std::string& store_file, Source source) {
  return std::make_unique<GlooContestant>(store_file, std::move(source));
}

}  // namespace retort::bench
