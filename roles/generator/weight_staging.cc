#include "roles/generator/weight_staging.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "base/error.h"
#include "roles/generator/weight_box.h"
#include "roles/generator/weight_buckets.h"
#include "roles/generator/weight_checksum.h"
#include "rpc/device_transfer.h"

namespace retort::roles {
namespace {

Box box_of(const WeightPart& part) { return {part.begin, part.values.sizes().vec()}; }

[[noreturn]] void refuse(const WeightPart& part, uint64_t version, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, "pushed weights: " + what)
      .with("parameter", part.name)
      .with("version", version);
}

// Refuses values that are not those that were sealed. All parts are summed before one is looked at,
// because the host waits for a device as often as it looks.
void check_values(const WeightBucket& bucket) {
  const std::vector<uint64_t> found = part_checksums(bucket.parts);
  for (size_t i = 0; i < found.size(); ++i)
    if (found[i] != bucket.parts[i].checksum)
      refuse(bucket.parts[i], bucket.version,
             "the checksum differs: the values were damaged on their way");
}

}  // namespace

WeightStaging::WeightStaging(models::Decoder& decoder) : decoder_(decoder) {
  for (const parallel::NamedParameter& parameter : decoder_.trained_parameters())
    parameters_[parameter.name] = {parameter.value.scalar_type(), weight_slice(parameter)};
}

void WeightStaging::check_part(const WeightPart& part, uint64_t version) const {
  const auto found = parameters_.find(part.name);
  if (found == parameters_.end())
    refuse(part, version,
           "this model has no such parameter; trainer and generator must have one shape");
  const Own& own = found->second;
  const size_t dims = own.slice.begin.size();
  if (!part.values.defined() || part.values.scalar_type() != own.dtype ||
      part.values.dim() != static_cast<int64_t>(dims) || part.begin.size() != dims)
    refuse(part, version, "shape or dtype differ from the generator's");

  // Every element must lie within what this rank holds. Differences are compared, not sums, because
  // numbers from the wire may be so large that a sum overflows.
  for (size_t d = 0; d < part.begin.size(); ++d) {
    const int64_t before = own.slice.begin[d];
    if (part.begin[d] < before || part.begin[d] - before > own.slice.size[d] ||
        part.values.size(static_cast<int64_t>(d)) > own.slice.size[d] - (part.begin[d] - before))
      refuse(part, version,
             "shape or dtype differ from the generator's, or elements lie outside what this rank "
             "holds");
  }
}

// Refuses a version that comes too early or too late. Called with the lock held.
void WeightStaging::check_due(uint64_t version) const {
  if (checked_ > 0)
    throw Error(ErrorCode::kUnavailable,
                "weights.bucket: weights of version " + std::to_string(checked_) +
                    " are committed and wait for samples in work; wait until they are in use");
  const auto refuse_late = [&](uint64_t there, const std::string& state) {
    throw Error(ErrorCode::kMismatch, "weights of version " + std::to_string(version) +
                                          " came, but version " + std::to_string(there) + " is " +
                                          state + " already");
  };
  if (version <= in_use_) refuse_late(in_use_, "in use");
  if (version < version_) refuse_late(version_, "staged");
}

void WeightStaging::add(WeightBucket bucket, const std::string& from) {
  {
    std::lock_guard lock(mutex_);
    check_due(bucket.version);
  }
  // The checksums are formed without the lock.
  for (const WeightPart& part : bucket.parts) {
    rpc::use_on_current_stream(part.values);
    check_part(part, bucket.version);
  }
  check_values(bucket);

  // Meanwhile other weights may have been checked or put in use, so the version is looked at again.
  // Only a sound bucket of a newer version makes what is staged worthless; that is freed without
  // the lock.
  Buckets worthless;
  std::lock_guard lock(mutex_);
  check_due(bucket.version);
  if (bucket.version > version_) worthless.swap(buckets_);
  version_ = bucket.version;
  const std::pair<int64_t, int64_t> key{bucket.sender, bucket.index};
  buckets_.insert_or_assign(key, Staged{std::move(bucket), from});
}

bool WeightStaging::forget_lost(const std::function<std::set<std::string>()>& connected) {
  std::lock_guard lock(mutex_);
  if (checked_ > 0 || buckets_.empty()) return false;
  const std::set<std::string> there = connected();
  return std::erase_if(buckets_,
                       [&](const auto& entry) { return !there.contains(entry.second.from); }) > 0;
}

std::optional<WeightBucket> WeightStaging::find(uint64_t version, int64_t sender,
                                                int64_t index) const {
  std::lock_guard lock(mutex_);
  const auto found = buckets_.find({sender, index});
  if (version != version_ || found == buckets_.end()) return std::nullopt;
  WeightBucket bucket = found->second.bucket;
  bucket.origin = found->second.from;
  return bucket;
}

bool WeightStaging::empty() const {
  std::lock_guard lock(mutex_);
  return buckets_.empty();
}

uint64_t WeightStaging::in_use() const {
  std::lock_guard lock(mutex_);
  return in_use_;
}

uint64_t WeightStaging::checked() const {
  std::lock_guard lock(mutex_);
  return checked_;
}

