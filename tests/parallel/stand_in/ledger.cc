#include "tests/parallel/stand_in/ledger.h"

namespace retort::test {

void Ledger::enter(const std::string& key, const StandInMember& member) {
  const std::lock_guard lock(mutex_);
  groups_[key].member = member;
}

void Ledger::leave(const std::string& key) {
  const std::lock_guard lock(mutex_);
  groups_.erase(key);
}

void Ledger::start(const std::string& key, Start& operation) {
  const std::lock_guard lock(mutex_);
  for (const auto& [other, group] : groups_)
    if (other != key) operation.before[other] = group.num_started;
  Group& group = groups_.at(key);
  operation.number = ++group.num_started;
  ++num_started_;
  group.unwaited[operation.number] = operation_text(group.member, operation);
}

void Ledger::waited(const std::string& key, uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto group = groups_.find(key);
  if (group != groups_.end()) group->second.unwaited.erase(number);
}

std::string Ledger::unwaited_text(const Group& group, const std::string& operation) {
  return operation + " was never waited for by " + group.member.rank() +
         ", which started it with " + group.member.others();
}

std::optional<std::string> Ledger::unwaited(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const Group& group = groups_.at(key);
  if (group.unwaited.empty()) return std::nullopt;
  return unwaited_text(group, group.unwaited.begin()->second);
}

std::optional<std::string> Ledger::dropped(const std::string& key, uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto group = groups_.find(key);
  if (group == groups_.end()) return std::nullopt;
  return unwaited_text(group->second, group->second.unwaited.at(number));
}

uint64_t Ledger::num_started(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto group = groups_.find(key);
  return group == groups_.end() ? 0 : group->second.num_started;
}

int64_t Ledger::num_started() const {
  const std::lock_guard lock(mutex_);
  return num_started_;
}

std::map<std::string, StandInMember> Ledger::groups() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, StandInMember> groups;
  for (const auto& [key, group] : groups_)
    groups[key] = group.member;
  return groups;
}

std::string Ledger::fail(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = text;
  return *failure_;
}

std::optional<std::string> Ledger::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace retort::test
