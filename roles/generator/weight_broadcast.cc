#include "roles/generator/weight_broadcast.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace retort::roles {
namespace {

constexpr std::chrono::milliseconds kAgain{20};  // between two looks for room at a peer

// Tells whether the call was not sent because there is no credit for it; else the peer refused it.
bool is_full(const Error& error) {
  const auto& context = error.context();
  return error.code() == ErrorCode::kResourceExhausted &&
         std::any_of(context.begin(), context.end(),
                     [](const auto& entry) { return entry.first == "inflight_bytes"; });
}

}  // namespace

void WeightBroadcast::Inbox::put(Event event) {
  std::lock_guard lock(mutex);
  events.push_back(std::move(event));
  filled.notify_one();
}

WeightBroadcast::WeightBroadcast(rpc::Agent& agent, Options options, const Buckets& buckets)
    : agent_(agent), options_(std::move(options)), buckets_(buckets), sealed_(buckets.size(), 0) {
  std::vector<std::vector<size_t>> trees(buckets.size());
  for (const Peer& peer : options_.peers) {
    const size_t number = members_.size();
    members_.push_back({.name = peer.name,
                        .rank = peer.rank,
                        .parent = {},
                        .children = {},
                        .there = std::vector<bool>(buckets.at(peer.rank).size()),
                        .under_way = {}});
    Member& member = members_.back();
    if (member.complete()) ++complete_;

    // The place in the tree of its rank follows from the number of those before it.
    std::vector<size_t>& tree = trees[peer.rank];
    if (options_.pass_on && tree.size() >= kFanOut) {
      member.parent = tree[(tree.size() - kFanOut) / kFanOut];
      members_[*member.parent].children.push_back(number);
    }
    tree.push_back(number);
  }
}

void WeightBroadcast::sealed(size_t rank) {
  ++sealed_[rank];
  for (size_t number = 0; number < members_.size(); ++number)
    if (members_[number].rank == rank && !members_[number].parent) serve(number);
}

size_t WeightBroadcast::everywhere(size_t rank) const {
  size_t least = buckets_[rank].size();
  for (const Member& member : members_)
    if (member.rank == rank && !member.gone) least = std::min(least, member.first_missing);
  return least;
}

void WeightBroadcast::wait_for(size_t rank, size_t buckets) {
  while (everywhere(rank) < std::min(buckets, buckets_[rank].size()))
    advance(true);
}

void WeightBroadcast::wait_all() {
  while (complete_ + gone_ < members_.size() && !leave_behind())
    advance(true);
}

void WeightBroadcast::advance(bool wait) {
  // Calls report on other threads, so they only leave an event. All that follows from it is decided
  // here, on the one thread of the spread.
  std::vector<Event> events;
  {
    std::unique_lock lock(inbox_->mutex);
    const auto any = [&] { return !inbox_->events.empty(); };
    if (wait) inbox_->filled.wait_until(lock, Clock::now() + longest_look(), any);
    events.swap(inbox_->events);
  }
  for (const Event& event : events)
    take(event);
  ask_again();
  look_for_slow();
}

WeightBroadcast::Clock::duration WeightBroadcast::longest_look() const {
  const bool any_full = std::any_of(members_.begin(), members_.end(),
                                    [](const Member& member) { return member.again.has_value(); });
  const Clock::duration look = options_.patience / 4;
  return any_full ? std::min<Clock::duration>(look, kAgain) : look;
}

void WeightBroadcast::ask_again() {
  for (size_t number = 0; number < members_.size(); ++number) {
    std::optional<Clock::time_point>& again = members_[number].again;
    if (!again || *again > Clock::now()) continue;
    again.reset();
    serve(number);
  }
}

// Starts as many transfers to a member as there is room for.
void WeightBroadcast::serve(size_t number) {
  while (!members_[number].gone && members_[number].under_way.size() < kOnTheirWay) {
    const std::optional<size_t> bucket = next_for(members_[number]);
    if (!bucket) return;
    start(number, *bucket);
  }
}

// Finds the first bucket that the member lacks and that its source has.
std::optional<size_t> WeightBroadcast::next_for(const Member& member) const {
  const std::vector<bool>* source = member.parent ? &members_[*member.parent].there : nullptr;
  // Buckets go in order, but those that are there or under way by another way are left out.
  const size_t end = std::min(sealed_[member.rank], member.first_missing + 2 * kOnTheirWay);
  for (size_t i = member.first_missing; i < end; ++i)
    if (!member.there[i] && !member.under_way.contains(i) && (!source || (*source)[i])) return i;
  return std::nullopt;
}

void WeightBroadcast::start(size_t number, size_t bucket) {
  Member& member = members_[number];
  // One peer's full window must not keep this thread from the others: what stands in it may be of
  // earlier pushes, to one that stands still.
  const Transfer transfer{.attempt = ++attempts_,
                          .from = member.parent,
                          .without_credit = options_.leave_behind || !member.under_way.empty(),
                          .since = Clock::now()};
  member.under_way[bucket] = transfer;
  const auto report = [inbox = inbox_, number, bucket, attempt = transfer.attempt](
                          bool arrived, std::exception_ptr error) {
    inbox->put({.member = number,
                .bucket = bucket,
                .attempt = attempt,
                .arrived = arrived,
                .error = std::move(error)});
  };

  // A member with a parent gets nothing from here: the parent is asked to pass the bucket on, and
  // its answer says whether it arrived.
  if (member.parent) {
    const PassWeights pass{.version = options_.version,
                           .sender = options_.sender,
                           .index = static_cast<int64_t>(bucket),
                           .to = member.name,
                           .address = agent_.where(member.name)};
    agent_
        .call(members_[*member.parent].name, kWeightsPass, pass,
              {.timeout = options_.timeout, .wait_for_credit = !options_.leave_behind})
        .on_outcome([report](Outcome<PassReply> outcome) {
          report(outcome.value && outcome.value->passed, outcome.error);
        });
    return;
  }
  agent_
      .call(member.name, kWeightsBucket, buckets_[member.rank][bucket],
            {.timeout = options_.timeout, .wait_for_credit = !transfer.without_credit})
      .on_outcome([report](Outcome<Empty> outcome) { report(!outcome.error, outcome.error); });
}

