// The optimizer's part of a checkpoint.
#pragma once

#include <filesystem>
#include <optional>

#include "models/checkpoint/checkpoint.h"
#include "models/decoder/decoder.h"
#include "parallel/adamw.h"
#include "parallel/loss_scaler.h"
#include "parallel/world.h"

namespace retort::roles {

// optimizer.safetensors: tensors "<parameter>.exp_avg", "<parameter>.exp_avg_sq" and, unless the
// parameters are fp32, "<parameter>.master", fp32 with the whole parameter's shape, and the step in
// its metadata; there also the loss scale, where there is one, and the good steps that it has seen.
// The same file for every layout. Of a decoder with an adapter the parameters are the adapter's.
// Folder: "".

// The pieces that this rank writes; they alias the optimizer's state. No collectives.
models::CheckpointPart optimizer_part(const parallel::AdamW& optimizer,
                                      const std::optional<parallel::LossScaler>& scaler,
                                      const models::Decoder& decoder, parallel::World& world);

// Reads the pieces that this rank holds, whichever layout wrote them. kMismatch naming a tensor
// that is missing, misshaped or of another model, kCorrupt for a file without a step or with half a
// loss scale; the optimizer is then as it was. The file of a run that had another dtype has no loss
// scale: it begins anew. No collectives.
void load_optimizer(parallel::AdamW& optimizer, std::optional<parallel::LossScaler>& scaler,
                    const models::Decoder& decoder, const std::filesystem::path& folder);

}  // namespace retort::roles
