// Weights that are no numbers, for the message about a loss that is none.
#pragma once

#include <string>

#include "models/decoder.h"

namespace retort::recipes {

// Of the first parameter of this rank, or of its adapter, that holds NaN or an infinity: its name
// and how many, "'model.norm.weight' holds 3 of 64 numbers that are not finite"; "" if none does.
// Reads every parameter; on a device it waits for it.
std::string damaged_weights(const models::Decoder& decoder);

}  // namespace retort::recipes
