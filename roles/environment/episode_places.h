// Which replica of an environment's role takes an episode, and which one has it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace retort::roles {

// Threads: one at a time.
class EpisodePlaces {
 public:
  // A replica that did not take an episode is left alone for so long, unless one of ours ends
  // there: others have the rest of its room, and nobody tells when they give it back.
  static constexpr std::chrono::milliseconds kFull{100};

  // Where an episode is. It is gone when the replica has been lost since.
  struct Place {
    size_t replica = 0;
    uint64_t epoch = 0;  // how often the replica was lost before

    bool operator==(const Place&) const = default;
  };

  // `names` are for errors. A replica takes no episode before set_room().
  explicit EpisodePlaces(std::vector<std::string> names);

  size_t size() const { return replicas_.size(); }
  const std::string& name(size_t replica) const { return replicas_[replica].name; }
  bool is_lost(size_t replica) const { return replicas_[replica].lost; }
  bool all_lost() const;

  // The replica lives, and takes so many episodes at once.
  void set_room(size_t replica, int64_t episodes);
  // The replica that lives, has room, and the fewest episodes of ours; nullopt: none now.
  // kInvalidArgument for an episode that is somewhere.
  std::optional<Place> begin(uint64_t episode);
  // kInvalidArgument for an episode that is nowhere; kPeerLost once for one that is gone.
  Place at(uint64_t episode);
  void end(uint64_t episode, Place place);
  // The replica did not take it.
  void refuse(uint64_t episode, Place place);
  // Forgotten if the replica came back since.
  void lose(Place place);

 private:
  using Clock = std::chrono::steady_clock;
  struct Replica {
    std::string name;
    int64_t episodes = 0;  // that it takes at once
    int64_t open = 0;      // of ours
    bool lost = false;
    uint64_t epoch = 0;
    Clock::time_point full_until{};
  };
  Replica* leave(uint64_t episode, Place place);

  std::vector<Replica> replicas_;
  std::map<uint64_t, Place> places_;
};

}  // namespace retort::roles
