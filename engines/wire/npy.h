// Arrays as NumPy writes them into files (.npy), which some servers answer with.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace retort::engines {

// A matrix of float32, little-endian and row by row: versions 1 to 3 of the format. kCorrupt,
// saying what stands there instead, for anything else; every number may be what it will.
at::Tensor read_npy_matrix(std::span<const uint8_t> bytes);

}  // namespace retort::engines
