// The optimizer's part of a checkpoint.
#pragma once

#include <filesystem>

#include "models/checkpoint.h"
#include "models/decoder.h"
#include "parallel/adamw.h"
#include "parallel/world.h"

namespace retort::roles {

// optimizer.safetensors: tensors "<parameter>.exp_avg", "<parameter>.exp_avg_sq" and, unless the
// parameters are fp32, "<parameter>.master", fp32 with the whole parameter's shape, and the step in
// its metadata. The same file for every layout. Folder: "".

// The pieces that this rank writes; they alias the optimizer's state. No collectives.
models::CheckpointPart optimizer_part(const parallel::AdamW& optimizer,
                                      const models::Decoder& decoder, parallel::World& world);

// Reads the pieces that this rank holds, whichever layout wrote them. kMismatch naming a tensor
// that is missing, misshaped or of another model, kCorrupt for a file without a step; the optimizer
// is then as it was. No collectives.
void load_optimizer(parallel::AdamW& optimizer, const models::Decoder& decoder,
                    const std::filesystem::path& folder);

}  // namespace retort::roles
