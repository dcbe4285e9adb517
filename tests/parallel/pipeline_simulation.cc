#include "tests/parallel/pipeline_simulation.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "base/sizes.h"

namespace retort::parallel::testing {
namespace {

using Kind = PipelineAction::Kind;

struct Message {
  PipelineAction label;
  double sent = 0;
  double taken = -1;  // below zero: not yet
};

// One stage's list, checked alone.
void check_list(const PipelineCase& c, int64_t stage, const std::vector<PipelineAction>& actions,
                PipelineRun& run) {
  std::set<std::pair<int64_t, int64_t>> forwards, backwards;
  int64_t peak = 0;
  const auto problem = [&](const PipelineAction& action, const std::string& what) {
    run.problems.push_back("stage " + std::to_string(stage) + ": " + to_string(action) + " " +
                           what);
  };

  // Each action for itself, and how many passes are open at once.
  for (const PipelineAction& action : actions) {
    const std::pair<int64_t, int64_t> key{action.chunk, action.micro_batch};
    if (action.chunk < 0 || action.chunk >= c.virtual_pp || action.micro_batch < 0 ||
        action.micro_batch >= c.micro_batches)
      problem(action, "does not exist");
    else if (!(action.kind == Kind::kForward ? forwards : backwards).insert(key).second)
      problem(action, "comes twice");
    else if (action.kind == Kind::kBackward && !forwards.contains(key))
      problem(action, "comes before its forward");
    peak = std::max<int64_t>(peak, std::ssize(forwards) - std::ssize(backwards));
  }

  // What never came.
  for (int64_t chunk = 0; chunk < c.virtual_pp; ++chunk)
    for (int64_t m = 0; m < c.micro_batches; ++m) {
      if (!forwards.contains({chunk, m})) problem({Kind::kForward, chunk, m}, "is missing");
      if (!c.forward_only && !backwards.contains({chunk, m}))
        problem({Kind::kBackward, chunk, m}, "is missing");
    }
  run.peak_live.push_back(peak);
}

// Each stage does one thing at a time and only waits for messages, so the outcome does not depend
// on the order in which stages are looked at.
class Simulation {
 public:
  Simulation(const PipelineCase& c, const std::vector<std::vector<PipelineAction>>& lists,
             PipelineRun& run)
      : c_(c), run_(run), stages_(lists.size()) {
    for (size_t s = 0; s < lists.size(); ++s)
      stages_[s].list = &lists[s];
    run_.steps.resize(lists.size());
  }

  void run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (int64_t s = 0; s < c_.pp; ++s)
        while (advance(s))
          progress = true;
    }
    std::string stuck;
    for (int64_t s = 0; s < c_.pp; ++s) {
      Stage& stage = at(s);
      run_.time = std::max(run_.time, stage.now);
      if (stage.next == stage.list->size() && !stage.sending) continue;
      stuck += (stuck.empty() ? "deadlock: stage " : "; stage ") + std::to_string(s) +
               (stage.sending
                    ? " waits until its " + to_string(stage.in_flight.front()->label) + " is taken"
                    : " waits for the input of " + to_string((*stage.list)[stage.next]));
    }
    if (!stuck.empty()) run_.problems.push_back(stuck);
  }

 private:
  struct Stage {
    const std::vector<PipelineAction>* list = nullptr;
    size_t next = 0;
    double now = 0;
    bool sending = false;  // its last action's message exceeds what may be in flight
    std::deque<std::shared_ptr<Message>> in_flight;
  };
  Stage& at(int64_t stage) { return stages_[to_size(stage)]; }

  // Does the next thing of a stage; false when it must wait or is done.
  bool advance(int64_t s) {
    Stage& stage = at(s);
    if (stage.sending) return finish_send(stage);
    if (stage.next == stage.list->size()) return false;

    // It waits for its input; time goes on to when that was sent.
    const PipelineAction& action = (*stage.list)[stage.next];
    if (const auto input = pipeline_input(action, s, c_.pp, c_.virtual_pp)) {
      auto& wire = wires_[{input->stage, s, action.kind}];
      if (wire.empty()) return false;
      Message& message = *wire.front();
      stage.now = std::max(stage.now, message.sent);
      message.taken = stage.now;
      if (message.label != action)
        run_.problems.push_back("stage " + std::to_string(s) + " expects the input of " +
                                to_string(action) + " and gets that of " +
                                to_string(message.label));
      wire.pop_front();
    }

    const double start = stage.now;
    stage.now += (action.kind == Kind::kForward ? c_.forward_time : c_.backward_time) /
                 static_cast<double>(c_.virtual_pp);
    run_.steps[to_size(s)].push_back({action, start, stage.now});
    ++stage.next;

    if (const auto output = pipeline_output(action, s, c_.pp, c_.virtual_pp)) {
      auto message = std::make_shared<Message>(Message{output->label, stage.now});
      wires_[{s, output->stage, action.kind}].push_back(message);
      stage.in_flight.push_back(std::move(message));
      stage.sending = true;
    }
    return true;
  }

  bool finish_send(Stage& stage) {
    while (std::ssize(stage.in_flight) > c_.sends_in_flight) {
      const Message& oldest = *stage.in_flight.front();
      if (oldest.taken < 0) return false;
      stage.now = std::max(stage.now, oldest.taken);
      stage.in_flight.pop_front();
    }
    stage.sending = false;
    return true;
  }

  const PipelineCase& c_;
  PipelineRun& run_;
  std::vector<Stage> stages_;
  // from, to, kind
  std::map<std::tuple<int64_t, int64_t, Kind>, std::deque<std::shared_ptr<Message>>> wires_;
};

}  // namespace

double PipelineRun::idle() const {
  double work = 0;
  for (const Step& step : steps.front())
    work += step.end - step.start;
  return (time - work) / work;
}

std::vector<std::vector<PipelineAction>> all_stages(const PipelineCase& c) {
  std::vector<std::vector<PipelineAction>> stages;
  for (int64_t stage = 0; stage < c.pp; ++stage)
    stages.push_back(pipeline_schedule({.pp = c.pp,
                                        .stage = stage,
                                        .virtual_pp = c.virtual_pp,
                                        .micro_batches = c.micro_batches,
                                        .forward_only = c.forward_only}));
  return stages;
}

PipelineRun simulate(const PipelineCase& c,
                     const std::vector<std::vector<PipelineAction>>& stages) {
  PipelineRun run;
  for (int64_t stage = 0; stage < c.pp; ++stage)
    check_list(c, stage, stages[to_size(stage)], run);
  Simulation(c, stages, run).run();
  return run;
}

}  // namespace retort::parallel::testing
