// The table for the vector width that the including file is compiled for. Private to models/.
#pragma once

#include "models/generation/cpu_kernels/vector_attention.h"
#include "models/generation/cpu_kernels/vector_kernels.h"
#include "models/generation/cpu_kernels/vector_products.h"
#include "models/generation/cpu_kernels/vector_sampling.h"

namespace retort::models {
namespace {

constexpr VectorKernels kKernels{
    product_float, product_bfloat16, norm, swiglu,    geglu, rotate, softcap, attend, range,
    find,          exponentials,     race, plain_race};

}  // namespace
}  // namespace retort::models
