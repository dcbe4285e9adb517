// Where the members of one group on the stand-in device read what the others have told: keys of the
// run's store.
//
// Errors: what c10d's stores throw when they are gone.
// Threads: any; each Board has a client of its own, so that a wait holds up nobody else.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace retort::test {

class Board {
 public:
  // `key`: as the Ledger's.
  Board(const c10::intrusive_ptr<c10d::Store>& store, std::string key, int position, int size);

  // What this rank tells about an operation, and what all of them have told, in the order of the
  // group: nothing if one is missing after a short wait.
  void tell(uint64_t number, const std::string& text);
  std::optional<std::vector<std::string>> read(uint64_t number);
  void forget(uint64_t number);  // what this rank has told of it
  std::optional<std::string> read_from(int position, uint64_t number);

  // That this rank starts no operation any more.
  void tell_end(uint64_t num_started);
  std::optional<uint64_t> end_of(int position);
  bool await_ends();  // false if one is missing after a short wait
  // Why it cannot go on.
  void tell_failure(const std::string& text);
  std::optional<std::string> failure_of(int position);

  // The board of another group of this process, at another place.
  Board of_group(std::string key, int position, int size) const;

 private:
  std::string key_of(const std::string& what, int position) const;
  std::vector<std::string> keys_of(const std::string& what) const;
  void set(const std::string& key, const std::string& text);
  std::optional<std::string> get(const std::string& key);
  bool await(const std::vector<std::string>& keys);

  c10::intrusive_ptr<c10d::Store> store_;
  std::string key_;
  int position_, size_;
};

}  // namespace retort::test
