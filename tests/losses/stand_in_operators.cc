#include "tests/losses/stand_in_operators.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace retort::test {
namespace {

struct OperatorLog {
  std::mutex mutex;
  bool records = false;
  std::map<std::string, int64_t> counts, largest;
};

OperatorLog& operator_log() {
  static OperatorLog& log = *new OperatorLog;
  return log;
}

}  // namespace

RecordedOperators::RecordedOperators() {
  const std::lock_guard lock(operator_log().mutex);
  if (std::exchange(operator_log().records, true))
    throw std::runtime_error("the operators of the stand-in are recorded already");
}

RecordedOperators::~RecordedOperators() {
  take();
  const std::lock_guard lock(operator_log().mutex);
  operator_log().records = false;
}

std::map<std::string, int64_t> RecordedOperators::take() {
  const std::lock_guard lock(operator_log().mutex);
  operator_log().largest.clear();
  return std::exchange(operator_log().counts, {});
}

std::set<std::string> RecordedOperators::of_at_least(int64_t elements) const {
  const std::lock_guard lock(operator_log().mutex);
  std::set<std::string> names;
  for (const auto& [name, largest] : operator_log().largest)
    if (largest >= elements) names.insert(name);
  return names;
}

void note_stand_in_operator(const std::string& name, c10::ArrayRef<c10::IValue> arguments) {
  int64_t most = 0;
  for (const c10::IValue& argument : arguments)
    if (argument.isTensor() && argument.toTensor().defined())
      most = std::max(most, argument.toTensor().numel());

  const std::lock_guard lock(operator_log().mutex);
  if (!operator_log().records) return;
  ++operator_log().counts[name];
  int64_t& largest = operator_log().largest[name];
  largest = std::max(largest, most);
}

}  // namespace retort::test
