// What the parts of a student's process are made with: its recipe, as each of them wants it.
#pragma once

#include <cstdint>
#include <functional>

#include "base/units.h"
#include "recipes/document/recipe.h"
#include "recipes/run/checkpoints/checkpoint_store.h"
#include "recipes/run/loop/train_loop.h"
#include "recipes/run/rank/rank_context.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

// Optimizer steps of the whole run. `steps_per_epoch` may read all data, and is called only where
// the recipe counts in epochs.
int64_t total_steps(const TrainOptions& train, const std::function<int64_t()>& steps_per_epoch);

// `max_steps`: those of the whole run, which the learning rate follows without lr_decay_steps.
roles::Trainer::Options trainer_options(const TrainOptions& train, int64_t max_steps);
TrainLoopOptions loop_options(const TrainOptions& train, int64_t max_steps);
CheckpointStore::Options checkpoint_options(const TrainOptions& train);

// How long a collective of the student may take: launch.collective_timeout, and at least as long as
// one rank may be kept from it by other roles and by rewards, while the others wait for that rank.
//
// Waits that come one after the other between two collectives of all ranks add up:
//
//   section       waits, in their order                                    at most
//   ------------  -------------------------------------------------------  -----------------------
//   start         of each role that serves, one role after the other:
//                   its processes to be ready, and connections to them     launch.load_timeout
//                   its handshakes, and a teacher's head (1)               rpc.timeout
//   draw          samples: a request to be accepted,                       rpc.timeout
//                   then drawn and sent back                               generation.timeout
//                   both again, with weight_sync.in_flight: abort, or
//                   when the generator may be started again (5)
//                   of an evaluation, whose weights wait for rollouts      generation.timeout
//                   that are finished with older ones
//                 scores: of each reward, two batches (2)                  rewards[].timeout
//                 room for a request to the roles that are frozen          rpc.timeout
//   push          requests to be accepted,                                 rpc.timeout
//                   and the last version to be in use                      generation.timeout
//                 weights to arrive, after a collective (3)                rpc.timeout
//   gradients     answers of frozen roles (4)                              rpc.timeout
//   any but the   a role whose replicas are all lost to be started         launch.load_timeout
//   start           again, with roles.<name>.restarts (5)
//
// The result is the longest section, which is the start or the draw, and some seconds more, so that
// the call which is waited for is the one that says why. Not every call counts:
//
// (1) The calls to one role count once, however many processes and messages there are: a process
//     that has published its address answers at once, or after one pass over a reference's weights.
// (2) Samples are scored as they arrive. When the last one has, two batches are left at most: the
//     one in work, maybe of a later rollout, and all the rest of this one. Each reward of type
//     command and http scores one after the other.
// (3) Each bucket of weights has a deadline of its own, and 8 are on their way to a replica. How
//     many follow one another depends on the model; one deadline is counted.
// (4) All requests of a step are on their way before it is computed, so the deadlines of several
//     teachers run side by side. Those that a replica lost or dropped are sent again: once more
//     rpc.timeout. An evaluation of dpo or kto asks for one batch after the other, on all ranks
//     alike; one answer is counted.
// (5) Once between two collectives, whatever is lost. What stands in a role's queue before a
//     request has no limit of its own (rpc.queue_timeout): where queues are longer than this sum,
//     launch.collective_timeout must be longer too.
Duration student_timeout(const Recipe& recipe);

// The world of the student's ranks.
parallel::World::Options student_world_options(const RankContext& context);

}  // namespace retort::recipes
