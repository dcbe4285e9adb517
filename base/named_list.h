// Values by name that keep the order in which they were added; for what people wrote in an order.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace retort {

// Looking a name up takes time in proportion to the number of names: for tens of them, not
// thousands.
template <class T>
class NamedList {
 public:
  using mapped_type = T;
  using Entry = std::pair<std::string, T>;

  // The value of `name`, made if there is none yet.
  T& operator[](std::string_view name) {
    for (Entry& entry : entries_)
      if (entry.first == name) return entry.second;
    return entries_.emplace_back(std::string(name), T{}).second;
  }
  // std::out_of_range naming what was asked for.
  const T& at(std::string_view name) const {
    for (const Entry& entry : entries_)
      if (entry.first == name) return entry.second;
    throw std::out_of_range("nothing is named '" + std::string(name) + "'");
  }
  T& at(std::string_view name) { return const_cast<T&>(std::as_const(*this).at(name)); }
  bool contains(std::string_view name) const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [&](const Entry& entry) { return entry.first == name; });
  }

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  void clear() { entries_.clear(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  auto begin() { return entries_.begin(); }
  auto end() { return entries_.end(); }

 private:
  std::vector<Entry> entries_;
};

}  // namespace retort
