// Checksums of weights that travel: of each part, of what a sender sent, of what a replica
// received.
#pragma once

#include <cstdint>
#include <vector>

#include "roles/generator/methods.h"

namespace retort::roles {

// Of each part, over its values, name and place. Computed where the values lie, by another rule on
// devices than on the host: nothing but numbers comes to the host, those of all parts in one copy.
// Where a device has kernels they are summed by one launch (kernels/checksum.cuh), elsewhere by
// operators of LibTorch, to the same numbers.
std::vector<uint64_t> part_checksums(const std::vector<WeightPart>& parts);
// The checksum of what came before and of this one.
uint64_t combined_checksum(uint64_t running, uint64_t checksum);
// Fills in the checksums of one bucket's parts and returns the running checksum of all parts so
// far. Columns of a matrix are copied here, so that they are contiguous. Weights on a device are
// copied to pinned host memory, or stay there with `on_device`; the host then waits for them once.
uint64_t seal(WeightBucket& bucket, uint64_t running, bool on_device = false);
// The same into memory that the bucket has for itself: the decoder may change then. Copied and
// summed up in one pass. Where `earlier`, a bucket of the same place that was made so, has memory
// of the same shape which nobody else holds, that is used again: new pages cost more than the copy.
uint64_t seal_copy(WeightBucket& bucket, uint64_t running, bool on_device,
                   const WeightBucket* earlier);
// What a replica's checksum must be: over its ranks' in order, each over its receipts' in the order
// of senders.
uint64_t weights_checksum(const std::vector<WeightReceipt>& receipts);
// The same from the ranks' checksums (WeightStaging::check).
uint64_t weights_checksum(const std::vector<uint64_t>& of_ranks);

}  // namespace retort::roles
