#include "parallel/vote.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <vector>

#include <ATen/ops/full.h>

#include "base/sizes.h"
#include "parallel/detail/c10d_impl.h"
#include "parallel/detail/work.h"

namespace retort::parallel {
namespace {

constexpr const char* kGroup = "group";
constexpr const char* kFailedRank = "failed_rank";

// A ballot is one number, and the vote's result is the least of all ranks' numbers: the failure in
// the outermost vote, and of several there the lowest rank's; kReady if no rank failed. A number
// below kFailed is no ballot: it comes from a reduction that another rank was at.
constexpr int64_t kReady = std::numeric_limits<int64_t>::max();
constexpr int64_t kFailed = int64_t{1} << 62;

struct Failure {
  int depth = 0;     // of the vote that was cast
  int position = 0;  // of the rank in the group
};

int64_t to_ballot(Failure failure) {
  return kFailed | (int64_t{failure.depth} << 32) | failure.position;
}

Failure from_ballot(int64_t ballot) {
  return {.depth = to_int((ballot - kFailed) >> 32), .position = to_int(ballot & 0xffffffff)};
}

// An error as text: code, origin, message, then keys and values, with a zero byte between two.
std::string to_text(const Error& error) {
  std::vector<std::string> fields{std::to_string(static_cast<int>(error.code())), error.origin(),
                                  error.message()};
  for (const auto& [key, value] : error.context()) {
    fields.push_back(key);
    fields.push_back(value);
  }

  std::string text;
  for (std::string& field : fields) {
    // A zero byte ends a field, so none may stand inside of one.
    std::erase(field, '\0');
    text += field + '\0';
  }
  return text;
}

Error from_text(const std::string& text) {
  std::vector<std::string> fields;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\0', begin);
    fields.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  RETORT_CHECK(fields.size() >= 3 && fields.size() % 2 == 1) << "an error of a vote is cut";

  Error::Context context;
  for (size_t i = 3; i < fields.size(); i += 2)
    context.emplace_back(fields[i], fields[i + 1]);
  return Error(static_cast<ErrorCode>(std::stoi(fields[0])), fields[2], fields[1],
               std::move(context));
}

// "student" of "student.dp_pp".
std::string_view role_of(std::string_view group) { return group.substr(0, group.rfind('.')); }

// An exception that is no Error reaches the other ranks as kRemote, with the first line of its
// text.
Error as_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& e) {
    return e;
  } catch (const std::exception& e) {
    return Error(ErrorCode::kRemote, detail::first_line(e));
  } catch (...) {
    return Error(ErrorCode::kRemote, "something was thrown that is no std::exception");
  }
}

// True if a group of `role` cannot be used any more, because a collective failed or its time was
// up. Its other ranks may never come to a vote, and to wait for them would cost the timeout again.
// (The same codes may come from a call to another role, or from a vote, which leaves its group
// usable.)
bool broke_a_group(const Error& error, std::string_view role) {
  if (error.code() != ErrorCode::kCollective && error.code() != ErrorCode::kTimeout) return false;
  bool group = false;
  bool operation = false;
  for (const auto& [key, value] : error.context()) {
    group = group || (key == kGroup && role_of(value) == role);
    operation = operation || key == "op";
  }
  return group && operation && !failed_rank(error, role);
}

// The error as this rank, which did not meet it, throws it. If a vote had brought it to the rank at
// `position` already, it names the rank that met it and not the messenger.
Error of_another_rank(const Error& error, const Group& group, int position) {
  if (failed_rank(error, role_of(group.name()))) return error;
  return error.with(kGroup, group.name()).with(kFailedRank, group.ranks()[to_size(position)]);
}

}  // namespace

Vote::Vote(Group& group) : group_(group) {
  const Group::Impl& impl = *group.impl_;
  // A vote around this one has ended with the failure of another rank. That rank comes to no vote
  // in here, so none is opened.
  if (impl.ended_vote) throw impl.ended_vote->error;
  depth_ = group.impl_->open_votes++;
}

