#include "engines/llamacpp/engine.h"

#include <limits>
#include <utility>

#include "base/error.h"
#include "engines/llamacpp/draw.h"
#include "engines/llamacpp/reload.h"
#include "engines/llamacpp/run.h"
#include "engines/llamacpp/score.h"
#include "engines/llamacpp/session.h"
#include "http/url.h"

namespace retort::engines::llamacpp {
namespace {

class StateRun final : public Run<EngineState> {
 public:
  StateRun(Session& session, Deadline deadline)
      : Run(session.loop()), session_(session), deadline_(deadline) {}

 private:
  void begin() override {
    await(session_.read_served(deadline_),
          [this](const ServedModel& served) { finish(served.state); });
  }
  Session& session_;
  Deadline deadline_;
};

class Llamacpp final : public Engine {
  // Before its users, who need its type.
  template <class Kind, class... Args>
  auto run(Args&&... args) {
    return std::make_shared<Kind>(session_, std::forward<Args>(args)...)->start();
  }

 public:
  Llamacpp(const ExternalOptions& options, const std::string& url, std::string key)
      : loop_(std::make_unique<Loop>()),
        session_(*loop_, options, http::parse_url(url), std::move(key)) {}

  ~Llamacpp() override {
    // The client belongs to the loop's thread, so it is closed there. That ends the requests that
    // are open, and with them their runs, before the loop is joined.
    loop_->post([this] { session_.server().close(); });
    loop_.reset();
  }

  Abilities abilities() const override {
    return {.draws = true,
            .scores = true,
            .max_top_k = std::numeric_limits<int32_t>::max(),
            .hidden_states = false,
            .seeds = true};
  }

  Future<EngineState> state(Deadline deadline) override { return run<StateRun>(deadline); }
  Future<Drawn> draw(DrawRequest request, Deadline deadline) override {
    return run<DrawRun>(std::move(request), deadline);
  }
  Future<Scored> score(ScoreRequest request, Deadline deadline) override {
    return run<ScoreRun>(std::move(request), deadline);
  }
  Future<Empty> load_weights(std::string path, Deadline deadline) override {
    return run<ReloadRun>(std::move(path), deadline);
  }

 private:
  std::unique_ptr<Loop> loop_;  // joined before the session dies
  Session session_;
};

}  // namespace

std::unique_ptr<Engine> make_llamacpp(const ExternalOptions& options, const std::string& url,
                                      const std::string& key) {
  return std::make_unique<Llamacpp>(options, url, key);
}

}  // namespace retort::engines::llamacpp
