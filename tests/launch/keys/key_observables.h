// Where a recipe's keys show: what the program makes of a recipe before anything runs, as text.
#pragma once

#include <string>

#include "tests/launch/keys/key_rows.h"

namespace retort::test::observed {

// Of any recipe.
std::string plan(const Seen&);         // `retort plan --json`
std::string environment(const Seen&);  // the variables of every role's processes
std::string batch(const Seen&);        // the script of a job of Slurm
std::string manifests(const Seen&);    // what Kubernetes is told
std::string timeout(const Seen&);      // of the student's collectives
std::string roles(const Seen&);        // those that serve, in order
std::string device_maps(const Seen&);  // of the agents of every role
std::string agents(const Seen&);       // what they are made with, but for their device maps
std::string inputs(const Seen&);       // files and folders besides models and data
std::string trainer(const Seen&);      // the trainer's options, and the learning rate of each step
std::string loop(const Seen&);         // steps between lines, evaluations and checkpoints

// Of prompt/completion rows and the like.
std::string batches(const Seen&);           // the first steps: tokens and targets
std::string batches_or_error(const Seen&);  // or what stops them
std::string evaluation(const Seen&);        // the batches of data.eval

// What the losses give for fixed numbers, or what they are asked for.
std::string cross_entropy(const Seen&);
std::string divergence(const Seen&);
std::string payload(const Seen&);          // what a teacher is asked for
std::string on_policy_steps(const Seen&);  // which of the first steps
std::string preference(const Seen&);
std::string preference_prefetch(const Seen&);
std::string kto(const Seen&);
std::string kto_prefetch(const Seen&);
std::string bradley_terry(const Seen&);
std::string policy(const Seen&);

// Of recipes that generate.
std::string draw(const Seen&);    // what a generator is asked for
std::string engine(const Seen&);  // what it is made with
std::string sync(const Seen&);    // how weights are pushed
// How samples become episodes, and what answers them.
std::string episodes(const Seen&);
std::string scores(const Seen&);  // names and rewards of fixed completions
std::string kept(const Seen&);    // which of fixed samples are trained on

}  // namespace retort::test::observed