Vote::~Vote() { close(); }

void Vote::close() {
  if (!open_) return;
  open_ = false;
  Group::Impl& impl = *group_.impl_;
  RETORT_CHECK(--impl.open_votes == depth_) << "votes closed in another order than opened";
  // Behind the vote that had ended all ranks are in step again.
  if (impl.ended_vote && impl.ended_vote->depth == depth_) impl.ended_vote.reset();
}

void Vote::cast() {
  RETORT_CHECK(open_) << "a vote is cast once";
  // A vote inside of fn may have found that another rank failed in this vote or in one around it.
  // Then this vote is over, even if fn caught the error.
  if (const auto& ended = group_.impl_->ended_vote) throw ended->error;
  decide(nullptr);
  close();
}

void Vote::fail(const std::exception_ptr& failure, const std::string& complaint) {
  RETORT_CHECK(open_) << "a vote is cast once";
  const Error plain = as_error(failure);
  // In a vote that is over, and on a group that cannot be used, nobody would answer a ballot: the
  // failure is thrown as it is.
  if (group_.impl_->ended_vote || broke_a_group(plain, role_of(group_.name())))
    std::rethrow_exception(failure);

  const Error mine = complaint.empty() ? plain
                                       : Error(plain.code(), complaint + plain.message(),
                                               plain.origin(), plain.context());
  try {
    decide(&mine);
  } catch (const std::exception&) {
    // The vote ends with an error whatever the others say, since this rank has failed; the failure
    // itself tells more than that error.
  }
  if (!complaint.empty()) throw mine;
  std::rethrow_exception(failure);
}

// Throws unless all ranks are ready. `mine` is the failure of this rank, or null if it is ready.
void Vote::decide(const Error* mine) {
  Group::Impl& impl = *group_.impl_;
  if (group_.size() == 1) return;

  // A rank that is ready waits as long as in any collective, because the others may still be at
  // work. One that has failed waits only for kPatience: the others may be at a vote of another
  // group, where they cannot meet this one.
  at::Tensor least = at::full(
      {1}, mine ? to_ballot({.depth = depth_, .position = impl.position}) : kReady, at::kLong);
  std::vector<at::Tensor> tensors{least};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MIN;
  options.timeout = mine ? std::min(impl.timeout, kPatience) : impl.timeout;
  detail::launch(group_.impl_, "vote", &least, [&](c10d::Backend& b) {
    return b.allreduce(tensors, options);
  })->finish();
  const int64_t result = *least.const_data_ptr<int64_t>();
  if (result == kReady) return;
  if (result < kFailed)
    throw Error(ErrorCode::kCollective, "another rank of the group is at a collective, not a vote")
        .with(kGroup, group_.name())
        .with("rank", impl.ranks[to_size(impl.position)])
        .with("op", "vote");

  // The rank that failed broadcasts its error, so that all ranks throw the same code, message,
  // origin and context.
  const Failure failure = from_ballot(result);
  const bool from_here = mine && failure.position == impl.position;
  const Error error = of_another_rank(
      from_text(group_.broadcast(from_here ? to_text(*mine) : "", failure.position)), group_,
      failure.position);

  // The failed rank is done with the outer vote, where this rank will not find it any more. So this
  // rank casts no vote until it has left that one (see close()).
  if (failure.depth < depth_) impl.ended_vote = {.depth = failure.depth, .error = error};
  throw error;
}

std::optional<int> failed_rank(const Error& error, std::string_view role) {
  const Error::Context& context = error.context();
  for (size_t i = 1; i < context.size(); ++i) {
    const auto& [key, value] = context[i];
    // of_another_rank() puts the group right before the rank, which tells this role's votes from
    // another's.
    if (key != kFailedRank || context[i - 1].first != kGroup ||
        role_of(context[i - 1].second) != role)
      continue;
    int rank = 0;
    if (std::from_chars(value.data(), value.data() + value.size(), rank).ec == std::errc())
      return rank;
  }
  return std::nullopt;
}

}  // namespace retort::parallel
