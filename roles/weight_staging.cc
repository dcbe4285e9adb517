#include "roles/weight_staging.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "base/checksum.h"
#include "base/error.h"
#include "base/hash.h"
#include "models/checkpoint.h"

namespace retort::roles {
namespace {

uint64_t checksum_of(const at::Tensor& values, const WeightPart& part) {
  const at::Tensor flat = values.contiguous();
  uint64_t checksum = checksum64({static_cast<const std::byte*>(flat.const_data_ptr()), static_cast<size_t>(flat.nbytes())},
                                 static_cast<uint64_t>(part.row_begin));
  return checksum64(std::as_bytes(std::span(part.name)), checksum);
}

uint64_t combined(uint64_t running, uint64_t checksum) { return checksum64(std::as_bytes(std::span(&checksum, 1)), running); }

}  // namespace

std::vector<WeightBucket> make_weight_buckets(const models::Decoder& decoder, uint64_t version, int64_t bucket_bytes) {
  std::vector<WeightBucket> buckets;
  int64_t room = 0;
  for (const parallel::NamedParameter& parameter : decoder.parameters()) {
    const at::Tensor values = parameter.value.detach();
    const int64_t rows = values.size(0), row_bytes = static_cast<int64_t>(values.nbytes()) / std::max<int64_t>(rows, 1);
    for (int64_t begin = 0; begin < rows;) {
      if (room < row_bytes) {
        buckets.push_back({.version = version, .index = static_cast<int64_t>(buckets.size()), .parts = {}});
        room = std::max(bucket_bytes, row_bytes);
      }
      const int64_t count = std::min(rows - begin, row_bytes == 0 ? rows : room / row_bytes);
      buckets.back().parts.push_back({.name = parameter.name, .row_begin = begin, .values = values.narrow(0, begin, count)});
      room -= count * row_bytes;
      begin += count;
    }
  }
  return buckets;
}

uint64_t seal(WeightBucket& bucket, uint64_t running) {
  for (WeightPart& part : bucket.parts) {
    part.checksum = checksum_of(part.values, part);
    running = combined(running, part.checksum);
  }
  return running;
}

std::string parameters_hash(const models::Decoder& decoder) {
  Sha256 hash;
  hash.update(models::describe_function(decoder.config()) + "\n");
  for (const parallel::NamedParameter& parameter : decoder.parameters()) {
    std::string line = parameter.name;
    for (const int64_t size : parameter.value.sizes()) line += " " + std::to_string(size);
    hash.update(line + " " + models::dtype_name(parameter.value.scalar_type()) + "\n");
  }
  return hash.hex_digest().substr(0, 16);
}

WeightStaging::WeightStaging(models::Decoder& decoder) : decoder_(decoder) {
  for (const parallel::NamedParameter& parameter : decoder_.parameters()) parameters_[parameter.name] = parameter.value.detach();
}

void WeightStaging::add(WeightBucket bucket, uint64_t in_use) {
  if (bucket.version <= in_use)
    throw Error(ErrorCode::kMismatch, "weights of version " + std::to_string(bucket.version) + " came, but version " +
                                          std::to_string(in_use) + " is in use already");
  if (bucket.version != version_) buckets_.clear();
  version_ = bucket.version;
  for (const WeightPart& part : bucket.parts) {
    const auto refuse = [&](const std::string& what) {
      throw Error(ErrorCode::kCorrupt, "pushed weights: " + what).with("parameter", part.name).with("version", bucket.version);
    };
    const auto found = parameters_.find(part.name);
    if (found == parameters_.end()) refuse("this model has no such parameter; trainer and generator must have one shape");
    const at::Tensor& own = found->second;
    if (!part.values.defined() || part.values.dim() != own.dim() || part.values.scalar_type() != own.scalar_type() ||
        part.values.sizes().slice(1) != own.sizes().slice(1) || part.row_begin < 0 ||
        part.row_begin + part.values.size(0) > own.size(0))
      refuse("shape or dtype differ from the generator's");
    if (checksum_of(part.values, part) != part.checksum) refuse("the checksum differs: the values were damaged on their way");
  }
  const int64_t index = bucket.index;
  if (!buckets_.emplace(index, std::move(bucket)).second)
    throw Error(ErrorCode::kCorrupt, "bucket " + std::to_string(index) + " of pushed weights came twice");
}

uint64_t WeightStaging::check(const CommitWeights& commit) const {
  if (commit.version != version_ || static_cast<int64_t>(buckets_.size()) != commit.buckets)
    throw Error(ErrorCode::kCorrupt, "a commit of pushed weights before all of them are there")
        .with("version", commit.version)
        .with("staged_version", version_)
        .with("buckets", commit.buckets)
        .with("staged_buckets", buckets_.size());
  uint64_t running = 0;
  std::map<std::string, int64_t> rows;
  for (const auto& [index, bucket] : buckets_)
    for (const WeightPart& part : bucket.parts) {
      running = combined(running, part.checksum);
      if (rows[part.name] != part.row_begin)
        throw Error(ErrorCode::kCorrupt, "rows of pushed weights are missing").with("parameter", part.name);
      rows[part.name] += part.values.size(0);
    }
  for (const auto& [name, tensor] : parameters_)
    if (rows[name] != tensor.size(0))
      throw Error(ErrorCode::kCorrupt, "pushed weights are incomplete").with("parameter", name).with("rows", rows[name]);
  if (running != commit.checksum)
    throw Error(ErrorCode::kCorrupt, "the checksum of the pushed weights differs from the sender's");
  return running;
}

void WeightStaging::apply() {
  const c10::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> in_use;
  for (const parallel::NamedParameter& parameter : decoder_.parameters()) in_use[parameter.name] = parameter.value;
  for (auto& [index, bucket] : buckets_)
    for (WeightPart& part : bucket.parts) {
      at::Tensor& own = in_use.at(part.name);
      if (part.values.size(0) == own.size(0) && part.values.is_contiguous())
        own.set_data(part.values);  // what arrived takes the place of what was there
      else
        own.narrow(0, part.row_begin, part.values.size(0)).copy_(part.values);
      part.values.reset();
    }
  buckets_.clear();
  for (auto& [name, own] : in_use) parameters_[name] = own.detach();
}

}  // namespace retort::roles
