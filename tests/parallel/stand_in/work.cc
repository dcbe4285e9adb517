#include "tests/parallel/stand_in/work.h"

#include <stdexcept>
#include <utility>

#include "base/sizes.h"
#include "tests/losses/stand_in_device.h"

namespace retort::test {
namespace {

// Not a number in every floating-point dtype, -1 in integers.
constexpr char kNothing = '\xff';

std::string nothing(const at::Tensor& tensor) {
  return std::string(to_size(tensor.nbytes()), kNothing);
}

const at::Tensor& filled(const at::Tensor& tensor) {
  const std::string bytes = nothing(tensor);
  write_stand_in(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

}  // namespace

std::string bytes_of(const at::Tensor& tensor) {
  std::string bytes(to_size(tensor.nbytes()), '\0');
  read_stand_in(bytes.data(), tensor.const_data_ptr(), bytes.size());
  return bytes;
}

StandInWork::StandInWork(Origin origin, at::Tensor out, at::Tensor in)
    : c10d::Work(origin.member.position),
      origin_(std::move(origin)),
      out_(filled(out)),
      in_(std::move(in)),
      in_bytes_(bytes_of(in_)) {}

StandInWork::~StandInWork() {
  // After a failure nobody need wait any more.
  if (waited_ || exception_ || origin_.ledger->failure()) return;
  if (const auto text = origin_.ledger->dropped(origin_.key, origin_.start.number))
    origin_.ledger->fail(*text);
}

bool StandInWork::wait(std::chrono::milliseconds) {
  if (waited_) return true;
  c10d::Work::wait(kNoTimeout);
  check_untouched();
  write_stand_in(out_.mutable_data_ptr(), result_.data(), result_.size());
  waited_ = true;
  origin_.ledger->waited(origin_.key, origin_.start.number);
  return true;
}

void StandInWork::check_untouched() {
  const bool result_is_there = bytes_of(out_) != nothing(out_);
  if (!result_is_there && bytes_of(in_) == in_bytes_) return;
  throw std::runtime_error(origin_.ledger->fail(
      operation_text(origin_.member, origin_.start) + ": " + origin_.member.rank() +
      " wrote to its " + (result_is_there ? "result" : "input") +
      " before it had waited; it started it with " + origin_.member.others()));
}

void StandInWork::complete(std::string result) {
  result_ = std::move(result);
  finish();
}

void StandInWork::fail(const std::string& text) {
  finish(std::make_exception_ptr(std::runtime_error(text)));
}

}  // namespace retort::test
