// What a rank's RPC agent is made with, and the device maps of a recipe as each role sees them.
//
// A recipe's rpc.device_maps is written from the student's side: {teacher: {0: 1}} joins the
// student's cuda:0 with cuda:1 of the teacher, both counted among the devices that a process sees.
// Both directions follow it: the teacher's agent has it turned round. A map stands for all ranks of
// its role; where a rank computes on another device than the one that its map names, what it
// receives goes on from there.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "recipes/run/rank/rank_context.h"
#include "rpc/agent.h"

namespace retort::recipes {

// Whether what `role` and the student exchange travels from device to device.
bool has_device_map(const Recipe& recipe, const std::string& role);

// Returns the device maps as the agents of `role` need them: peer role -> device here -> device
// there.
std::map<std::string, std::map<std::string, int64_t>> device_maps_of(const Recipe& recipe,
                                                                     const std::string& role);

// `device`: where this rank computes. Opens the CUDA module if the role has a device map.
// kInvalidArgument, naming map and entry, when it serves on a device that its map does not hold;
// kUnavailable without the module.
rpc::Agent::Options agent_options(const RankContext& context, at::Device device);

}  // namespace retort::recipes