uint64_t WeightStaging::check(const CommitWeights& commit) {
  std::lock_guard lock(mutex_);
  // `arrived` counts what came from each sender: buckets, and the running checksum.
  std::map<int64_t, std::pair<int64_t, uint64_t>> arrived;
  for (const auto& [key, staged] : buckets_) {
    auto& [count, running] = arrived[key.first];
    ++count;
    for (const WeightPart& part : staged.bucket.parts)
      running = combined_checksum(running, part.checksum);
  }

  // That must be what the receipts for this rank say, and from the senders that they name alone.
  const int64_t rank = decoder_.placement().tp_rank();
  const auto early = [&](const WeightReceipt& receipt, int64_t there) {
    throw Error(ErrorCode::kUnavailable, "a commit of pushed weights before all of them are there")
        .with("version", commit.version)
        .with("staged_version", version_)
        .with("sender", receipt.sender)
        .with("buckets", receipt.buckets)
        .with("staged_buckets", there);
  };
  uint64_t all = 0;
  std::vector<const WeightReceipt*> mine;
  for (const WeightReceipt& receipt : commit.receipts) {
    if (receipt.receiver != rank) continue;
    mine.push_back(&receipt);
    const auto [there, running] = arrived[receipt.sender];
    if (commit.version != version_ || there != receipt.buckets) early(receipt, there);
    all = combined_checksum(all, running);
    arrived.erase(receipt.sender);
  }
  // Without a receipt for this rank nothing says what it should have.
  if (mine.empty()) early({}, static_cast<int64_t>(buckets_.size()));
  if (!arrived.empty())
    throw Error(ErrorCode::kCorrupt,
                "pushed weights came from a sender that the commit does not name")
        .with("sender", arrived.begin()->first);

  // The numbers of buckets agree; whether their parts make up the parameters is another question.
  check_complete();

  // `all` is the checksum of what arrived here, `stated` that of what the senders say they sent.
  uint64_t stated = 0;
  for (const WeightReceipt* receipt : mine)
    stated = combined_checksum(stated, receipt->checksum);
  if (all != stated)
    throw Error(ErrorCode::kCorrupt,
                "the checksum of the pushed weights differs from the sender's");
  checked_ = version_;
  return all;
}

void WeightStaging::uncheck() {
  std::lock_guard lock(mutex_);
  checked_ = 0;
}

// Every element of every parameter must have come exactly once. Called with the lock held.
void WeightStaging::check_complete() const {
  std::map<std::string, std::vector<Box>> boxes;
  for (const auto& [key, staged] : buckets_)
    for (const WeightPart& part : staged.bucket.parts)
      boxes[part.name].push_back(box_of(part));
  for (const auto& [name, own] : parameters_) {
    std::vector<Box>& parts = boxes[name];
    const int64_t expected = Box{own.slice.begin, own.slice.size}.numel();

    // Boxes inside the slice (check_part) that do not overlap and have as many elements as it has
    // cover it.
    int64_t count = 0;
    for (const Box& part : parts)
      count += part.numel();
    if (any_overlap(std::move(parts)))
      throw Error(ErrorCode::kCorrupt, "elements of pushed weights came twice")
          .with("parameter", name);
    if (count != expected)
      throw Error(ErrorCode::kCorrupt,
                  "pushed weights are incomplete: " + std::to_string(expected - count) + " of " +
                      std::to_string(expected) + " elements are missing")
          .with("parameter", name);
  }
}

void WeightStaging::apply() {
  const c10::NoGradGuard no_grad;
  // While checked_ is set nothing is added, so the values can be moved without the lock.
  Buckets staged;
  {
    std::lock_guard lock(mutex_);
    RETORT_CHECK(checked_ > 0) << "weights that were not checked";
    staged.swap(buckets_);
  }

  // These are the decoder's own tensors: what is set in them is set in the model.
  std::map<std::string, at::Tensor> own;
  for (const parallel::NamedParameter& parameter : decoder_.trained_parameters())
    own[parameter.name] = parameter.value;

  // On a device values are copied into the tensors that are in use, which should take it less than
  // a millisecond for a GB (computed from the rate of its memory, not measured): launches that were
  // recorded with their addresses may be repeated then. On the CPU nobody records addresses, and
  // the copy would keep a core from drawing for as long as memory takes, so that a whole parameter
  // takes the place of what was there.
  const bool takes_memory = decoder_.device().is_cpu();
  for (auto& [key, arrived] : staged)
    for (WeightPart& part : arrived.bucket.parts) {
      at::Tensor& parameter = own.at(part.name);
      rpc::use_on_current_stream(part.values);
      if (takes_memory && part.values.is_cpu() && part.values.is_contiguous() &&
          part.values.sizes() == parameter.sizes())
        parameter.set_data(part.values);
      else
        view_of(parameter, parameters_.at(part.name).slice.begin, box_of(part)).copy_(part.values);
      part.values.reset();
    }

  std::lock_guard lock(mutex_);
  in_use_ = checked_;
  checked_ = 0;
  version_ = 0;
}

}  // namespace retort::roles
