// Decodes: the archive (rpc/archive.h), as every request and reply of a remote method and as a type
//   with every container. The first byte says which type, the second whether the tensors stand
//   inside the bytes, or how many travel beside them.
// Holds: what was decoded is encoded into the very bytes that it came from.
#include <array>
#include <map>
#include <optional>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include "launch/links/link_methods.h"
#include "roles/environment/methods.h"
#include "roles/generator/methods.h"
#include "roles/teacher/methods.h"
#include "roles/teacher/replica_link.h"
#include "rpc/archive.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::archive {
namespace {

// Every kind of member that an archive takes, and types inside types.
struct Containers {
  bool flag = false;
  float single = 0;
  std::array<int16_t, 3> numbers{};
  std::optional<std::string> text;
  std::pair<uint8_t, std::vector<double>> pair;
  std::map<std::string, std::vector<std::string>> map;
  std::vector<std::optional<at::Tensor>> tensors;
  std::vector<std::vector<std::vector<int32_t>>> nested;
  template <class A>
  void serialize(A& archive) {
    archive(flag, single, numbers, text, pair, map, tensors, nested);
  }
};

// A map may come in any order and goes in one.
template <class T>
inline constexpr bool kOneForm = !std::is_same_v<T, Containers>;

template <class T>
void decode_inside(std::string_view bytes) {
  const std::string again = rpc::to_bytes(rpc::from_bytes<T>(bytes));
  expect(again.size() == bytes.size(), "encoded again it has another size");
  expect(!kOneForm<T> || again == bytes, "encoded again it has other bytes");
  expect(rpc::to_bytes(rpc::from_bytes<T>(again)) == again, "the second round differs");
}

template <class T>
void decode_beside(std::string_view bytes, size_t num_tensors) {
  rpc::Message message{std::string(bytes), {}};
  for (size_t i = 0; i < num_tensors; ++i)
    message.tensors.push_back(at::zeros({static_cast<int64_t>(i)}, at::kInt));
  const rpc::Message again = rpc::encode(rpc::decode<T>(std::move(message)));
  expect(again.tensors.size() == num_tensors, "another number of tensors");
  expect(!kOneForm<T> || again.envelope == bytes, "encoded again it has other bytes");
}

struct Type {
  void (*inside)(std::string_view bytes);
  void (*beside)(std::string_view bytes, size_t num_tensors);
};

template <class... Ts>
constexpr std::array<Type, sizeof...(Ts)> table() {
  return {Type{decode_inside<Ts>, decode_beside<Ts>}...};
}

constexpr auto kTypes =
    table<Containers, Empty, roles::InfoRequest, roles::TeacherInfo, roles::HeadRequest,
          roles::HeadReply, roles::ForwardRequest, roles::Payload, roles::PullRequest,
          roles::GeneratorInfo, roles::GenerateRequest, roles::CollectRequest, roles::Samples,
          roles::WeightBucket, roles::CommitWeights, roles::CommitReply,
          std::vector<roles::Samples>, roles::ReplicaLink::Message, launch::links::LinkMessage,
          roles::PassWeights, roles::PassReply, roles::OpenEpisode, roles::OpenedEpisode,
          roles::EpisodeTurn, roles::EpisodeAnswer, roles::CloseEpisode, roles::ClosedEpisode,
          roles::EnvironmentInfo>();

bool decode(std::string_view bytes) {
  ByteSource source(bytes);
  const Type& type = kTypes[source.byte() % kTypes.size()];
  const uint8_t place = source.byte();
  if (place == 0)
    type.inside(source.rest());
  else
    type.beside(source.rest(), place - 1u);
  return true;
}

// `index`: the type's place in kTypes.
template <class T>
void add_seeds(std::vector<Seed>& seeds, const std::string& name, uint8_t index, const T& value) {
  seeds.push_back({name, ByteSink().byte(index).byte(0).raw(rpc::to_bytes(value)).bytes()});
  const rpc::Message message = rpc::encode(value);
  const auto place = static_cast<uint8_t>(message.tensors.size() + 1);
  seeds.push_back(
      {name + "_beside", ByteSink().byte(index).byte(place).raw(message.envelope).bytes()});
}

void add_episode_seeds(std::vector<Seed>& all) {
  add_seeds(all, "open_episode", 21, roles::OpenEpisode{.episode = 7, .seed = 3, .row = "{}"});
  add_seeds(all, "opened_episode", 22, roles::OpenedEpisode{.tools = "[{}]", .messages = "[]"});
  add_seeds(all, "episode_turn", 23,
            roles::EpisodeTurn{.episode = 7, .turn = 1, .text = "add", .calls = "[]"});
  add_seeds(all, "episode_answer", 24, roles::EpisodeAnswer{.messages = "[]", .done = true});
  add_seeds(all, "close_episode", 25, roles::CloseEpisode{.episode = 7});
  add_seeds(all, "closed_episode", 26, roles::ClosedEpisode{.reward = 0.5, .metrics = "{}"});
  add_seeds(all, "environment_info", 27,
            roles::EnvironmentInfo{.name = "tools/0", .user_turns = true, .episodes = 4});
}

std::vector<Seed> seeds() {
  const at::Tensor ids = at::arange(3, at::kInt);
  const Containers containers{.flag = true,
                              .single = 1.5f,
                              .numbers = {1, -2, 3},
                              .text = "text",
                              .pair = {7, {0.25, -1}},
                              .map = {{"a", {"b", "c"}}, {"d", {}}},
                              .tensors = {ids, std::nullopt, at::Tensor()},
                              .nested = {{{1, 2}, {}}, {}}};
  const roles::ForwardRequest forward{
      .request_id = 9, .input_ids = ids, .cu_seqlens = ids, .positions = ids, .columns = {0, 5}};
  roles::Payload payload;
  payload.label.teacher = "teacher/0";
  payload.logps = at::zeros({2, 2});
  roles::Samples samples;
  samples.generator = "generator/0";
  samples.token_ids = ids;
  const roles::WeightPart part{.name = "norm", .begin = {0}, .values = at::zeros({2})};

  std::vector<Seed> all;
  add_seeds(all, "containers", 0, containers);
  add_seeds(all, "empty", 1, Empty{});
  add_seeds(all, "info_request", 2, roles::InfoRequest{.tokenizer_size = 5});
  add_seeds(all, "teacher_info", 3, roles::TeacherInfo{.name = "teacher/0", .dtype = "float32"});
  add_seeds(all, "head_request", 4, roles::HeadRequest{.begin = 1, .end = 2});
  add_seeds(all, "head_reply", 5, roles::HeadReply{.weight = at::zeros({1, 2}, at::kBFloat16)});
  add_seeds(all, "forward_request", 6, forward);
  add_seeds(all, "payload", 7, payload);
  add_seeds(all, "pull_request", 8, roles::PullRequest{.key = "key", .part = 1});
  add_seeds(
      all, "generator_info", 9,
      roles::GeneratorInfo{.name = "generator/0",
                           .slices = {{.name = "norm", .shape = {4}, .begin = {0}, .size = {4}}}});
  add_seeds(all, "generate_request", 10,
            roles::GenerateRequest{.prompt_ids = ids,
                                   .cu_seqlens = ids,
                                   .sample_ids = ids.to(at::kLong),
                                   .draw = {.eos_token_ids = {2}, .stop = {"stop"}}});
  add_seeds(all, "collect_request", 11, roles::CollectRequest{.request_id = 3});
  add_seeds(all, "samples", 12, samples);
  add_seeds(all, "weight_bucket", 13, roles::WeightBucket{.version = 1, .parts = {part}});
  add_seeds(all, "commit_weights", 14,
            roles::CommitWeights{.version = 1, .receipts = {{.receiver = 0, .buckets = 1}}});
  add_seeds(all, "commit_reply", 15, roles::CommitReply{.version = 1, .checksum = 2});
  add_seeds(all, "many_samples", 16, std::vector<roles::Samples>{samples, samples});
  add_seeds(all, "replica_message", 17,
            roles::ReplicaLink::Message{.kind = roles::ReplicaLink::Message::Kind::kCompute,
                                        .batch = {.requests = {forward}, .keys = {"key"}}});
  add_seeds(all, "link_message", 18,
            launch::links::LinkMessage{.wanted_bytes = 64, .bytes = at::zeros({2}, at::kByte)});
  add_seeds(all, "pass_weights", 19,
            roles::PassWeights{.version = 1, .to = "generator/2", .address = "host:1"});
  add_seeds(all, "pass_reply", 20, roles::PassReply{.passed = false, .why = "away"});
  add_episode_seeds(all);
  return all;
}

}  // namespace

Target target() { return {"archive", decode, seeds}; }

}  // namespace retort::fuzz::archive
