#include "roles/generator/weight_buckets.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "models/checkpoint/adapter.h"
#include "models/checkpoint/checkpoint.h"
#include "models/lora/lora_config.h"
#include "roles/generator/weight_box.h"

namespace retort::roles {

WeightSlice weight_slice(const parallel::NamedParameter& parameter) {
  const std::vector<int64_t> size = parameter.value.sizes().vec();
  WeightSlice slice{.name = parameter.name,
                    .shape = size,
                    .begin = std::vector<int64_t>(size.size(), 0),
                    .size = size};
  // A shard says what the whole is and where this part begins. Without one the parameter is whole.
  if (!parameter.shard.shape.empty()) {
    slice.shape = parameter.shard.shape;
    slice.begin.at(static_cast<size_t>(parameter.shard.dim)) = parameter.shard.begin;
  }
  return slice;
}

std::vector<WeightSlice> weight_slices(const models::Decoder& decoder) {
  std::vector<WeightSlice> slices;
  for (const parallel::NamedParameter& parameter : decoder.trained_parameters())
    slices.push_back(weight_slice(parameter));
  return slices;
}

std::vector<WeightBucket> make_weight_buckets(const models::Decoder& decoder,
                                              const std::vector<WeightSlice>& held,
                                              uint64_t version, int64_t bucket_bytes,
                                              int64_t sender) {
  return make_weight_buckets(decoder.trained_parameters(), held, version, bucket_bytes, sender);
}

std::vector<WeightBucket> make_weight_buckets(
    const std::vector<parallel::NamedParameter>& parameters, const std::vector<WeightSlice>& held,
    uint64_t version, int64_t bucket_bytes, int64_t sender) {
  std::map<std::string, const WeightSlice*> wanted;
  for (const WeightSlice& slice : held)
    wanted[slice.name] = &slice;

  std::vector<WeightBucket> buckets;
  int64_t room = 0;
  for (const parallel::NamedParameter& parameter : parameters) {
    const auto found = wanted.find(parameter.name);
    if (!parameter.shard.counted || found == wanted.end()) continue;

    // Only the part that both sides have of the parameter travels.
    const WeightSlice own = weight_slice(parameter);
    if (own.shape != found->second->shape || found->second->begin.size() != own.shape.size() ||
        found->second->size.size() != own.shape.size())
      throw Error(ErrorCode::kMismatch,
                  "the generator's parameter has another shape than the student's")
          .with("parameter", parameter.name);
    const Box box =
        intersection({own.begin, own.size}, {found->second->begin, found->second->size});
    if (box.numel() == 0) continue;
    const at::Tensor values = view_of(parameter.value.detach(), own.begin, box);

    // A bucket takes as many rows as fit into what is left of it, then a new one begins. A row that
    // is larger than bucket_bytes gets a larger bucket.
    const int64_t rows = box.size[0];
    const int64_t row_bytes = static_cast<int64_t>(values.nbytes()) / rows;
    for (int64_t begin = 0; begin < rows;) {
      if (room < row_bytes) {
        buckets.push_back({.version = version,
                           .sender = sender,
                           .index = static_cast<int64_t>(buckets.size()),
                           .parts = {}});
        room = std::max(bucket_bytes, row_bytes);
      }
      const int64_t count = std::min(rows - begin, room / row_bytes);
      std::vector<int64_t> at = box.begin;
      at[0] += begin;
      buckets.back().parts.push_back({.name = parameter.name,
                                      .begin = std::move(at),
                                      .values = values.narrow(0, begin, count)});
      room -= count * row_bytes;
      begin += count;
    }
  }
  return buckets;
}

std::string parameters_hash(const models::Decoder& decoder, const models::LoraConfig* adapter) {
  Sha256 hash;
  hash.update(models::describe_function(decoder.config()) + "\n" +
              models::dtype_name(decoder.dtype()) + "\n");
  if (adapter) hash.update(models::describe_adapter(decoder.config(), *adapter));
  return hash.hex_digest().substr(0, 16);
}

}  // namespace retort::roles
