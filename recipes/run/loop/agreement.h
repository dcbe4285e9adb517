// Checks that the ranks of the student train the same thing. Ranks that read other rows, or
// replicas whose parameters have drifted apart, fail nowhere by themselves: the numbers are wrong.
#pragma once

#include <string>

#include "models/decoder/decoder.h"
#include "parallel/world.h"

namespace retort::recipes {

// Every rank has the same fingerprint of its rows. Collectives: one all-gather of 32 bytes a rank
// on the world. Errors: kMismatch on every rank, naming those that differ from rank 0.
void check_same_rows(parallel::World& world, const std::string& fingerprint);

// Every rank begins after the same step. Collectives: one all-gather of 8 bytes a rank, world.
// Errors: kMismatch on every rank, naming those that do not begin where rank 0 does.
void check_same_start(parallel::World& world, int64_t step);

// The dp replicas hold the same bits. `when`: "at the start", for the message. Every rank reads its
// parameters once. Collectives: one all-gather of 8 bytes a rank on dp, one vote on the world.
// Errors: kMismatch on every rank, naming those that differ.
void check_replicas_agree(const models::Decoder& decoder, parallel::World& world,
                          const std::string& when);

}  // namespace retort::recipes
