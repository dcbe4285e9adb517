// What a pipeline's schedules cost by their lists alone, without a process or a device. A backward
// takes twice as long as its forward, messages take no time.
//   pipeline_bench                a table of idle time, activations and messages
//   pipeline_bench --steps PP VIRTUAL_PP MICRO_BATCHES
//                                 a line for every step: stage kind chunk micro-batch start end
//                                     (bench/plot_pipeline.py draws it)
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "tests/parallel/pipeline_simulation.h"

namespace retort::parallel {
namespace {

using testing::PipelineCase;
using testing::PipelineRun;

PipelineRun run_of(const PipelineCase& c) {
  PipelineRun run = testing::simulate(c, testing::all_stages(c));
  for (const std::string& problem : run.problems)
    std::fprintf(stderr, "%s\n", problem.c_str());
  if (!run.problems.empty()) std::exit(1);
  return run;
}

void print_steps(const PipelineCase& c) {
  const PipelineRun run = run_of(c);
  for (size_t stage = 0; stage < run.steps.size(); ++stage)
    for (const PipelineRun::Step& step : run.steps[stage])
      std::printf("%zu %s %lld %lld %g %g\n", stage, enum_name(step.action.kind).data(),
                  static_cast<long long>(step.action.chunk),
                  static_cast<long long>(step.action.micro_batch), step.start, step.end);
}

void print_table() {
  std::printf("%4s %4s %4s %12s %22s %24s\n", "pp", "M", "V", "idle / work", "activations, stage 0",
              "messages a micro-batch");
  for (int64_t pp : {2, 4, 8})
    for (int64_t micro_batches : {pp, 2 * pp, 2 * pp + 1, 8 * pp})
      for (int64_t virtual_pp : {1, 2, 4}) {
        const PipelineRun run =
            run_of({.pp = pp, .virtual_pp = virtual_pp, .micro_batches = micro_batches});
        std::printf("%4lld %4lld %4lld %11.1f%% %22.2f %24lld\n", static_cast<long long>(pp),
                    static_cast<long long>(micro_batches), static_cast<long long>(virtual_pp),
                    100 * run.idle(),
                    static_cast<double>(run.peak_live.front()) / static_cast<double>(virtual_pp),
                    static_cast<long long>(2 * (pp * virtual_pp - 1)));
      }
  std::printf(
      "activations: micro-batches' worth of a stage's layers between forward and backward\n");
}

}  // namespace
}  // namespace retort::parallel

int main(int argc, char** argv) {
  using namespace retort::parallel;
  try {
    if (argc == 1) {
      print_table();
      return 0;
    }
    if (argc == 5 && std::strcmp(argv[1], "--steps") == 0) {
      print_steps({.pp = std::atoll(argv[2]),
                   .virtual_pp = std::atoll(argv[3]),
                   .micro_batches = std::atoll(argv[4])});
      return 0;
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
  std::fprintf(stderr, "usage: pipeline_bench [--steps PP VIRTUAL_PP MICRO_BATCHES]\n");
  return 2;
}
