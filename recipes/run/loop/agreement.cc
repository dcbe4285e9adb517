#include "recipes/run/loop/agreement.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/process_name.h"
#include "base/sizes.h"
#include "parallel/vote.h"

namespace retort::recipes {
namespace {

at::Tensor bytes_of(const void* first, size_t size) {
  at::Tensor bytes = at::empty({to_int64(size)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), first, size);
  return bytes;
}

// The ranks of a group whose bytes are not those of its first one: "student/1, student/3".
std::string dissenters(parallel::Group& group, const at::Tensor& mine) {
  const at::Tensor all = group.all_gather(mine);
  std::string names;
  for (int i = 1; i < group.size(); ++i) {
    if (at::equal(all[i], all[0])) continue;
    names += (names.empty() ? "" : ", ") + process_name("student", group.ranks()[to_size(i)]);
  }
  return names;
}

// The checksum is of the bits of the weights, and of the adapter that is trained beside them.
uint64_t checksum_of(const models::Decoder& decoder) {
  std::vector<parallel::NamedParameter> parameters = decoder.parameters();
  if (decoder.lora())
    for (parallel::NamedParameter& parameter : decoder.trained_parameters())
      parameters.push_back(std::move(parameter));

  uint64_t sum = 0;
  for (const parallel::NamedParameter& parameter : parameters) {
    const at::Tensor host = parameter.value.detach().cpu().contiguous();
    const auto* first = static_cast<const std::byte*>(host.const_data_ptr());
    sum = checksum64({first, host.nbytes()}, sum);
  }
  return sum;
}

}  // namespace

void check_same_rows(parallel::World& world, const std::string& fingerprint) {
  if (world.all().size() == 1) return;
  const std::string digest = sha256_hex(fingerprint).substr(0, 32);
  const std::string others = dissenters(world.all(), bytes_of(digest.data(), digest.size()));
  if (others.empty()) return;
  throw Error(ErrorCode::kMismatch,
              others +
                  " read other training data, columns or another tokenizer than student/0; "
                  "every host must see the same files");
}

void check_same_start(parallel::World& world, int64_t step) {
  if (world.all().size() == 1) return;
  const std::string others = dissenters(world.all(), bytes_of(&step, sizeof step));
  if (others.empty()) return;
  throw Error(ErrorCode::kMismatch, others + " begin after another step than " +
                                        process_name("student", 0) +
                                        "; every host must see the same checkpoints in output_dir");
}

void check_replicas_agree(const models::Decoder& decoder, parallel::World& world,
                          const std::string& when) {
  if (world.dp().size() == 1) return;
  parallel::run_on_all(world.all(), [&] {
    // A dp group compares the part of the model that its ranks share, so a difference shows in that
    // group alone: the vote tells the other groups.
    const uint64_t sum = checksum_of(decoder);
    const std::string others = dissenters(world.dp(), bytes_of(&sum, sizeof sum));
    if (others.empty()) return;
    throw Error(ErrorCode::kMismatch,
                "replicas of the student differ " + when + ": the parameters of " + others +
                    " are not those of " + process_name("student", world.dp().ranks()[0]) +
                    "; every host must load the same model, and memory that changes bits by itself "
                    "shows like this, too");
  });
}

}  // namespace retort::recipes
