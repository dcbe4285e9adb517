// Which operators the stand-in device has computed: what a device would have launched for LibTorch.
// Views are none, nor are copies between host and device (stand_in_device.h has those).
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace retort::test {

// Those of all threads while this lives: one at a time in a process.
class RecordedOperators {
 public:
  RecordedOperators();
  ~RecordedOperators();
  RecordedOperators(const RecordedOperators&) = delete;
  RecordedOperators& operator=(const RecordedOperators&) = delete;

  // How often each was computed since the last call: "aten::mm"; copies on the device "copy".
  std::map<std::string, int64_t> take();
  // Those since the last take() that had a tensor of at least so many elements.
  std::set<std::string> of_at_least(int64_t elements) const;
};

// For the device. Any thread.
void note_stand_in_operator(const std::string& name, c10::ArrayRef<c10::IValue> arguments);

}  // namespace retort::test
