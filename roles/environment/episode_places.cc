#include "roles/environment/episode_places.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace retort::roles {

EpisodePlaces::EpisodePlaces(std::vector<std::string> names) {
  RETORT_CHECK(!names.empty()) << "an environment without replicas";
  for (std::string& name : names)
    replicas_.push_back({.name = std::move(name)});
}

bool EpisodePlaces::all_lost() const {
  return std::all_of(replicas_.begin(), replicas_.end(),
                     [](const Replica& replica) { return replica.lost; });
}

void EpisodePlaces::set_room(size_t replica, int64_t episodes) {
  replicas_[replica].episodes = episodes;
  replicas_[replica].lost = false;
}

std::optional<EpisodePlaces::Place> EpisodePlaces::begin(uint64_t episode) {
  if (places_.contains(episode))
    throw Error(ErrorCode::kInvalidArgument, "an episode of this number is open")
        .with("episode", episode);

  const auto now = Clock::now();
  std::optional<size_t> best;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const Replica& replica = replicas_[i];
    if (replica.lost || replica.open >= replica.episodes || now < replica.full_until) continue;
    if (!best || replica.open < replicas_[*best].open) best = i;
  }
  if (!best) return std::nullopt;

  const Place place{.replica = *best, .epoch = replicas_[*best].epoch};
  ++replicas_[*best].open;
  places_[episode] = place;
  return place;
}

EpisodePlaces::Place EpisodePlaces::at(uint64_t episode) {
  const auto found = places_.find(episode);
  if (found == places_.end())
    throw Error(ErrorCode::kInvalidArgument, "no episode of this number is open")
        .with("episode", episode);
  const Place place = found->second;
  const Replica& replica = replicas_[place.replica];
  if (replica.epoch == place.epoch) return place;
  places_.erase(found);
  throw Error(ErrorCode::kPeerLost, "the replica of the environment that had the episode was lost")
      .with("episode", episode)
      .with("peer", replica.name);
}

void EpisodePlaces::end(uint64_t episode, Place place) {
  if (Replica* replica = leave(episode, place)) replica->full_until = {};
}

void EpisodePlaces::refuse(uint64_t episode, Place place) {
  if (Replica* replica = leave(episode, place)) replica->full_until = Clock::now() + kFull;
}

void EpisodePlaces::lose(Place place) {
  Replica& replica = replicas_[place.replica];
  // Calls that were sent before a loss report it late, and must not take down a replica that has
  // come back since.
  if (replica.epoch != place.epoch) return;
  ++replica.epoch;
  replica.lost = true;
  replica.open = 0;
}

// The replica, if it was not lost since: then it counts the episode no more.
EpisodePlaces::Replica* EpisodePlaces::leave(uint64_t episode, Place place) {
  // It may have left before: a turn that fails and the call that closes the episode meanwhile both
  // say so.
  const auto found = places_.find(episode);
  if (found == places_.end() || !(found->second == place)) return nullptr;
  places_.erase(found);
  Replica& replica = replicas_[place.replica];
  if (replica.epoch != place.epoch) return nullptr;
  --replica.open;
  return &replica;
}

}  // namespace retort::roles
