// One optimizer step of the loop: the gradients of its micro-batches, and the update.
#pragma once

#include <cstddef>

#include "parallel/world.h"
#include "recipes/run/loop/objective.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

// The forward passes and backward passes of one step. Every rank votes once, after its last forward
// pass or its first failure, so that no rank enters the gradient reduction alone. In a pipeline a
// failing rank ends the run instead: the others wait for its activations, and see it gone.
//
// A loss that is not finite is an error, or with `may_skip` makes that of the sums not finite. On a
// device the losses are looked at after the last backward pass, all together: the host waits for
// the device once, and one more vote tells all ranks.
StepSums compute_gradients(roles::Trainer& trainer, parallel::World& world, size_t micro_batches,
                           Objective& objective, bool may_skip);

// The update, unless the loss or the gradient is not finite and as many steps in a row may be
// skipped. The sums and the gradient's norm are those of all ranks, which decide alike.
roles::Trainer::Update update_or_skip(roles::Trainer& trainer, double loss, double divisor,
                                      bool may_skip);

}  // namespace retort::recipes
