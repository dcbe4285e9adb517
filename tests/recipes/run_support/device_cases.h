// Whole runs of goldens/ whose roles compute on a device, beside the same runs on the CPU and the
// numbers that PyTorch and TRL have for them.
#pragma once

#include <nlohmann/json.hpp>

#include <iosfwd>
#include <string>
#include <vector>

#include "tests/recipes/run_support/run_support.h"

namespace retort::test {

struct DeviceCase {
  std::string golden, changes;     // files of goldens/
  std::string name;                // of the case there
  std::vector<std::string> roles;  // those on the device
  // A run on the device for each: roles whose tensors stay on devices, as `rpc.device_maps` names
  // them; empty: all is copied.
  std::vector<std::string> maps;
  std::vector<std::string> metrics;
  std::string model = "qwen3";  // that the student begins with, of goldens/
};
// Every payload of a teacher, dpo, kto, a reward model, and grpo with and without a device map.
std::vector<DeviceCase> device_cases();
std::string name_of(const DeviceCase& c);
void PrintTo(const DeviceCase& c, std::ostream* out);  // for GoogleTest

// The recipe of a case in goldens/: its text, which those of sft (qwen3) and distill do not hold.
std::string recipe_of(const nlohmann::json& golden);
// What a golden has of each step for a metric's name.
std::vector<double> golden_metric(const nlohmann::json& golden, const std::string& metric);

// How far a run on the device may be from the others.
struct DeviceBounds {
  double metrics = 1e-6;     // absolute for values below 1, else relative
  double parameters = 1e-6;  // the 2-norm of the difference from those of the CPU by theirs
};
// Runs the case on the CPU, and with its roles on the device, whose name each must log ("cuda:0"),
// for each of its device maps: the metrics and the parameters at the end of the golden and of the
// CPU, the same samples.
void expect_trains_as_on_the_cpu(const DeviceCase& c, const std::string& device,
                                 const DeviceBounds& bounds);

}  // namespace retort::test
