// Engines of others: whether they answer at their addresses, from this host.
#include <list>
#include <memory>
#include <utility>

#include "base/error.h"
#include "engines/contract/engine.h"
#include "engines/make_engine.h"
#include "launch/doctor/checks.h"

namespace retort::launch::doctor {
namespace {

constexpr std::chrono::milliseconds kAnswer{10'000};

// One address, asked when this is made.
class Asked {
 public:
  Asked(std::string role, const engines::ExternalOptions& external, const std::string& url)
      : role_(std::move(role)),
        shown_(std::string(enum_name(external.engine)) + " at " + engines::shown_url(url)) {
    try {
      engine_ = engines::make_engine(external, url, engines::read_api_key(external));
      state_ = engine_->state(Deadline::after(kAnswer));
    } catch (const Error& error) {
      error_ = error;
    }
  }

  Finding answer() {
    try {
      if (error_) throw Error(*error_);
      const engines::EngineState state = state_.get();
      return fine(role_ + shown_ + " answers" +
                  (state.version.empty() ? "" : ", version " + state.version) +
                  (state.served_model.empty() ? "" : ", serves " + state.served_model));
    } catch (const Error& error) {
      return problem(role_ + shown_ + ": " + error.what(),
                     "start the engine, or correct url, served_model or the key; `retort probe` "
                     "asks it more");
    }
  }

 private:
  const std::string role_, shown_;
  std::unique_ptr<engines::Engine> engine_;
  Future<engines::EngineState> state_;
  std::optional<Error> error_;
};

}  // namespace

std::vector<Finding> check_engines(const HostShare& share) {
  std::vector<Finding> findings;
  // All are asked before the first is waited for, so that many that are down take no longer.
  std::list<Asked> asked;
  for (const auto& [name, ranks] : share.ranks) {
    const auto& external = share.recipe->roles.at(name).external;
    if (!external || ranks == 0) continue;
    const std::string role = "roles." + name + ": ";
    for (const std::string& url : external->url) {
      // Nothing answers before the run has started it.
      if (external->command.empty())
        asked.emplace_back(role, *external, url);
      else
        findings.push_back(fine(role + "the run itself starts " + external->command.front()));
    }
  }
  for (Asked& one : asked)
    findings.push_back(one.answer());
  return findings;
}

}  // namespace retort::launch::doctor
