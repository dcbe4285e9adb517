// The vote of a group's ranks on whether one of them has failed, so that no rank goes alone into
// the next collective.
//
// Use: around what a rank may fail at without the others (files, other roles, data), and before
//   collectives that all of them make:
//     run_on_all(world.all(), [&] { write_file_atomically(file, text); });
//     const Rows rows = run_on_all(world.tp(), [&] { return client.receive(request); });
//   fn makes collectives of its own only behind a vote inside of it, so that what a failed rank
//   would meet in the others is always a vote.
// Collectives: one all-reduce of 8 bytes on the group; if a rank failed, two broadcasts of its
//   error more. Every rank of the group calls.
// Errors: a rank that failed throws what it failed with. Every other rank throws the error of the
//   lowest rank that failed: the same code, message, origin and context, with `group` and
//   `failed_rank` added (see failed_rank() below). What is no Error (c10::Error, any other
//   exception) reaches them as kRemote with the first line of its text. The group stays usable.
//   A collective that failed or timed out inside of fn is thrown without a vote: the other ranks
//   see this one leave the group.
// Nested votes: a rank that fails in an outer vote's fn casts that vote while the others are at a
//   vote inside of it. On one group the two meet; every vote says how deep it is nested, so the
//   others end the inner and the outer vote with that rank's error, at once, and all ranks are in
//   step again behind the outer one. On two groups they cannot meet: therefore a rank that has
//   failed waits for the others only kPatience, then throws, and the others see it leave.
// Threads: compute, as all collectives.
#pragma once

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "parallel/group.h"

namespace retort::parallel {

// One vote of this rank, open from its construction until it is cast: for what run_on_all() cannot
// say, such as work in several pieces of which each may fail. Votes are closed in the reverse order
// of their opening. A vote that is destroyed while it is open is not cast.
class Vote {
 public:
  // How long a rank that failed waits for the others, at most the group's timeout.
  static constexpr std::chrono::milliseconds kPatience{10'000};

  explicit Vote(Group& group);
  ~Vote();
  Vote(const Vote&) = delete;
  Vote& operator=(const Vote&) = delete;

  // What fn returns. If it throws, this rank casts that it failed, and throws. A `complaint` is put
  // before the message, on this rank too, which then throws an Error whatever fn threw; it is read
  // after fn has failed.
  template <class Fn>
  auto attempt(Fn&& fn, const std::string& complaint = {}) {
    try {
      return std::forward<Fn>(fn)();
    } catch (...) {
      fail(std::current_exception(), complaint);
    }
  }

  // This rank did not fail. Throws if another did.
  void cast();

 private:
  [[noreturn]] void fail(const std::exception_ptr& failure, const std::string& complaint);
  void decide(const Error* mine);
  void close();

  Group& group_;
  int depth_ = 0;  // how many votes of this rank on this group are open around it
  bool open_ = true;
};

// Runs fn, votes, and returns what fn returned; as the head of this file says. `complaint`: see
// Vote::attempt().
template <class Fn>
auto run_on_all(Group& group, Fn&& fn, const std::string& complaint = {}) {
  Vote vote(group);
  if constexpr (std::is_void_v<std::invoke_result_t<Fn>>) {
    vote.attempt(std::forward<Fn>(fn), complaint);
    vote.cast();
  } else {
    auto result = vote.attempt(std::forward<Fn>(fn), complaint);
    vote.cast();
    return result;
  }
}

// The rank of `role` that met this error, if a vote of that role's ranks brought it here; nullopt:
// whoever threw it met it.
std::optional<int> failed_rank(const Error& error, std::string_view role);

}  // namespace retort::parallel
