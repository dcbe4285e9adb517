// Weights cut into what travels: which part of each parameter a rank holds, and buckets of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/decoder/decoder.h"
#include "roles/generator/methods.h"

namespace retort::roles {

// What this process holds of a parameter.
WeightSlice weight_slice(const parallel::NamedParameter& parameter);
// Of all that is pushed to `decoder` (models::Decoder::trained_parameters), in its order: the
// model, or the adapter that it computes with.
std::vector<WeightSlice> weight_slices(const models::Decoder& decoder);

// What of the slices that `decoder` counts (parallel::ParameterShard::counted) lies within `held`,
// a receiver's slices, cut into buckets of at most `bucket_bytes` (a single row may be larger), in
// the decoder's order; a parameter that does not fit into what is left of a bucket is cut between
// rows. No tensor is copied. The same for every call on decoders of the same shape and placement.
// Every element of the model is counted on one rank of a trainer's replica: together their buckets
// for one receiver hold each of its elements once. kMismatch when a parameter has another shape
// there.
std::vector<WeightBucket> make_weight_buckets(const models::Decoder& decoder,
                                              const std::vector<WeightSlice>& held,
                                              uint64_t version, int64_t bucket_bytes,
                                              int64_t sender = 0);
// The same of other tensors than trained_parameters(): of the model with an adapter merged into it
// (models::merged_parameters).
std::vector<WeightBucket> make_weight_buckets(
    const std::vector<parallel::NamedParameter>& parameters, const std::vector<WeightSlice>& held,
    uint64_t version, int64_t bucket_bytes, int64_t sender = 0);
// SHA-256 over models::describe_function, which decides the names and shapes of the whole model's
// parameters, and their dtype, and over the settings of `adapter` where that alone is pushed (null:
// the model is); 16 hex digits. The same for every placement.
std::string parameters_hash(const models::Decoder& decoder, const models::LoraConfig* adapter);

}  // namespace retort::roles
