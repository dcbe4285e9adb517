// An engine that answers nothing until it is told to, and keeps what it was asked.
#pragma once

#include <vector>

#include "base/deadline.h"
#include "engines/contract/engine.h"

namespace retort::engines {

class HeldEngine final : public Engine {
 public:
  Abilities abilities() const override {
    return {.draws = true, .scores = true, .max_top_k = 1'000'000};
  }
  Future<EngineState> state(Deadline) override { return hold(states); }
  Future<Drawn> draw(DrawRequest, Deadline deadline) override {
    deadlines.push_back(deadline);
    return hold(draws);
  }
  Future<Scored> score(ScoreRequest, Deadline deadline) override {
    deadlines.push_back(deadline);
    return hold(scores);
  }

  std::vector<Promise<EngineState>> states;
  std::vector<Promise<Drawn>> draws;
  std::vector<Promise<Scored>> scores;
  std::vector<Deadline> deadlines;
  int cancelled = 0;

 private:
  template <class T>
  Future<T> hold(std::vector<Promise<T>>& all) {
    Promise<T>& promise = all.emplace_back();
    promise.on_cancel([this] { ++cancelled; });
    return promise.future();
  }
};

}  // namespace retort::engines