void WeightBroadcast::take(const Event& event) {
  Member& member = members_[event.member];
  const auto found = member.under_way.find(event.bucket);
  const bool current = found != member.under_way.end() && found->second.attempt == event.attempt;
  if (!event.arrived && (!current || member.gone)) return;  // another attempt brings it

  Transfer transfer;
  if (found != member.under_way.end()) {
    transfer = found->second;
    member.under_way.erase(found);
  }
  if (!event.arrived) return fail(event.member, transfer, event.error);
  if (current) longest_ = std::max(longest_, Clock::now() - transfer.since);
  arrived(event.member, event.bucket);
}

void WeightBroadcast::arrived(size_t number, size_t bucket) {
  Member& member = members_[number];
  member.refused = false;
  if (!member.there[bucket]) {
    member.there[bucket] = true;
    ++member.num_there;
    while (member.first_missing < member.there.size() && member.there[member.first_missing])
      ++member.first_missing;
    if (member.complete() && !member.gone) ++complete_;
    if (!most_complete_ && 2 * complete_ > members_.size()) most_complete_ = Clock::now() - start_;
  }

  // There is room for another bucket on the way to this member, and its children may now get this
  // one from it.
  serve(number);
  for (const size_t child : member.children)
    if (members_[child].parent == number) serve(child);
}

void WeightBroadcast::fail(size_t number, const Transfer& transfer,
                           const std::exception_ptr& error) {
  Member& member = members_[number];
  // An error of the call is of the replica that should pass it on, which is away. Without one that
  // replica does not have the bucket any more, or does not reach this member.
  if (transfer.from) return error ? retire(*transfer.from) : make_direct(number);

  try {
    std::rethrow_exception(error);
  } catch (const Error& reason) {
    if (transfer.without_credit && reason.code() == ErrorCode::kResourceExhausted) {
      // Whatever is on its way to the member makes room when it arrives. What stands before it may
      // take long, and those after it do not wait for that.
      if (!member.under_way.empty()) return;
      if (!options_.leave_behind) return serve(number);
      if (is_full(reason)) {
        member.again = Clock::now() + kAgain;
        if (!member.retired) retire(number);
        return;
      }
      // The peer refused too much at once, or a bucket that is too large: sent alone, it shows
      // which.
      if (!std::exchange(member.refused, true)) return serve(number);
    }
    if (!options_.passes || !options_.passes(reason))
      throw reason.with("generator", member.name).with("weight_version", options_.version);
    member.gone = true;
    ++gone_;
    missed_.push_back(member.name);
    retire(number);
  }
}

// From now on the member gets everything from the sender.
void WeightBroadcast::make_direct(size_t number) {
  Member& member = members_[number];
  if (!member.parent) return;
  RETORT_LOG(kDebug) << member.name << " gets version " << options_.version
                     << " from here, not from " << members_[*member.parent].name;
  member.parent.reset();
  std::erase_if(member.under_way, [](const auto& entry) { return entry.second.from.has_value(); });
  serve(number);
}

// From now on no other member waits for this one.
void WeightBroadcast::retire(size_t number) {
  Member& member = members_[number];
  member.retired = true;
  slow_.insert(member.name);
  for (const size_t child : member.children)
    if (members_[child].parent == number) make_direct(child);
}

void WeightBroadcast::look_for_slow() {
  // Before anything has arrived nobody knows how long it takes.
  if (longest_.count() == 0) return;

  // A member that is late to get a bucket from another one gets it from the sender. One that is
  // late to take it from the sender keeps no others waiting.
  const auto longest = std::max<Clock::duration>(options_.patience, 4 * longest_);
  const Clock::time_point latest = Clock::now() - longest;
  for (size_t number = 0; number < members_.size(); ++number) {
    const Member& member = members_[number];
    const bool overdue =
        std::any_of(member.under_way.begin(), member.under_way.end(),
                    [&](const auto& entry) { return entry.second.since < latest; });
    if (!overdue || member.gone) continue;
    if (member.parent)
      make_direct(number);
    else if (!member.retired)
      retire(number);
  }
}

// Leaves behind those that are not complete, once the others have waited for long enough. False
// before.
bool WeightBroadcast::leave_behind() {
  if (!options_.leave_behind || !most_complete_) return false;
  if (Clock::now() - start_ <= 2 * *most_complete_ + options_.patience) return false;
  for (Member& member : members_) {
    if (member.complete() || member.gone) continue;
    RETORT_LOG(kWarning) << member.name << " is slow to take the weights of version "
                         << options_.version << "; they are sent to it beside what follows";
    member.gone = true;
    ++gone_;
    missed_.push_back(member.name);
    slow_.insert(member.name);
  }
  return true;
}

}  // namespace retort::roles
