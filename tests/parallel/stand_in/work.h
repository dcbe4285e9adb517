// One operation of a group on the stand-in device, as its caller holds it: until wait() nobody sees
// its result, and nobody may touch its tensors.
//
// Errors: std::runtime_error, as c10d's: that the operation failed; that a tensor of the call was
//   written to before wait(). A work that is gone without a wait() is a failure in the ledger.
// Threads: the constructor and wait() from the caller's, complete() and fail() from the group's.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "tests/parallel/stand_in/ledger.h"
#include "tests/parallel/stand_in/start.h"

namespace retort::test {

// The bytes of a contiguous tensor of the device.
std::string bytes_of(const at::Tensor& tensor);

class StandInWork final : public c10d::Work {
 public:
  // Who has started which operation.
  struct Origin {
    std::shared_ptr<Ledger> ledger;
    std::string key;  // of the group, as the Ledger's
    StandInMember member;
    Start start;
  };
  // Fills `out` with what is no number.
  StandInWork(Origin origin, at::Tensor out, at::Tensor in);
  ~StandInWork() override;

  // Blocks until the operation is done, as a stream would, and puts the result in its place.
  bool wait(std::chrono::milliseconds timeout) override;
  void complete(std::string result);  // the bytes of `out`
  void fail(const std::string& text);

 private:
  void check_untouched();

  const Origin origin_;
  const at::Tensor out_, in_;
  const std::string in_bytes_;  // once `out` was filled, of which it may be a part
  std::string result_;
  bool waited_ = false;
};

}  // namespace retort::test
